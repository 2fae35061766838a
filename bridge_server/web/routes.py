"""The viewer at `/` and its files: static, made ready once, no build step.

`/` names its files under `/static/<version>/`, where the version is a digest of them all, so that a browser keeps them
for good, never mixes two releases, and asks for one small page when it comes back. `/static/<name>` is the lasting
address of each, for developers; it is checked by ETag. `/` is relative to where it stands: a proxy may add a path.
"""

import gzip
import re
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from aiohttp import web

FOLDER: Final = Path(__file__).with_name("static")
INDEX: Final = "index.html"

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}
_VERSION_MARK: Final = b"static/VERSION/"
_PLAIN_HOST: Final = re.compile(r"[A-Za-z0-9.-]+(:\d{1,5})?|\[[0-9A-Fa-f:.]+\](:\d{1,5})?")

_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept-Encoding",
}
_FOR_GOOD: Final = "public, max-age=31536000, immutable"
_ASK: Final = "no-cache"  # keep it, but ask whether it is still the same

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class StaticFile(NamedTuple):
    """One file as it is sent."""

    content_type: str
    plain: bytes
    zipped: bytes
    digest: str


def routes(folder: Path = FOLDER) -> list[web.RouteDef]:
    """What serves the viewer. Reads every file of `folder` now and none later. Raises OSError."""
    files, version = load(folder)
    index = files[INDEX]

    async def page(request: web.Request) -> web.StreamResponse:
        answer = _answer(request, index, _ASK)
        answer.headers["Content-Security-Policy"] = content_policy(request.headers.get("Host", ""))
        answer.headers["Cross-Origin-Opener-Policy"] = "same-origin"
        return answer

    def file(name: str, keep: str) -> Handler:
        async def serve(request: web.Request) -> web.StreamResponse:
            return _answer(request, files[name], keep)

        return serve

    names = sorted(set(files) - {INDEX})
    return [
        web.get("/", page),
        *(web.get(f"/static/{version}/{name}", file(name, _FOR_GOOD)) for name in names),
        *(web.get(f"/static/{name}", file(name, _ASK)) for name in names),
    ]


def load(folder: Path) -> tuple[dict[str, StaticFile], str]:
    """Every file of `folder` that has a known type, by name, and the version they make together."""
    raw = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix in _TYPES}
    version = sha256(b"\0".join(name.encode() + b"\0" + data for name, data in raw.items())).hexdigest()[:12]
    raw[INDEX] = raw[INDEX].replace(_VERSION_MARK, f"static/{version}/".encode())
    return {name: _prepare(name, data) for name, data in raw.items()}, version


def content_policy(host: str) -> str:
    """The Content-Security-Policy of the page: its own scripts and style, its own hub, nothing else.

    Older browsers don't take 'self' to cover the socket, so it is named, unless `host` (the Host header) is odd.
    """
    sockets = f" ws://{host} wss://{host}" if _PLAIN_HOST.fullmatch(host) else ""
    return (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        f"connect-src 'self'{sockets}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _prepare(name: str, data: bytes) -> StaticFile:
    zipped = gzip.compress(data, mtime=0)
    return StaticFile(_TYPES[Path(name).suffix], data, zipped, sha256(data).hexdigest()[:20])


def _answer(request: web.Request, file: StaticFile, keep: str) -> web.Response:
    zip_it = "gzip" in request.headers.get("Accept-Encoding", "").lower()
    etag = f"{file.digest}-gz" if zip_it else file.digest  # two representations, two tags (RFC 9110, 8.8.3)
    headers = {**_HEADERS, "Cache-Control": keep, "Content-Type": file.content_type, "ETag": f'"{etag}"'}
    asked = request.if_none_match
    if asked and any(tag.value in (etag, "*") for tag in asked):
        return web.Response(status=304, headers=headers)
    if zip_it:
        headers["Content-Encoding"] = "gzip"
    return web.Response(body=file.zipped if zip_it else file.plain, headers=headers)

"""The home's credential: read only from files nobody else could touch, and got only from the hub that wrote the key."""

import json
import os
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from bridge_client import keys
from bridge_client.keys import BadKeyFile, Credential, EnrolmentFailed, HubNotReady
from protocol.pairing import LOCAL_CHALLENGE_PATH, LOCAL_ENROL_PATH, home_proof, hub_proof, local_key_name

KEY = bytes(range(32))
SERVER_ID = "abcdefghijklmnopqrstuvwx23"
SECRET = "sbs_" + "s" * 43
STORED = Credential("http://127.0.0.1:4000", SERVER_ID, SECRET)

Handlers = dict[str, Callable[[web.Request], object]]


@asynccontextmanager
async def serving(handlers: Handlers) -> AsyncIterator[str]:
    app = web.Application()
    for path, handler in handlers.items():
        app.router.add_post(path, handler)  # type: ignore[arg-type]
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def honest(seen: list[bytes], name: str = "Attic") -> Handlers:
    """A hub that holds KEY, written from the protocol's description alone."""
    nonces: dict[str, str] = {}

    async def challenge(request: web.Request) -> web.Response:
        seen.append(await request.read())
        nonce = os.urandom(32).hex()
        nonces[nonce] = json.loads(seen[-1])["nonce"]
        return web.json_response({"nonce": nonce, "proof": hub_proof(KEY, nonces[nonce], nonce)})

    async def enrol(request: web.Request) -> web.Response:
        seen.append(await request.read())
        body = json.loads(seen[-1])
        assert body["proof"] == home_proof(KEY, nonces.pop(body["nonce"]), body["nonce"], name)
        return web.json_response({"server_id": SERVER_ID, "credential": SECRET})

    return {LOCAL_CHALLENGE_PATH: challenge, LOCAL_ENROL_PATH: enrol}


def write_key(state_dir: Path, url: str, mode: int = 0o600) -> Path:
    path = state_dir / local_key_name(int(url.rpartition(":")[2]))
    path.write_text(KEY.hex() + "\n")
    path.chmod(mode)
    return path


async def enrol(url: str, state_dir: Path) -> Credential:
    async with aiohttp.ClientSession() as session:
        return await keys.enrol(url, "Attic", state_dir, session)


def test_a_credential_is_kept_whole_private_and_unseen(tmp_path: Path) -> None:
    path = tmp_path / "state" / "credential.json"
    assert keys.load(path) is None
    keys.save(path, STORED)
    keys.save(path, STORED)
    assert keys.load(path) == STORED
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert SECRET not in repr(STORED)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o604, 0o700, 0o400])
def test_a_file_of_another_mode_is_not_used(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "credential.json"
    keys.save(path, STORED)
    path.chmod(mode)
    with pytest.raises(BadKeyFile, match=f"chmod 600 {path}"):
        keys.load(path)


def test_links_pipes_and_directories_are_not_used(tmp_path: Path) -> None:
    keys.save(tmp_path / "real.json", STORED)
    (tmp_path / "link").symlink_to(tmp_path / "real.json")
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "directory").mkdir(0o600)
    for name in ("link", "pipe", "directory"):
        with pytest.raises(BadKeyFile, match="regular file"):
            keys.load(tmp_path / name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")
def test_a_file_of_another_user_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "credential.json"
    keys.save(path, STORED)
    os.chown(path, 65534, 65534)
    with pytest.raises(BadKeyFile, match="another user"):
        keys.load(path)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"{}", b'{"hub_url":"x","server_id":"x","credential":"x"}', b"\xff", b"x" * 20_000, b"[" * 9000]
)
def test_a_file_that_holds_no_credential_says_so_by_name(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "credential.json"
    keys.write_private(path, data)
    with pytest.raises(BadKeyFile, match=r"credential\.json"):
        keys.load(path)


async def test_enrolment_by_file_proves_and_never_sends_the_key(tmp_path: Path) -> None:
    seen: list[bytes] = []
    async with serving(honest(seen)) as url:
        write_key(tmp_path, url)
        assert await enrol(url, tmp_path) == Credential(url, SERVER_ID, SECRET)
    assert len(seen) == 2
    assert not any(KEY.hex().encode() in body or KEY in body for body in seen)


async def test_an_impostor_on_the_port_is_told_nothing(tmp_path: Path) -> None:
    seen: list[bytes] = []

    async def challenge(request: web.Request) -> web.Response:
        seen.append(await request.read())
        nonce = json.loads(seen[-1])["nonce"]
        # It can echo the nonce and guess a key, not more.
        return web.json_response({"nonce": nonce, "proof": hub_proof(bytes(32), nonce, nonce)})

    async def enrolled(request: web.Request) -> web.Response:
        seen.append(await request.read())
        return web.json_response({"server_id": SERVER_ID, "credential": SECRET})

    async with serving({LOCAL_CHALLENGE_PATH: challenge, LOCAL_ENROL_PATH: enrolled}) as url:
        write_key(tmp_path, url)
        with pytest.raises(EnrolmentFailed, match="did not write"):
            await enrol(url, tmp_path)
    assert len(seen) == 1


async def test_a_key_file_others_can_read_is_not_used(tmp_path: Path) -> None:
    seen: list[bytes] = []
    async with serving(honest(seen)) as url:
        write_key(tmp_path, url, 0o644)
        with pytest.raises(BadKeyFile, match="chmod 600"):
            await enrol(url, tmp_path)
    assert seen == []


async def test_without_a_key_file_the_next_step_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnrolmentFailed, match="bridge-server servers add"):
        await enrol("http://127.0.0.1:4000", tmp_path)
    with pytest.raises(EnrolmentFailed, match="not on this machine"):
        await enrol("https://hub.example", tmp_path)
    keys.write_private(tmp_path / local_key_name(4000), b"zz")
    with pytest.raises(BadKeyFile, match="no enrolment key"):
        await enrol("http://127.0.0.1:4000", tmp_path)


async def redirect(request: web.Request) -> web.Response:
    raise web.HTTPTemporaryRedirect("/elsewhere")


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" " * 65_536)


async def refusing(request: web.Request) -> web.Response:
    return web.json_response({"error": {"code": "forwarded", "message": "no\x1b[31m proxies"}}, status=403)


async def nonsense(request: web.Request) -> web.Response:
    return web.Response(body=b"\xff")


@pytest.mark.parametrize(
    ("handler", "said"),
    [(redirect, "307"), (endless, "more than"), (refusing, r"403: 'forwarded' 'no\\x1b\[31m"), (nonsense, "nonsense")],
)
async def test_a_hub_that_answers_otherwise_is_refused_in_one_sentence(
    tmp_path: Path, handler: Callable[[web.Request], object], said: str
) -> None:
    running: AbstractAsyncContextManager[str] = serving({LOCAL_CHALLENGE_PATH: handler})
    async with running as url:
        write_key(tmp_path, url)
        with pytest.raises(EnrolmentFailed, match=said):
            await enrol(url, tmp_path)


async def test_a_hub_that_is_too_busy_to_enrol_is_worth_another_try(tmp_path: Path) -> None:
    async def busy(request: web.Request) -> web.Response:
        return web.json_response({"error": {"code": "overloaded", "message": "locked"}}, status=503)

    async with serving(honest([]) | {LOCAL_ENROL_PATH: busy}) as url:
        write_key(tmp_path, url)
        with pytest.raises(HubNotReady, match=r"503.*overloaded"):
            await enrol(url, tmp_path)

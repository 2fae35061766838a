"""The credential of a home: how it is got from a hub on this machine, and how it is kept.

What is kept is one 0600 file, written whole; a credential never appears in a `repr`, a log record or an error.
"""

import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from bridge_client.dial import PROXY_ALONE, from_proxy
from protocol.codec import open_json
from protocol.errors import BadTopic, ProtocolError
from protocol.loopback import LOOPBACK_NAMES
from protocol.pairing import (
    KEY_BYTES,
    LOCAL_CHALLENGE_PATH,
    LOCAL_ENROL_PATH,
    LocalAnswer,
    LocalChallenge,
    LocalEnrol,
    LocalEnrolled,
    home_proof,
    hub_proof,
    local_key_name,
    same_proof,
)
from protocol.topics import check_server_id

MAX_FILE = 16_384
MAX_ANSWER = 65_536
TIMEOUT = aiohttp.ClientTimeout(total=10.0)

_T = TypeVar("_T")


class BadKeyFile(Exception):
    """A file that may hold a secret is not safe to use, or not what it should be; the text names it and the remedy."""


class EnrolmentFailed(Exception):
    """The hub gave no credential; the text says why and what to do."""


class HubNotReady(EnrolmentFailed):
    """Not now: no key file (no hub runs, or it never enrols by file), a new one just now, or the hub is busy."""


@dataclass(frozen=True, slots=True)
class Credential:
    """What opens a hub: `credential` is the token, `server_id` the home it belongs to (for an app: the home it reads).

    `hub_url` is where it was made, `device_id` is set for an app.
    """

    hub_url: str
    server_id: str
    credential: str = field(repr=False)
    device_id: str | None = None


_credential_decoder = msgspec.json.Decoder(Credential)
_answer_decoder = msgspec.json.Decoder(LocalAnswer)
_enrolled_decoder = msgspec.json.Decoder(LocalEnrolled)


def read_private(path: Path) -> bytes:
    """The bytes of a file that nobody but this user can have written or read.

    Raises FileNotFoundError when there is none, and BadKeyFile unless it is a regular file (no link), this user's own,
    of mode 0600, of at most MAX_FILE bytes.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BadKeyFile(f"{path} can't be opened ({error.strerror}); it must be a regular file of your own") from None
    try:
        # Checked on the open file: what the name points to may change, this can't.
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise BadKeyFile(f"{path} is not a regular file; remove it")
        if facts.st_uid != os.geteuid():
            raise BadKeyFile(f"{path} belongs to another user (uid {facts.st_uid}); it is not used")
        if stat.S_IMODE(facts.st_mode) != 0o600:
            raise BadKeyFile(f"{path} has mode {stat.S_IMODE(facts.st_mode):04o}; run: chmod 600 {path}")
        data = os.read(handle, MAX_FILE + 1)
    finally:
        os.close(handle)
    if len(data) > MAX_FILE:
        raise BadKeyFile(f"{path} is longer than {MAX_FILE} bytes; it is no credential")
    return data


def write_private(path: Path, data: bytes) -> None:
    """Put `data` into a 0600 file, whole or not at all, and on the disk when this returns."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def load(path: Path) -> Credential | None:
    """The credential in `path`, or None when there is no such file. Raises BadKeyFile."""
    try:
        credential = open_json(_credential_decoder, read_private(path))
        check_server_id(credential.server_id)
    except FileNotFoundError:
        return None
    except (ProtocolError, BadTopic) as error:
        raise BadKeyFile(f"{path} holds no credential ({error}); get a new one from the hub's operator") from None
    return credential


def load_for(hub_url: str | None, path: Path) -> Credential | None:
    """`load`, for that hub (None: for whichever it is). Raises BadKeyFile, also when it is for another one."""
    kept = load(path)
    if kept is not None and hub_url is not None and hub_url.rstrip("/") != kept.hub_url.rstrip("/"):
        # Sent to another hub, it would be that hub's to use.
        raise BadKeyFile(f"{path} is for the hub at {kept.hub_url}, not for {hub_url}; name another file")
    return kept


def save(path: Path, credential: Credential) -> None:
    """Keep `credential` in `path`: 0600, whole, durable when this returns."""
    write_private(path, msgspec.json.format(msgspec.json.encode(credential)) + b"\n")


def read_token(path: Path) -> str:
    """A token that stands alone in a private file. Raises BadKeyFile."""
    try:
        token = read_private(path).decode("ascii", "replace").strip()
    except FileNotFoundError:
        raise BadKeyFile(f"there is no {path}; put the token into it and run: chmod 600 {path}") from None
    if not token.isascii() or not token.isprintable() or not token or " " in token:
        raise BadKeyFile(f"{path} holds no token; it is to hold one word, and nothing else")
    return token


def is_local(hub_url: str) -> bool:
    """Whether `hub_url` names this machine: only then can its key file be here."""
    return urlsplit(hub_url).hostname in LOOPBACK_NAMES


async def enrol(hub_url: str, name: str, state_dir: Path, session: aiohttp.ClientSession) -> Credential:
    """Get a credential from the hub on this machine, by its key file in `state_dir`. Nothing is stored.

    The hub proves first that it wrote the file: another program on its port learns nothing and is believed nothing.
    Raises EnrolmentFailed, BadKeyFile, and aiohttp.ClientError or TimeoutError when the hub can't be reached.
    """
    parts = urlsplit(hub_url)
    path = state_dir / local_key_name(parts.port or (443 if parts.scheme == "https" else 80))
    if not is_local(hub_url):
        raise EnrolmentFailed(f"{hub_url} is not on this machine; ask its operator for a credential file")
    key = _read_key(path)
    nonce = secrets.token_bytes(KEY_BYTES).hex()
    base = hub_url.rstrip("/")
    answer = await _post(session, base + LOCAL_CHALLENGE_PATH, LocalChallenge(nonce), _answer_decoder)
    if not same_proof(answer.proof, hub_proof(key, nonce, answer.nonce)):
        if _read_key(path) != key:
            raise HubNotReady(f"{path} was replaced meanwhile: the hub is restarting")
        raise EnrolmentFailed(f"what answers at {hub_url} did not write {path}; stop it, or restart the hub")
    request = LocalEnrol(answer.nonce, home_proof(key, nonce, answer.nonce, name), name)
    enrolled = await _post(session, base + LOCAL_ENROL_PATH, request, _enrolled_decoder)
    try:
        return Credential(hub_url, check_server_id(enrolled.server_id), enrolled.credential)
    except BadTopic as error:
        raise EnrolmentFailed(f"the hub at {hub_url} answered nonsense: {error}") from None


def _read_key(path: Path) -> bytes:
    try:
        key = bytes.fromhex(read_private(path).decode("ascii"))
    except FileNotFoundError:
        raise HubNotReady(
            f"there is no {path}: either no hub of yours runs on that port, or it was started with auto_enrol off,"
            " a public URL or another state directory; ask it for a credential file: bridge-server servers add"
        ) from None
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise BadKeyFile(f"{path} holds no enrolment key; restart the hub, it writes a new one")
    return key


async def _post(session: aiohttp.ClientSession, url: str, body: Any, decoder: msgspec.json.Decoder[_T]) -> _T:
    headers = {"Content-Type": "application/json", "Connection": "close"}
    async with session.post(
        url, data=msgspec.json.encode(body), headers=headers, timeout=TIMEOUT, allow_redirects=False
    ) as response:
        data = bytearray()
        async for chunk in response.content.iter_chunked(8192):
            data += chunk
            if len(data) > MAX_ANSWER:
                raise EnrolmentFailed(f"{url} answered more than {MAX_ANSWER} bytes; it is no hub")
    if from_proxy(response.status, bytes(data)):
        raise HubNotReady(f"{url} answered {response.status}: {PROXY_ALONE}")
    if response.status == 503:
        raise HubNotReady(f"{url} answered 503: {_message(bytes(data))}")
    if response.status != 200:
        raise EnrolmentFailed(f"{url} answered {response.status}: {_message(bytes(data))}")
    try:
        return open_json(decoder, bytes(data))
    except ProtocolError as error:
        raise EnrolmentFailed(f"{url} answered nonsense ({error}); is it a hub of this version?") from None


class _Error(msgspec.Struct):
    code: str = "unknown"
    message: str = ""


class _ErrorBody(msgspec.Struct):
    error: _Error


_error_decoder = msgspec.json.Decoder(_ErrorBody)


def _message(data: bytes) -> str:
    try:
        error = open_json(_error_decoder, data).error
    except ProtocolError:
        return "no reason given"
    return f"{error.code[:40]!r} {error.message[:200]!r}"

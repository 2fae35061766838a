"""Asking the API of a home that runs on this machine."""

import errno
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from bridge_client import local_token
from bridge_client.api import PROGRAM
from bridge_client.keys import BadKeyFile

TIMEOUT: Final = aiohttp.ClientTimeout(total=10.0)
"""How long a home may take to answer before it counts as not running: a busy machine must not make it look dead."""

MAX_ANSWER: Final = 1 << 20

_ANSWER: Final = msgspec.json.Decoder(dict[str, Any])


async def is_home(host: str, port: int) -> bool:
    """Whether what listens there is a home."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - compared, not bound
    url = f"http://[{host}]:{port}/health" if ":" in host else f"http://{host}:{port}/health"
    try:
        async with (
            aiohttp.ClientSession(timeout=TIMEOUT) as session,
            session.get(url, allow_redirects=False) as response,
        ):
            return _ANSWER.decode(await response.content.read(MAX_ANSWER)).get("program") == PROGRAM
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return False


async def status(url: str, state_dir: Path) -> dict[str, Any] | str:
    """What the home at `url` says of itself, or in a few words why it says nothing. Raises BadKeyFile."""
    token = local_token.load(state_dir)
    if token is None:
        return f"there is no token in {local_token.path(state_dir)}: it uses another state directory"
    try:
        async with (
            aiohttp.ClientSession(timeout=TIMEOUT) as session,
            session.get(
                url + "/status", headers={"Authorization": f"Bearer {token}"}, allow_redirects=False
            ) as response,
        ):
            if response.status != 200:
                return f"{url} answers {response.status}"
            return _ANSWER.decode(await response.content.read(MAX_ANSWER))
    except (aiohttp.ClientError, TimeoutError) as error:
        return f"{url} can't be reached: {error or type(error).__name__}"
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return f"{url} answers nonsense: something else listens there"


async def running(url: str | None, state_dir: Path) -> dict[str, Any] | None:
    """What the home at `url` says of itself, None if it says nothing."""
    try:
        said = None if url is None else await status(url, state_dir)
    except BadKeyFile:
        return None
    return said if isinstance(said, dict) else None


async def cant_listen(host: str, port: int, error: OSError) -> str:
    """Why a home's API can't have that address, and what to do."""
    advice = "--api-port names another port (0: any free one), --no-api does without"
    if error.errno == errno.EADDRINUSE and await is_home(host, port):
        return (
            f"another home, with a state directory of its own, answers on {host}:{port} already; for two homes on one"
            f" machine {advice}"
        )
    return f"can't listen on {host}:{port}: {error.strerror or error}; {advice}"

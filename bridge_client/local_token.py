"""The token that opens the home's API on this machine: 256 random bits in one 0600 file of the state directory.

Whoever can read the file is this user. It is made when it is first needed and kept; removing it makes the next start
draw another.
"""

import secrets
from hmac import compare_digest
from pathlib import Path
from typing import Final

from bridge_client.keys import BadKeyFile, read_private, write_private

NAME: Final = "home-api.token"
"""The file's name in the state directory."""

LENGTH: Final = 43
"""Characters of a token: 256 bits in URL-safe base64 without padding."""


def path(state_dir: Path) -> Path:
    """Where the token is kept."""
    return state_dir / NAME


def load(state_dir: Path) -> str | None:
    """The token, None if none was made yet. Raises BadKeyFile unless the file is this user's alone and holds one."""
    file = path(state_dir)
    try:
        text = read_private(file).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return None
    if len(text) != LENGTH or not text.replace("-", "").replace("_", "").isalnum() or not text.isascii():
        raise BadKeyFile(f"{file} holds no token; remove it, and the next start of the home makes a new one")
    return text


def obtain(state_dir: Path) -> str:
    """The token, made and on the disk if there was none. Raises BadKeyFile, OSError."""
    token = load(state_dir)
    if token is None:
        write_private(path(state_dir), secrets.token_urlsafe(32).encode() + b"\n")
        token = load(state_dir)  # what is on the disk counts: another process may have written last
    assert token is not None, "it was written just now"
    return token


def same(one: str, other: str) -> bool:
    """Whether two tokens are equal, in a time that tells nothing about where they differ."""
    return compare_digest(one.encode("utf-8", "surrogatepass"), other.encode("utf-8", "surrogatepass"))

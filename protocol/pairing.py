"""How a home becomes known to a hub. Here: local enrolment, by a key file on the machine that both run on.

The hub leaves a fresh key in a file that only its user can read. Whoever can read it is that user, so both sides prove
that they hold it, over a nonce of each; the key itself crosses no socket:

    home -> hub   POST LOCAL_CHALLENGE_PATH   LocalChallenge {nonce}
    hub -> home                               LocalAnswer {nonce, proof}          proof = hub_proof(...)
    home -> hub   POST LOCAL_ENROL_PATH       LocalEnrol {nonce, proof, name}     the hub's nonce, home_proof(...)
    hub -> home                               LocalEnrolled {server_id, credential}

A nonce serves one exchange. Nonces and proofs are 32 bytes in lowercase hex.
"""

import hmac
import re
from typing import Annotated

from msgspec import Meta, Struct

LOCAL_CHALLENGE_PATH = "/api/servers/local/challenge"
LOCAL_ENROL_PATH = "/api/servers/local/enrol"

KEY_BYTES = 32

Hex32 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]

_SECRETS = re.compile(
    r"(sb[sdo]_)[A-Za-z0-9_-]{16,}"
    r"|(base64url\.bearer\.phx\.)[^\s,;'\"]+"
    r"|(\b(?:bearer|x-api-key)['\"]?[\s:=,]+b?['\"]?)[^\s,;'\"]{16,}"
    r"|([?&](?:token|api_?key)=)[^\s&#'\"]+",
    re.IGNORECASE | re.ASCII,
)

# Each proof has its own label, so that one side's proof can never be played back as the other's.
_HUB_LABEL = b"session-bridge local enrolment 1, hub\0"
_HOME_LABEL = b"session-bridge local enrolment 1, home\0"


class LocalChallenge(Struct, frozen=True):
    """The home asks the hub to prove that it wrote the key file."""

    nonce: Hex32


class LocalAnswer(Struct, frozen=True):
    """The hub's nonce, and its proof."""

    nonce: Hex32
    proof: Hex32


class LocalEnrol(Struct, frozen=True):
    """The home's proof; `nonce` is the hub's, `name` what apps will see."""

    nonce: Hex32
    proof: Hex32
    name: Annotated[str, Meta(max_length=512)]


class LocalEnrolled(Struct, frozen=True):
    """The new identity. Whoever holds `credential` is that home."""

    server_id: str
    credential: str


def local_key_name(port: int) -> str:
    """The name of the key file of the hub that listens on `port`, in the state directory."""
    return f"local-{port}.key"


def scrub(text: str) -> str:
    """`text` without what looks like a credential, wherever it stands: a second line of defence for logs.

    The first is that nothing passes a credential to a logger.
    """
    return _SECRETS.sub(lambda found: f"{next(filter(None, found.groups()))}[redacted]", text)


def hub_proof(key: bytes, home_nonce: str, hub_nonce: str) -> str:
    """What only a hub that holds `key` can say."""
    return _proof(key, _HUB_LABEL, home_nonce, hub_nonce, b"")


def home_proof(key: bytes, home_nonce: str, hub_nonce: str, name: str) -> str:
    """What only a home that holds `key` can say; it covers the name, so that nobody can change that on the way."""
    return _proof(key, _HOME_LABEL, home_nonce, hub_nonce, name.encode("utf-8", "surrogatepass"))


def same_proof(one: str, other: str) -> bool:
    """Compare two proofs in constant time."""
    return hmac.compare_digest(one.encode(), other.encode())


def _proof(key: bytes, label: bytes, home_nonce: str, hub_nonce: str, last: bytes) -> str:
    # Only the last part has no fixed length: no two messages share their bytes.
    return hmac.digest(key, label + bytes.fromhex(home_nonce) + bytes.fromhex(hub_nonce) + last, "sha256").hex()

"""How a home becomes known to a hub, and an app to a home.

Local enrolment, of a home, by a key file on the machine that both run on. The hub leaves a fresh key in a file that
only its user can read. Whoever can read it is that user, so both sides prove that they hold it, over a nonce of each;
the key itself crosses no socket:

    home -> hub   POST LOCAL_CHALLENGE_PATH   LocalChallenge {nonce}
    hub -> home                               LocalAnswer {nonce, proof}          proof = hub_proof(...)
    home -> hub   POST LOCAL_ENROL_PATH       LocalEnrol {nonce, proof, name}     the hub's nonce, home_proof(...)
    hub -> home                               LocalEnrolled {server_id, credential}

A nonce serves one exchange. Nonces and proofs are 32 bytes in lowercase hex.

Pairing, of an app, by a code that its owner carries from the one screen to the other:

    home -> hub   POST PAIRING_CODES_PATH    CodeWanted {scopes?, expires_in?}     -> CodeIssued {code, link, ...}
    app  -> hub   POST PAIRING_REDEEM_PATH   Redeem {code, name}                   -> Redeemed {credential, ...}
    home -> hub   GET  PAIRING_CODES_PATH/id                                       -> PairingState {status, device?}

A code is `HHHH-SSSS-SSSS`: four letters that find the pairing and eight that are its secret. It serves once.
"""

import hmac
import re
from typing import Annotated, Literal, NamedTuple

from msgspec import UNSET, Meta, Struct, UnsetType

from protocol.errors import BadCode

LOCAL_CHALLENGE_PATH = "/api/servers/local/challenge"
LOCAL_ENROL_PATH = "/api/servers/local/enrol"

PAIRING_CODES_PATH = "/api/pairing/codes"
PAIRING_REDEEM_PATH = "/api/pairing/redeem"
SERVERS_PATH = "/api/servers"
ME_PATH = "/api/me"

KEY_BYTES = 32

CODE_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
"""What codes are made of: no vowels (no words), no digits (none to mistake for a letter)."""

HANDLE_LENGTH = 4
SECRET_LENGTH = 8

CODE_SECONDS = 300
"""How long a code serves at most."""

Scope = Literal["view", "approve", "control"]

Hex32 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]

_SECRETS = re.compile(
    r"(sb[sdo]_)[A-Za-z0-9_-]{16,}"
    r"|([#?&]pair=)[^\s&'\"]+"
    rf"|(\b[{CODE_LETTERS}]{{4}}-)[{CODE_LETTERS}]{{4}}-[{CODE_LETTERS}]{{4}}\b"
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


class Code(NamedTuple):
    """A pairing code taken apart. `str()` writes it as people read it."""

    handle: str
    secret: str

    def __str__(self) -> str:
        half = SECRET_LENGTH // 2
        return f"{self.handle}-{self.secret[:half]}-{self.secret[half:]}"


class CodeWanted(Struct, frozen=True):
    """A home asks for a code. `scopes` is what the app will be allowed to do, `expires_in` seconds."""

    scopes: Annotated[tuple[Scope, ...], Meta(min_length=1, max_length=3)] = ("view", "approve")
    expires_in: Annotated[int, Meta(ge=1, le=CODE_SECONDS)] = CODE_SECONDS


class CodeIssued(Struct, frozen=True):
    """A code. `link` opens the hub's own page with the code in the fragment, which no browser sends to any server."""

    pairing_id: Annotated[str, Meta(pattern=r"^[0-9a-z]{1,64}\Z")]
    code: Annotated[str, Meta(max_length=64)]
    expires_at: Annotated[str, Meta(max_length=64)]
    scopes: list[str]
    link: Annotated[str, Meta(max_length=1024)]


class PairedDevice(Struct, frozen=True):
    """The app that redeemed a code."""

    device_id: str
    name: str
    scopes: list[str]


class PairingState(Struct, frozen=True, omit_defaults=True):
    """What became of a code. `closed`: by the home, or by too many wrong secrets."""

    status: Literal["open", "redeemed", "expired", "closed"]
    device: PairedDevice | UnsetType = UNSET


class Redeem(Struct, frozen=True):
    """An app hands in a code; `name` is what the home will see it as."""

    code: str
    name: Annotated[str, Meta(max_length=512)]


class Redeemed(Struct, frozen=True):
    """The app's identity. Whoever holds `credential` is that app."""

    device_id: str
    server_id: str
    server_name: str
    scopes: list[str]
    credential: str


class DeviceListed(Struct, frozen=True):
    """One app of a home, revoked ones too. Times are RFC 3339; `online`: it holds an open socket now."""

    device_id: str
    name: str
    scopes: list[str]
    created_at: str
    revoked_at: str | None
    online: bool


class DeviceList(Struct, frozen=True):
    """The apps of a home, oldest first."""

    devices: list[DeviceListed]


class HomeSeen(Struct, frozen=True):
    """Whether a home is connected, and since when that is so; null before it ever was."""

    online: bool
    since: str | None


class DeviceFacts(Struct, frozen=True, tag_field="kind", tag="device"):
    """The credential is an app's."""

    device_id: str
    name: str
    server_id: str
    server_name: str
    scopes: list[str]
    server: HomeSeen


class ServerFacts(Struct, frozen=True, tag_field="kind", tag="server"):
    """The credential is a home's."""

    server_id: str
    name: str


class OperatorFacts(Struct, frozen=True, tag_field="kind", tag="operator"):
    """The credential is an operator's."""

    name: str


def parse_code(text: str) -> Code:
    """The code that `text` means, in either case, with or without dashes and spaces. Raises BadCode.

    Judged by the text alone: whether there is such a code is another question.
    """
    if len(text) <= _LONGEST_CODE and (found := _CODE.fullmatch(_BETWEEN.sub("", text))):
        return Code(found[1].upper(), found[2].upper())
    raise BadCode(f"a code is {HANDLE_LENGTH + SECRET_LENGTH} letters of {CODE_LETTERS}, such as BCDF-GHJK-LMNP")


def pairing_link(hub_url: str, code: Code) -> str:
    """The link that opens the hub's page and hands it the code."""
    return f"{hub_url.rstrip('/')}/#pair={code}"


def parse_link(text: str) -> tuple[str, Code]:
    """The hub's URL and the code in a pairing link. Raises BadCode."""
    hub_url, mark, code = text.strip().partition("#pair=")
    if not mark or not hub_url.startswith(("http://", "https://")):
        raise BadCode("a pairing link looks like https://hub.example/#pair=BCDF-GHJK-LMNP")
    return hub_url.rstrip("/"), parse_code(code)


_LONGEST_CODE = 64
# What keyboards and chat programs make of a dash or a space.
_BETWEEN = re.compile(r"[\s\u00ad\u200b\u2010-\u2015\u2212\ufe58\ufe63\uff0d-]+")
_CODE = re.compile(
    rf"([{CODE_LETTERS}]{{{HANDLE_LENGTH}}})([{CODE_LETTERS}]{{{SECRET_LENGTH}}})", re.ASCII | re.IGNORECASE
)


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

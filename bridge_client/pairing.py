"""Pairing: the home asks for a code, shows it, and sees who came; an app hands it in. And the apps of a home.

Everything goes over the hub's HTTP API with the credential in a header; nothing here prints, and no exception's text
holds a code or a credential.
"""

import io
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

import aiohttp
import msgspec
import segno

from bridge_client.clock import Clock, SystemClock
from bridge_client.config import check_hub_url
from bridge_client.dial import CredentialRefused
from bridge_client.keys import Credential
from protocol.codec import open_json
from protocol.errors import API_ERRORS, BadCode, ProtocolError
from protocol.pairing import (
    CODE_SECONDS,
    PAIRING_CODES_PATH,
    PAIRING_REDEEM_PATH,
    SERVERS_PATH,
    CodeIssued,
    DeviceList,
    DeviceListed,
    PairedDevice,
    PairingState,
    Redeem,
    Redeemed,
    parse_code,
    parse_link,
)
from protocol.topics import check_server_id

MAX_ANSWER: Final = 1 << 20
TIMEOUT: Final = aiohttp.ClientTimeout(total=10.0)
POLL_SECONDS: Final = 1.0
PATIENCE_SECONDS: Final = 60.0
"""How long a hub may be out of reach while somebody waits for an app."""

_T = TypeVar("_T")


class PairingFailed(Exception):
    """It could not be done; the text says why and what to do. `code` is the hub's (API_ERRORS), None without one."""

    def __init__(self, text: str, code: str | None = None) -> None:
        super().__init__(text)
        self.code = code


class HubUnreachable(PairingFailed):
    """The hub can't be asked now; trying again may help."""


@dataclass(frozen=True, slots=True)
class Invitation:
    """An open code, to be shown."""

    pairing_id: str
    code: str
    link: str
    expires_at: str
    scopes: tuple[str, ...]

    @property
    def qr(self) -> str:
        """`link` as a QR code of half blocks, light on dark: two modules a character, with a border."""
        drawn = io.StringIO()
        segno.make(self.link, error="l", micro=False).terminal(drawn, border=2, compact=True)
        return drawn.getvalue()

    @property
    def poster(self) -> str:
        """What to show a person who has a phone in hand: QR, link and code, as lines of text."""
        return (
            f"{self.qr}\nPair an app: scan this, or open  {self.link}\nor enter the code  {self.code}  ({self.serves})"
        )

    @property
    def serves(self) -> str:
        """How often and until when the code serves, in this machine's time."""
        try:
            return f"serves once, until {datetime.fromisoformat(self.expires_at).astimezone():%H:%M}"
        except ValueError:
            return "serves once"


class HomeApi:
    """The requests of one home to its hub.

    Every method raises PairingFailed (HubUnreachable when it is only the way that fails), or CredentialRefused when the
    hub does not take the credential.
    """

    def __init__(self, credential: Credential, session: aiohttp.ClientSession) -> None:
        self._credential = credential
        self._session = session

    async def invite(self, scopes: tuple[str, ...] | None = None, seconds: int = CODE_SECONDS) -> Invitation:
        """Ask for a code. `scopes` None: what the hub gives by default."""
        wanted: dict[str, Any] = {"expires_in": seconds} | ({"scopes": scopes} if scopes is not None else {})
        issued = await self._call("POST", PAIRING_CODES_PATH, _issued, wanted)
        try:
            code, (_, linked) = parse_code(issued.code), parse_link(issued.link)
        except BadCode as error:
            raise PairingFailed(f"the hub at {self._credential.hub_url} answered nonsense: {error}") from None
        if code != linked or not issued.link.isprintable():
            raise PairingFailed(f"the hub at {self._credential.hub_url} gave a link that does not hold its code")
        return Invitation(issued.pairing_id, str(code), issued.link, issued.expires_at, tuple(issued.scopes))

    async def state(self, pairing_id: str) -> PairingState:
        """What became of a code."""
        return await self._call("GET", f"{PAIRING_CODES_PATH}/{pairing_id}", _state)

    async def close(self, pairing_id: str) -> None:
        """End a code before its time. One that has ended stays as it is."""
        await self._call("DELETE", f"{PAIRING_CODES_PATH}/{pairing_id}", _nothing)

    async def devices(self) -> list[DeviceListed]:
        """The apps of this home, oldest first, revoked ones too."""
        return (await self._call("GET", self._devices_path, _devices)).devices

    async def revoke(self, device_id: str) -> None:
        """End an app; its sockets close within a second. One that is revoked stays so."""
        if not (device_id.isascii() and device_id.isalnum()):
            raise PairingFailed(f"{device_id[:60]!r} is no device id", "not_found")
        await self._call("DELETE", f"{self._devices_path}/{device_id}", _nothing)

    async def wait(self, pairing_id: str, clock: Clock | None = None) -> PairedDevice | None:
        """Wait until an app has redeemed the code; None when it ended otherwise.

        A hub that can't be reached is asked again for PATIENCE_SECONDS.
        """
        clock = clock or SystemClock()
        lost_at: float | None = None
        while True:
            try:
                state = await self.state(pairing_id)
            except HubUnreachable:
                lost_at = clock.monotonic() if lost_at is None else lost_at
                if clock.monotonic() - lost_at >= PATIENCE_SECONDS:
                    raise
            else:
                lost_at = None
                if state.status != "open":
                    return state.device if isinstance(state.device, PairedDevice) else None
            await clock.sleep(POLL_SECONDS)

    @property
    def _devices_path(self) -> str:
        return f"{SERVERS_PATH}/{self._credential.server_id}/devices"

    async def _call(self, method: str, path: str, decoder: "msgspec.json.Decoder[_T]", body: Any = None) -> _T:
        headers = {"Authorization": f"Bearer {self._credential.credential}"}
        return await _ask(self._session, method, self._credential.hub_url, path, decoder, body, headers)


async def invitations(
    home: HomeApi, *, codes: int = 12, clock: Clock | None = None
) -> AsyncIterator[Invitation | PairedDevice]:
    """Codes for a home that starts: one, and another each time one ended unused, `codes` at most, until an app came.

    Yields each Invitation when it opens, and at the end the PairedDevice, if there is one. A code that is open when the
    iterator is closed is closed too. Raises what HomeApi raises.
    """
    for _ in range(codes):
        invitation = await home.invite()
        device, ended = None, False
        try:
            yield invitation
            device = await home.wait(invitation.pairing_id, clock)
            ended = True
        finally:
            if not ended:
                with suppress(PairingFailed, CredentialRefused):
                    await home.close(invitation.pairing_id)
        if device is not None:
            yield device
            return


async def redeem(code: str, name: str, session: aiohttp.ClientSession, hub_url: str | None = None) -> Credential:
    """Hand in a code, or a link that holds one, as an app called `name`. Nothing is stored.

    A bare code needs `hub_url`. Raises BadCode, ValueError for an unusable URL, PairingFailed.
    """
    if "#pair=" in code:
        linked, parsed = parse_link(code)
        hub_url = hub_url or linked
    else:
        parsed = parse_code(code)
    if hub_url is None:
        raise BadCode("a code alone does not say where the hub is: give the link, or the hub's URL beside the code")
    check_hub_url(hub_url)
    body = Redeem(str(parsed), name)
    redeemed: Redeemed = await _ask(session, "POST", hub_url, PAIRING_REDEEM_PATH, _redeemed, body, {})
    try:
        check_server_id(redeemed.server_id)
    except ValueError as error:
        raise PairingFailed(f"the hub at {hub_url} answered nonsense: {error}") from None
    return Credential(hub_url, redeemed.server_id, redeemed.credential, redeemed.device_id)


async def _ask(
    session: aiohttp.ClientSession,
    method: str,
    hub_url: str,
    path: str,
    decoder: "msgspec.json.Decoder[_T]",
    body: Any,
    headers: dict[str, str],
) -> _T:
    url = hub_url.rstrip("/") + path
    options: dict[str, Any] = {"timeout": TIMEOUT, "allow_redirects": False, "headers": headers}
    if body is not None:
        options |= {"data": msgspec.json.encode(body), "headers": headers | {"Content-Type": "application/json"}}
    try:
        async with session.request(method, url, **options) as response:
            status = response.status
            data = bytearray()
            async for chunk in response.content.iter_chunked(8192):
                data += chunk
                if len(data) > MAX_ANSWER:
                    raise PairingFailed(f"{hub_url} answered more than {MAX_ANSWER} bytes; it is no hub")
    except (aiohttp.ClientError, TimeoutError) as error:
        raise HubUnreachable(f"the hub at {hub_url} can't be reached: {error or type(error).__name__}") from None
    if status >= 400 or 300 <= status < 400:
        raise _refusal(hub_url, status, bytes(data))
    try:
        return open_json(decoder, bytes(data) or b"null")
    except ProtocolError as error:
        raise PairingFailed(f"{hub_url} answered nonsense ({error}); is it a hub of this version?") from None


class _Error(msgspec.Struct):
    code: str = "unknown"
    retry_after_ms: int | None = None


class _ErrorBody(msgspec.Struct):
    error: _Error


_issued: Final = msgspec.json.Decoder(CodeIssued)
_state: Final = msgspec.json.Decoder(PairingState)
_devices: Final = msgspec.json.Decoder(DeviceList)
_redeemed: Final = msgspec.json.Decoder(Redeemed)
_nothing: Final = msgspec.json.Decoder(None)
_error_body: Final = msgspec.json.Decoder(_ErrorBody)


def _refusal(hub_url: str, status: int, data: bytes) -> Exception:
    try:
        error = open_json(_error_body, data).error
    except ProtocolError:
        error = _Error()
    if error.code in ("credential_invalid", "credential_revoked"):
        return CredentialRefused(error.code)
    known = API_ERRORS.get(error.code)
    if known is None:
        kind = HubUnreachable if status >= 500 else PairingFailed
        return kind(f"{hub_url} answered {status} without a reason that is known; is it a hub of this version?")
    text = known.meaning
    if error.retry_after_ms is not None:
        text = f"too many codes are open, or were tried; try again in {max(1, round(error.retry_after_ms / 1000))} s"
    kind = HubUnreachable if known.status >= 500 else PairingFailed
    return kind(f"{text} ({error.code})", error.code)

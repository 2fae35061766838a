"""What a hub says of itself, asked from its home's machine."""

from typing import Final

import aiohttp

from bridge_client.dial import MAX_PROXY_ANSWER, PROXY_ALONE, from_proxy

TIMEOUT: Final = aiohttp.ClientTimeout(total=5.0)


async def hub_state(hub_url: str) -> str:
    """What the hub says of itself, or why it can't be asked; "ready" when all is well."""
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(hub_url.rstrip("/") + "/ready", timeout=TIMEOUT, allow_redirects=False) as response,
        ):
            if from_proxy(response.status, await response.content.read(MAX_PROXY_ANSWER)):
                return f"can't be reached: {PROXY_ALONE}"
            states = {200: "ready", 503: "not ready: it is stopping, or can't read its database"}
            return states.get(response.status, f"answers {response.status}: something else is at that URL")
    except aiohttp.ClientConnectorError as error:
        if isinstance(error.os_error, ConnectionRefusedError):
            return "can't be reached: nothing listens there; start it: bridge-server serve"
        return f"can't be reached: {error}"
    except (aiohttp.ClientError, TimeoutError) as error:
        return f"can't be reached: {error or type(error).__name__}"

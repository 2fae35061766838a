"""The viewer's stage: a hub behind a cable that can be cut, one home on it, and a real Chromium."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from playwright.async_api import Browser, Page, expect

from bridge_server.app import Hub
from tests.support.cable import Cable
from tests.support.running_hub import running_hub
from tests.support.scripted_home import ScriptedHome, scripted_home

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-proxy-server"),
)
FLUSH_MS = 1500
"""Chromium drops a database that is only milliseconds old when its last page is left (the viewer then asks the hub for
all again). When it is safe is nothing that a page can see."""

PATIENCE_MS = 20_000
"""How long anything may take on a machine that is busy with other tests."""
expect.set_options(timeout=PATIENCE_MS)

PHONE: Any = {"width": 390, "height": 844}
DESKTOP: Any = {"width": 1180, "height": 760}


@dataclass
class Scene:
    """A hub behind a cable, one home on it (not over the cable), and a browser."""

    hub: Hub
    cable: Cable
    browser: Browser
    server_id: str
    home_token: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.cable.port}/"

    def home(self, epoch: str = "epoch-1", head: int = 0) -> Any:
        return scripted_home(self.hub.url, self.server_id, self.home_token, epoch, "Attic workstation", head)

    async def code(self, scopes: Sequence[str] | None = None) -> dict[str, Any]:
        """Ask for a pairing code, as the home does."""
        wanted = {} if scopes is None else {"scopes": list(scopes)}
        headers = {"Authorization": f"Bearer {self.home_token}"}
        url = f"{self.hub.url}/api/pairing/codes"
        async with aiohttp.ClientSession() as web, web.post(url, json=wanted, headers=headers) as answer:
            assert answer.status == 201, await answer.text()
            issued: dict[str, Any] = await answer.json()
            return issued

    async def page(self, **options: Any) -> Page:
        """A new browser profile's page. Anything the page complains about fails the test that looks at `complaints`."""
        context = await self.browser.new_context(**{"viewport": PHONE, **options})
        page = await context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if _is_complaint(said.text) else None)
        page.complaints = complaints  # type: ignore[attr-defined]
        return page

    async def close(self) -> None:
        for context in self.browser.contexts:
            await context.close()

    async def paired(self, page: Page | None = None, *, scopes: Sequence[str] | None = None, **options: Any) -> Page:
        """A page that has been paired by link."""
        page = page or await self.page(**options)
        await page.goto((await self.code(scopes))["link"])
        await page.get_by_role("button", name="Pair", exact=True).click()
        await expect(page.get_by_role("heading", name="Attic workstation")).to_be_visible()
        return page


def _is_complaint(text: str) -> bool:
    return "Content Security Policy" in text or "TrustedHTML" in text or "Uncaught" in text


@asynccontextmanager
async def staged(browser: Browser, folder: Path, **settings: Any) -> AsyncIterator[Scene]:
    async with AsyncExitStack() as stack:
        cable = await stack.enter_async_context(Cable())
        address = f"http://127.0.0.1:{cable.port}"
        hub = await stack.enter_async_context(running_hub(folder, **{"public_url": address, **settings}))
        cable.lead_to(hub.port)
        server, token = hub.credentials.add_server("Attic workstation")
        scene = Scene(hub, cable, browser, server.server_id, token)
        stack.push_async_callback(scene.close)
        yield scene


def asked(text: str, session: str = "garden") -> dict[str, Any]:
    """The event of one whole message, which stays one row of the transcript."""
    message = {"role": "user", "content": text, "metadata": {}}
    return {"type": "message_appended", "session_id": session, **message, "message": message}


async def tell(home: ScriptedHome, *numbers: int) -> None:
    for number in numbers:
        await home.tell(asked(f"message {number}"))


def messages(page: Page) -> Any:
    return page.locator(".row.message .text")


async def expect_messages(page: Page, *numbers: int) -> None:
    """Exactly these messages, in this order, each once."""
    await expect(messages(page)).to_have_text([f"message {number}" for number in numbers])


async def expect_kept(page: Page, count: int) -> None:
    """The browser comes to hold this many events in its database."""
    await page.wait_for_function(
        """(count) => new Promise((resolve) => {
            indexedDB.open("session-bridge").onsuccess = ({target: {result: db}}) => {
                const all = db.transaction("records").objectStore("records").count();
                all.onsuccess = () => { db.close(); resolve(all.result === count); };
            };
        })""",
        arg=count,
    )


async def open_session(page: Page, title: str = "message 1") -> None:
    await page.get_by_role("link", name=title).click()
    await expect(page.get_by_role("heading", name=title, exact=False).first).to_be_visible()


def state(page: Page) -> Any:
    """The connection's state beside the session that is in front."""
    return page.locator("#session-state")

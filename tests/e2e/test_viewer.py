"""The viewer in a real Chromium, over a cable that can be cut: what a person sees, and that it is true."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, WebSocket, async_playwright, expect

from bridge_server.app import Hub
from deploy.sample_session import ANSWER, FIRST_THOUGHT, QUESTION, turn
from tests.support.cable import Cable
from tests.support.programs import require
from tests.support.running_hub import running_hub
from tests.support.scripted_home import ScriptedHome, scripted_home

pytestmark = [pytest.mark.requires("chromium"), pytest.mark.asyncio(loop_scope="module")]

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-proxy-server"),
)
PHONE: Any = {"width": 390, "height": 844}
DESKTOP: Any = {"width": 1180, "height": 760}
IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
IMAGE_LIMIT = 150_000


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

    def home(self, epoch: str = "epoch-1") -> Any:
        return scripted_home(self.hub.url, self.server_id, self.home_token, epoch, "Attic workstation")

    async def code(self) -> dict[str, Any]:
        """Ask for a pairing code, as the home does."""
        headers = {"Authorization": f"Bearer {self.home_token}"}
        url = f"{self.hub.url}/api/pairing/codes"
        async with aiohttp.ClientSession() as web, web.post(url, json={}, headers=headers) as answer:
            assert answer.status == 201, await answer.text()
            issued: dict[str, Any] = await answer.json()
            return issued

    async def page(self, **options: Any) -> Page:
        """A new browser profile's page. Anything the page complains about fails the test that looks at `complaints`."""
        context = await self.browser.new_context(**{"viewport": PHONE, **options})
        page = await context.new_page()
        page.set_default_timeout(10_000)
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if _is_complaint(said.text) else None)
        page.complaints = complaints  # type: ignore[attr-defined]
        return page

    async def close(self) -> None:
        for context in self.browser.contexts:
            await context.close()

    async def paired(self, page: Page | None = None, **options: Any) -> Page:
        """A page that has been paired by link."""
        page = page or await self.page(**options)
        await page.goto((await self.code())["link"])
        await page.get_by_role("button", name="Pair", exact=True).click()
        await expect(page.get_by_role("heading", name="Attic workstation")).to_be_visible()
        return page


def _is_complaint(text: str) -> bool:
    return "Content Security Policy" in text or "TrustedHTML" in text or "Uncaught" in text


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=require("chromium"), args=FLAGS)
        yield browser
        await browser.close()


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


@pytest_asyncio.fixture(loop_scope="module")
async def scene(browser: Browser, tmp_path: Path) -> AsyncIterator[Scene]:
    async with staged(browser, tmp_path, status_grace=0.05, history_events=40, cold_wait=0.2) as scene:
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


async def open_session(page: Page, title: str = "message 1") -> None:
    await page.get_by_role("link", name=title).click()
    await expect(page.get_by_role("heading", name=title, exact=False).first).to_be_visible()


def state(page: Page) -> Any:
    """The connection's state beside the session that is in front."""
    return page.locator("#session-state")


async def test_pair_by_code_and_watch_a_session_live(scene: Scene) -> None:
    """A42 to A72, A121, A220, A225: pairing by hand, with the keyboard, then one whole request as it happens."""
    page = await scene.page()
    async with scene.home() as home:
        await page.goto(scene.url)
        await expect(page.get_by_label("Pairing code")).to_be_focused()
        await page.keyboard.type("not a code")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert")).to_contain_text("not a pairing code")
        await page.get_by_label("Pairing code").fill("BCDF-GHJK-LMNP")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert")).to_contain_text("No open pairing has this code")
        issued = await scene.code()
        await page.get_by_label("Pairing code").fill(issued["code"].replace("-", " ").lower())
        await page.get_by_label("Name of this device").fill("Kitchen tablet")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("Nothing has happened yet")).to_be_visible()
        assert [entry.identity.name for entry in scene.hub.credentials.devices()] == ["Kitchen tablet"]
        await expect(page.locator("#homes .pill")).to_have_text("Online")

        events = [event for _, event in turn(1)]
        finals = [at for at, event in enumerate(events) if event["type"] == "final"]
        half = finals[-1] - 8
        for event in events[:half]:
            await home.tell(event)
        await page.get_by_role("link", name=QUESTION[:20]).press("Enter")
        await expect(page.get_by_role("heading", name=QUESTION)).to_be_focused()

        grown = messages(page).last
        handle = await grown.element_handle()
        before = await grown.inner_text()
        assert 0 < len(before) < len(ANSWER)
        assert ANSWER.startswith(before.strip())
        await home.tell(events[half])
        await expect(grown).not_to_have_text(before, use_inner_text=True)
        assert await grown.evaluate("(now, then) => now === then", handle), "a partial must grow the row it is in"
        await expect(page.locator(".row.streaming")).to_have_count(1)
        await expect(page.locator(".row.request")).to_have_text("Working…")
        for event in events[half + 1 :]:
            await home.tell(event)
        await expect(page.locator(".row.request")).to_have_text("Done")
        await expect(messages(page)).to_have_text([QUESTION, FIRST_THOUGHT.strip(), ANSWER])
        await expect(page.locator(".row.streaming")).to_have_count(0)
        await expect(page.locator("#announcer")).to_contain_text("Found it.")

        tools = page.locator(".row.tool")
        await expect(tools).to_have_count(2)
        await expect(tools.nth(1)).to_contain_text("no rain last night, low of 17.5 °C")
        await expect(tools.first.locator("pre").last).to_be_hidden()
        await tools.first.locator("summary").press("Enter")
        await expect(tools.first.locator("pre").last).to_contain_text("skipped: threshold 2.0 mm")
        card = page.get_by_role("article").filter(has_text="Watering skipped")
        await expect(card).to_contain_text("warning")
        await card.get_by_role("button", name="Hide: Watering skipped").click()
        await expect(card).to_have_count(0)
    assert page.complaints == []  # type: ignore[attr-defined]


async def test_pair_by_link_and_the_code_leaves_the_address(scene: Scene) -> None:
    page = await scene.page()
    issued = await scene.code()
    await page.goto(issued["link"])
    await expect(page.get_by_label("Pairing code")).to_have_value(issued["code"])
    assert issued["code"] not in page.url
    assert issued["code"] not in json.dumps(await page.evaluate("[location.href, document.referrer, history.state]"))
    await page.get_by_role("button", name="Pair", exact=True).press("Enter")
    await expect(page.get_by_role("heading", name="Attic workstation")).to_be_visible()
    await page.goto(issued["link"])
    await page.get_by_role("button", name="Pair", exact=True).press("Enter")
    await expect(page.get_by_role("alert")).to_contain_text("has been used already")


async def test_drop_the_network_return_and_see_exactly_what_was_missed(scene: Scene) -> None:
    async with scene.home() as home:
        await tell(home, 1, 2, 3)
        page = await scene.paired()
        await open_session(page)
        await expect_messages(page, 1, 2, 3)
        await expect(state(page)).to_have_text("Online")
        scene.cable.cut()
        await expect(state(page)).to_contain_text("Offline since")
        await expect(page.locator("#session-home")).to_contain_text("can't be reached")
        await tell(home, 4, 5, 6)
        await expect_messages(page, 1, 2, 3)
        scene.cable.mend()
        await page.evaluate("dispatchEvent(new Event('online'))")
        await expect(state(page)).to_have_text("Online")
        await expect_messages(page, 1, 2, 3, 4, 5, 6)
        await tell(home, 7)
        await expect_messages(page, 1, 2, 3, 4, 5, 6, 7)
        await expect(page.locator(".row.gap")).to_have_count(0)
    assert page.complaints == []  # type: ignore[attr-defined]


async def test_what_the_hub_no_longer_has_is_told_in_the_place_where_it_is_missing(scene: Scene) -> None:
    async with scene.home() as home:
        await tell(home, 1, 2)
        page = await scene.paired()
        await open_session(page)
        await expect_messages(page, 1, 2)
        scene.cable.cut()
        await expect(state(page)).to_contain_text("Offline")
        await tell(home, *range(3, 63))
        scene.cable.mend()
        await page.evaluate("dispatchEvent(new Event('online'))")
        held = range(23, 63)  # the hub keeps 40
        await expect_messages(page, 1, 2, *held)
        rows = await page.locator(".row").evaluate_all("rows => rows.slice(0, 4).map((row) => row.className)")
        assert rows[2] == "row gap"
        await expect(page.locator(".row.gap")).to_contain_text("Some events are missing here")
        await page.get_by_role("link", name="Back to sessions").click()
        await expect(page.locator(".gap-notice")).to_contain_text("away for longer than the hub keeps events")
        await page.get_by_role("button", name="Understood").click()
        await expect(page.locator(".gap-notice")).to_be_hidden()
        await page.reload()
        await open_session(page)
        await expect_messages(page, 1, 2, *held)
        await expect(page.locator(".row.gap")).to_have_count(1)


async def test_a_replaced_store_at_home_begins_a_new_history(scene: Scene) -> None:
    async with scene.home() as home:
        await tell(home, 1, 2, 3)
        page = await scene.paired()
        await open_session(page)
        await expect_messages(page, 1, 2, 3)
    async with scene.home("epoch-2") as home:
        await tell(home, 4, 5)
        await expect(page.locator(".row.gap")).to_contain_text("A new history begins here")
        await expect_messages(page, 1, 2, 3, 4, 5)
        await page.reload()
        await expect_messages(page, 1, 2, 3, 4, 5)
        await tell(home, 6)
        await expect_messages(page, 1, 2, 3, 4, 5, 6)


async def test_home_offline_is_said_and_its_return_too(scene: Scene) -> None:
    async with scene.home() as home:
        await tell(home, 1)
        page = await scene.paired()
        await expect(page.locator("#homes .pill")).to_have_text("Online")
    await expect(page.locator("#homes .pill")).to_have_text("Waiting for home")
    await expect(page.get_by_text("Home has not been connected to the hub since")).to_be_visible()
    async with scene.home():
        await expect(page.locator("#homes .pill")).to_have_text("Online")


async def test_revoked_while_watching_is_said_within_two_seconds(scene: Scene) -> None:
    async with scene.home() as home:
        await tell(home, 1)
        page = await scene.paired()
        await open_session(page)
        await expect(state(page)).to_have_text("Online")
        (device,) = scene.hub.credentials.devices()
        scene.hub.credentials.revoke_device(device.identity.device_id)  # type: ignore[union-attr]
        await expect(state(page)).to_have_text("Access revoked", timeout=2000)
        await tell(home, 2)
        await expect_messages(page, 1)
        await page.get_by_role("link", name="Back to sessions").click()
        await page.get_by_role("link", name="Pair again").click()
        await scene.paired(page)
        await open_session(page)
        await expect_messages(page, 1, 2)


async def test_revoked_while_away_is_said_although_the_upgrade_only_fails(scene: Scene) -> None:
    async with scene.home() as home:
        await tell(home, 1)
        page = await scene.paired()
        await page.goto("about:blank")
        (device,) = scene.hub.credentials.devices()
        scene.hub.credentials.revoke_device(device.identity.device_id)  # type: ignore[union-attr]
        accepted = scene.cable.accepted
        await page.goto(scene.url)
        await expect(page.locator("#homes .pill")).to_have_text("Access revoked", timeout=2000)
        await expect(page.get_by_text("revoked at home. Nothing new arrives here")).to_be_visible()
        assert scene.cable.accepted - accepted < 12, "it went on trying"


async def test_a_reload_goes_on_behind_its_cursor(scene: Scene) -> None:
    joins: list[dict[str, Any]] = []

    def watch(socket: WebSocket) -> None:
        socket.on("framesent", lambda text: joins.append(json.loads(text)[4]) if "phx_join" in str(text) else None)

    async with scene.home() as home:
        await tell(home, 1, 2, 3)
        page = await scene.paired()
        await open_session(page)
        await expect_messages(page, 1, 2, 3)
        page.on("websocket", watch)
        await page.goto("about:blank")
        await tell(home, 4, 5)
        await page.go_back()
        await expect_messages(page, 1, 2, 3, 4, 5)
        assert joins == [{"partials": "all", "since_id": "3", "epoch": "epoch-1"}]
        await expect(page.locator(".row.mark")).to_have_text("New since your last visit")
        await tell(home, 6)
        await expect_messages(page, 1, 2, 3, 4, 5, 6)
        other = await page.context.new_page()  # a second tab of the same browser
        await other.goto(page.url)
        await expect_messages(other, 1, 2, 3, 4, 5, 6)
        await tell(home, 7)
        await expect_messages(other, 1, 2, 3, 4, 5, 6, 7)
        await page.reload()
        await expect_messages(page, 1, 2, 3, 4, 5, 6, 7)


async def test_forgetting_a_server_leaves_nothing_in_the_browser(scene: Scene) -> None:
    async with scene.home() as home:
        await tell(home, 1, 2)
        page = await scene.paired()
        await open_session(page)
        await expect_messages(page, 1, 2)
        await page.get_by_role("link", name="Back to sessions").click()
        await page.reload()  # what was received has been written down
        page.on("dialog", lambda dialog: asyncio.ensure_future(dialog.accept()))
        await page.get_by_text("About this pairing").click()
        await expect(page.get_by_text("kept in this browser only")).to_be_visible()
        await page.get_by_role("button", name="Forget this server").click()
        await expect(page.get_by_label("Pairing code")).to_be_visible()
        assert "sbd_" not in json.dumps(await page.evaluate("({...localStorage})"))
        count = """() => new Promise((resolve) => {
            indexedDB.open("session-bridge").onsuccess = ({target: {result: db}}) => {
                const all = db.transaction("records").objectStore("records").count();
                all.onsuccess = () => { db.close(); resolve(all.result); };
            };
        })"""
        for _ in range(100):
            if await page.evaluate(count) == 0:
                break
        assert await page.evaluate(count) == 0


async def test_what_events_say_is_never_markup(scene: Scene) -> None:
    bad = '<img src=x onerror="window.owned=1"><script>window.owned=1</script>&lt;b&gt;'
    record = {"id": "n", "severity": "error", "title": bad, "body": bad}
    async with scene.home() as home:
        page = await scene.paired()
        await home.tell(asked(bad, session=bad))
        await home.tell({"type": bad, "session_id": bad, "more": bad})
        await home.tell({"type": "error", "session_id": bad, "request_id": bad, "detail": bad})
        await home.tell({"type": "session_notification_created", "session_id": bad, "notification": record})
        await home.tell({"type": "application_notification_created", "notification": record})
        calls = [{"id": bad, "function": {"name": bad, "arguments": bad}}]
        await home.tell({"type": "tool_calls", "session_id": bad, "request_id": bad, "tool_calls": calls})
        await page.locator(".sessions a").click()
        await expect(messages(page)).to_have_text(bad)
        for summary in await page.locator(".row summary").all():
            await summary.click()
        await expect(page.locator(".row.tool pre").first).to_contain_text("onerror")
        assert await page.locator("img, .row script, #homes script").count() == 0
        assert await page.evaluate("window.owned") is None
    assert page.complaints == []  # type: ignore[attr-defined]


async def test_a_session_of_100_000_events_stays_within_bounds_and_stays_quick(scene: Scene) -> None:
    """Without a hub's history: the page's own modules, in this browser, with one session of that many events."""
    page = await scene.page(viewport=DESKTOP)
    await page.goto(scene.url)
    measured = await page.evaluate(
        """async () => {
            const [{Transcript}, {TranscriptView}] = await Promise.all(
                ["transcript", "view"].map((name) => import(`/static/${name}.js`)));
            document.body.dataset.page = "session";
            document.getElementById("session").hidden = false;
            const scroller = document.createElement("div");
            scroller.id = "scroller";
            document.querySelector(".stage").replaceChildren(scroller); // not the one the page itself draws into
            const view = new TranscriptView(scroller, scroller.parentElement);
            const transcript = new Transcript();
            const session = transcript.session("s");
            view.show(session);
            let slowest = 0, most = 0;
            for (let n = 0; n < 100_000; n++) {
                const request_id = `r${Math.floor(n / 4)}`;
                transcript.apply(n % 2
                    ? {type: "partial", session_id: "s", request_id, message: {content: `word ${n} `}}
                    : {type: "odd", session_id: "s", n});
                if (n % 1000 === 999) {
                    const start = performance.now();
                    view.draw();
                    scroller.scrollHeight;
                    slowest = Math.max(slowest, performance.now() - start);
                    most = Math.max(most, scroller.querySelectorAll(".row").length);
                    await new Promise((resolve) => setTimeout(resolve));
                }
            }
            const shown = () => [...scroller.querySelectorAll(".row")].length;
            const earlier = scroller.querySelector(".more");
            const counts = [shown()];
            for (let times = 0; times < 6; times++) { earlier.click(); counts.push(shown()); }
            const atTop = scroller.scrollTop;
            for (let n = 0; n < 50; n++) transcript.apply({type: "odd", session_id: "s", n});
            view.draw();
            const moved = scroller.scrollTop - atTop;
            const jump = document.querySelector(".latest:not([hidden])");
            jump.click();
            const end = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight;
            return {slowest, most, counts, moved, after: shown(), end, items: session.items.length};
        }"""
    )
    assert measured["most"] <= 600
    assert measured["counts"] == [150, 300, 450, 600, 600, 600, 600]
    assert measured["moved"] == 0, "news must not move what is being read"
    assert measured["after"] == 150
    assert measured["end"] < 2
    assert measured["items"] <= 20_000
    assert measured["slowest"] < 2000, f"one frame took {measured['slowest']} ms"


async def test_one_main_landmark_and_names_for_everything_that_can_be_pressed(scene: Scene) -> None:
    async with scene.home() as home:
        for _, event in turn(1):
            await home.tell(event)
        page = await scene.paired(viewport=DESKTOP)
        for place in ("#/", "#/pair", await page.locator(".sessions a").get_attribute("href") or ""):
            await page.evaluate("(place) => (location.hash = place)", place)
            await expect(page.get_by_role("main")).to_have_count(1)
            await expect(page.get_by_role("navigation", name="Servers and sessions")).to_be_visible()
            nameless = await page.evaluate(
                """() => [...document.querySelectorAll("a, button, input, summary")]
                    .filter((one) => one.checkVisibility())
                    .filter((one) => !(one.getAttribute("aria-label") || one.textContent.trim() || one.labels?.length))
                    .map((one) => one.outerHTML)"""
            )
            assert nameless == []
        await expect(page.locator("[aria-live]")).to_have_count(1)
        await expect(page.locator("#scroller")).to_have_attribute("role", "region")
        await expect(page.locator(".sessions a")).to_have_attribute("aria-current", "page")


async def test_pictures(browser: Browser, tmp_path: Path) -> None:
    """What the README shows: drawn anew into docs/images with SESSION_BRIDGE_PICTURES=1, else only drawn."""
    folder = IMAGES if os.environ.get("SESSION_BRIDGE_PICTURES") else tmp_path
    async with staged(browser, tmp_path) as scene, scene.home() as home:
        await home.tell(asked("Plan the seed order for spring", session="seeds"))
        await home.tell({"type": "final", "session_id": "seeds", "request_id": "r", "messages": [PLANNED]})
        events = [event for _, event in turn(1)]
        for event in events[: [event["type"] for event in events].index("checkpoint") - 6]:
            await home.tell(event)
        for scheme in ("light", "dark"):
            page = await scene.page(color_scheme=scheme, device_scale_factor=1.25, reduced_motion="reduce")
            await page.goto((await scene.code())["link"])
            await page.get_by_label("Name of this device").fill("Pocket phone")
            await page.screenshot(path=folder / f"viewer-pair-{scheme}.png")
            await scene.paired(page)
            await expect(page.locator(".sessions a")).to_have_count(2)
            await page.screenshot(path=folder / f"viewer-sessions-{scheme}.png")
            await page.get_by_role("link", name=QUESTION[:20]).click()
            await expect(state(page)).to_have_text("Online")
            await expect(page.get_by_role("article")).to_have_count(1)
            await page.screenshot(path=folder / f"viewer-session-{scheme}.png")
            await page.set_viewport_size(DESKTOP)
            await page.screenshot(path=folder / f"viewer-desktop-{scheme}.png", scale="css")
            overflow = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert overflow <= 0
    pictures = sorted(folder.glob("viewer-*.png"))
    assert len(pictures) == 8
    assert {path.name: path.stat().st_size for path in pictures if path.stat().st_size > IMAGE_LIMIT} == {}


PLANNED = {"role": "assistant", "content": "Order by mid-January: the leeks sell out first.", "metadata": {}}

"""The viewer as a page: it draws no stranger's markup, stays quick and in bounds, and is there for everybody."""

import os
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from deploy.sample_session import QUESTION, turn
from tests.e2e.viewer.stage import DESKTOP, Scene, asked, messages, staged, state

pytestmark = [pytest.mark.requires("chromium"), pytest.mark.asyncio(loop_scope="module")]

IMAGES = Path(__file__).resolve().parents[3] / "docs" / "images"
IMAGE_LIMIT = 150_000


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

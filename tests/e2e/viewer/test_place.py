"""Where a reader is in a session, in a real Chromium: whoever is at the end stays there, whoever went up stays too."""

from typing import Any

import pytest
from playwright.async_api import BrowserContext, Page, expect

from tests.e2e.viewer.stage import FLUSH_MS, Scene, asked, expect_kept, messages, open_session, tell

pytestmark = [pytest.mark.requires("chromium"), pytest.mark.asyncio(loop_scope="module")]

AT_END = """() => {
    const {scrollTop, clientHeight, scrollHeight} = document.getElementById("scroller");
    return scrollTop > 0 && scrollHeight - scrollTop - clientHeight < 2;
}"""
PLACE = """(text) => {
    const row = [...document.querySelectorAll(".row")].find((one) => one.querySelector(".text")?.textContent === text);
    const top = document.getElementById("scroller").getBoundingClientRect().top;
    return Math.round(row.getBoundingClientRect().top - top);
}"""
# Two frames: whatever changes the layout is drawn in the first, and what follows from it in the second.
DRAWN = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"


def noticed(number: int, verb: str = "created") -> dict[str, Any]:
    record = {"id": f"n{number}", "severity": "warning", "title": f"Notice {number}", "body": "It has to be looked at."}
    return {"type": f"session_notification_{verb}", "session_id": "garden", "notification": record}


async def cards_are(page: Page, count: int) -> None:
    await expect(page.get_by_role("article")).to_have_count(count)
    await page.evaluate(DRAWN)


async def test_the_first_opening_stands_at_the_end_and_stays_there_through_any_layout_change(scene: Scene) -> None:
    async with scene.home() as home:
        await tell(home, *range(1, 31))
        await home.tell(noticed(0))
        page = await scene.paired()
        await open_session(page)
        await cards_are(page, 1)
        await page.wait_for_function(AT_END)
        await expect(page.get_by_role("button", name="Jump to latest")).to_be_hidden()
        await home.tell(noticed(1))
        await cards_are(page, 2)
        await page.wait_for_function(AT_END)
        await home.tell(noticed(2))
        await cards_are(page, 1)  # the others are folded
        await expect(page.get_by_role("article")).to_contain_text("Notice 2")
        await page.wait_for_function(AT_END)
        await page.get_by_role("button", name="Show 2 more").click()
        await cards_are(page, 3)
        await page.wait_for_function(AT_END)
        await page.get_by_role("button", name="Dismiss: Notice 2").click()
        await cards_are(page, 2)
        await page.wait_for_function(AT_END)
        for size in ({"width": 390, "height": 420}, {"width": 320, "height": 700}, {"width": 844, "height": 390}):
            await page.set_viewport_size(size)  # type: ignore[arg-type]
            await page.evaluate(DRAWN)
            await page.wait_for_function(AT_END)
        await home.tell(asked("one more"))
        await expect(messages(page).last).to_have_text("one more")
        await page.wait_for_function(AT_END)


async def test_whoever_went_up_stays_where_they_are(scene: Scene) -> None:
    started = {"session_id": "garden", "request_id": "r"}
    async with scene.home() as home:
        await home.tell(asked("message 1"))
        await home.tell({"type": "request_started", **started})
        for number in range(2, 31):
            await home.tell(asked(f"message {number} {'and more ' * 30}"))
        page = await scene.paired()
        await open_session(page)
        await page.wait_for_function(AT_END)
        text = await messages(page).nth(3).inner_text()
        await messages(page).nth(3).evaluate("(one) => one.closest('.row').scrollIntoView({block: 'start'})")
        await expect(page.get_by_role("button", name="Jump to latest")).to_be_visible()
        await page.evaluate(DRAWN)
        place = await page.evaluate(PLACE, text)
        for number in range(2):
            await home.tell(noticed(number))
        await cards_are(page, 2)
        assert await page.evaluate(PLACE, text) == place
        await home.tell({"type": "request_completed", **started})  # takes a row away above
        await expect(page.locator(".row.request:visible")).to_have_text("Done")
        await page.evaluate(DRAWN)
        assert abs(await page.evaluate(PLACE, text) - place) <= 1
        await page.set_viewport_size({"width": 320, "height": 700})  # every text above breaks elsewhere
        await page.evaluate(DRAWN)
        assert abs(await page.evaluate(PLACE, text) - place) <= 1
        await page.get_by_role("button", name="Jump to latest").click()
        await page.wait_for_function(AT_END)


async def test_a_long_result_unfolded_at_the_end_is_read_from_its_top(scene: Scene) -> None:
    result = {"role": "tool", "content": "a line\n" * 200, "metadata": {"tool_call_id": "1", "tool_name": "look"}}
    async with scene.home() as home:
        await tell(home, *range(1, 31))
        await home.tell({"type": "tool_results", "session_id": "garden", "request_id": "r", "messages": [result]})
        page = await scene.paired()
        await open_session(page)
        await page.wait_for_function(AT_END)
        summary = page.locator(".row.tool summary")
        before = await summary.bounding_box()
        await summary.click()
        await expect(page.locator(".row.tool pre.output")).to_be_visible()
        await page.evaluate(DRAWN)
        assert await summary.bounding_box() == before
        await home.tell(asked("meanwhile"))
        await expect(messages(page).last).to_have_text("meanwhile")
        await page.evaluate(DRAWN)
        assert await summary.bounding_box() == before
        await summary.click()
        await home.tell(asked("and then"))
        await expect(messages(page).last).to_have_text("and then")


async def test_after_a_return_the_place_where_it_began_is_a_press_away(scene: Scene, profile: BrowserContext) -> None:
    """With so few that all are drawn at once, whether they come before the first drawing or after it."""
    async with scene.home() as home:
        await tell(home, *range(1, 16))
        page = await scene.paired(await profile.new_page())
        await open_session(page)
        await expect(messages(page)).to_have_count(15)
        news = page.get_by_role("button", name="New since your last visit")
        await expect(news).to_be_hidden()
        await expect_kept(page, 15)
        await page.wait_for_timeout(FLUSH_MS)
        await page.goto("about:blank")
        await tell(home, *range(16, 31))
        await page.go_back()
        await expect(messages(page)).to_have_count(30)
        await page.wait_for_function(AT_END)
        button, text = await news.bounding_box(), await page.locator("#scroller").bounding_box()
        assert button is not None
        assert text is not None
        assert button["height"] < 50, "one line"
        assert button["y"] + button["height"] <= text["y"], "beside the text, not over it"
        await news.click()
        await expect(page.locator(".row.mark")).to_be_in_viewport()
        await expect(news).to_be_hidden()
        await page.get_by_role("button", name="Jump to latest").click()
        await page.wait_for_function(AT_END)
        await expect(news).to_be_hidden()

"""The viewer in a real Chromium, over a cable that can be cut: what a person sees, and that it is true."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import BrowserContext, WebSocket, expect

from deploy.sample_session import ANSWER, FIRST_THOUGHT, QUESTION, turn
from tests.e2e.viewer.stage import FLUSH_MS, Scene, expect_kept, expect_messages, messages, open_session, state, tell
from tests.support.running_hub import running_hub

pytestmark = [pytest.mark.requires("chromium"), pytest.mark.asyncio(loop_scope="module")]


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
        await expect(messages(page)).to_have_text([QUESTION, FIRST_THOUGHT.strip(), ANSWER])
        await expect(page.locator(".row:visible").last).to_have_text("Done")
        await expect(page.locator(".row.request:visible")).to_have_count(1)
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
        await card.get_by_role("button", name="Dismiss: Watering skipped").click()
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
        await expect(page.locator("#session-trouble")).to_contain_text("can't be reached")
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
        await expect(page.locator(".gap-notice")).to_contain_text("The hub no longer holds what happened meanwhile")
        await page.get_by_role("button", name="Understood").click()
        await expect(page.locator(".gap-notice")).to_be_hidden()
        await page.wait_for_timeout(FLUSH_MS)
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
        await page.wait_for_timeout(FLUSH_MS)
        await page.reload()
        await expect_messages(page, 1, 2, 3, 4, 5)
        await tell(home, 6)
        await expect_messages(page, 1, 2, 3, 4, 5, 6)


async def test_a_hub_that_lost_its_memory_says_so_and_gets_it_back_from_home(scene: Scene, tmp_path: Path) -> None:
    async with scene.home() as home:
        await tell(home, 1, 2, 3)
        page = await scene.paired()
        await open_session(page)
        await expect_messages(page, 1, 2, 3)
    await scene.hub.close()
    await expect(state(page)).to_contain_text("Offline since")
    async with running_hub(tmp_path, public_url=scene.url, cold_wait=0.2, status_grace=0.05) as hub:
        scene.hub = hub
        scene.cable.lead_to(hub.port)
        await page.evaluate("dispatchEvent(new Event('online'))")
        await expect(state(page)).to_have_text("Waiting for home")
        await expect(page.locator(".row.gap")).to_contain_text("Events may be missing here")
        async with scene.home(head=5) as home:
            await tell(home, 1, 2, 3, 4, 5)
            await expect_messages(page, 1, 2, 3, 4, 5)
            await expect(state(page)).to_have_text("Online")
            await expect(page.locator(".row.gap")).to_be_hidden()
            await expect(page.locator(".gap-notice")).to_be_hidden()
            await expect_kept(page, 5)
            await page.wait_for_timeout(FLUSH_MS)
            await page.reload()
            await expect_messages(page, 1, 2, 3, 4, 5)
            await expect(page.locator(".row.gap")).to_have_count(0)


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
        accepted = scene.cable.accepted
        scene.hub.credentials.revoke_device(device.identity.device_id)  # type: ignore[union-attr]
        await expect(state(page)).to_have_text("Access revoked")
        assert scene.cable.accepted - accepted < 4, "the hub said it, nothing had to be tried"
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
        await expect(page.locator("#homes .pill")).to_have_text("Access revoked")
        await expect(page.get_by_text("revoked at home. Nothing new arrives here")).to_be_visible()
        assert scene.cable.accepted - accepted < 12, "it went on trying"


async def test_a_reload_goes_on_behind_its_cursor(scene: Scene, profile: BrowserContext) -> None:
    joins: list[dict[str, Any]] = []

    def watch(socket: WebSocket) -> None:
        socket.on("framesent", lambda text: joins.append(json.loads(text)[4]) if "phx_join" in str(text) else None)

    async with scene.home() as home:
        await tell(home, 1, 2, 3)
        page = await scene.paired(await profile.new_page())
        await open_session(page)
        await expect_messages(page, 1, 2, 3)
        await expect_kept(page, 3)
        await page.wait_for_timeout(FLUSH_MS)
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
        await expect_kept(page, 7)
        await page.wait_for_timeout(FLUSH_MS)
        await page.reload()
        await expect_messages(page, 1, 2, 3, 4, 5, 6, 7)


async def test_forgetting_a_server_leaves_nothing_in_the_browser(scene: Scene) -> None:
    async with scene.home() as home:
        await tell(home, 1, 2)
        page = await scene.paired()
        await open_session(page)
        await expect_messages(page, 1, 2)
        await page.get_by_role("link", name="Back to sessions").click()
        await expect_kept(page, 2)
        page.on("dialog", lambda dialog: asyncio.ensure_future(dialog.accept()))
        await page.get_by_text("About this pairing").click()
        await expect(page.get_by_text("kept in this browser only")).to_be_visible()
        await page.get_by_role("button", name="Forget this server").click()
        await expect(page.get_by_label("Pairing code")).to_be_visible()
        assert "sbd_" not in json.dumps(await page.evaluate("({...localStorage})"))
        await expect_kept(page, 0)

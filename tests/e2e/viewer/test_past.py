"""What a home has removed from its events, in the viewer: sessions and messages are there all the same, or words."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import BrowserContext, Page, expect

from bridge_client.store.sqlite_retention import SqliteRetention
from tests.e2e.viewer.stage import FLUSH_MS, Scene, asked, expect_kept, messages, open_session
from tests.support.remote_home import RemoteHome, remote_home

pytestmark = [pytest.mark.requires("chromium"), pytest.mark.asyncio(loop_scope="module")]

NOT_KEPT = "What came before is not kept as events any more."


@asynccontextmanager
async def a_home(scene: Scene, folder: Path) -> AsyncIterator[RemoteHome]:
    """Not yet connected."""
    server = (scene.server_id, scene.home_token)
    async with remote_home(scene.hub, folder, server=server, name="Attic workstation") as remote:
        yield remote


async def remove_all_but(remote: RemoteHome, count: int) -> None:
    """As retention does; the home that did it goes on from memory, the next one has no more than these."""
    stock = SqliteRetention(remote.home.store)
    last = await remote.home.store.head() or 0
    await stock.mark(1e9)
    while (await stock.remove((await stock.marks())[-1], last - count + 1)).more:
        pass
    assert await remote.home.store.floor() == last - count


async def back(page: Page) -> None:
    await page.get_by_role("link", name="Back to sessions").click()


async def test_sessions_and_messages_outlive_their_events(
    scene: Scene, tmp_path: Path, profile: BrowserContext
) -> None:
    async with a_home(scene, tmp_path) as remote:
        for name in ("ivy", "roses"):
            await remote.home.create(name, metadata={"title": f"About {name}"})
            await remote.home.append(f"Why {name}?", session_id=name)
        await remote.home.create("plain")
        await remote.home.create("garden")
        await remote.home.append("message 1", session_id="garden")
        await remote.home.append("message 2", role="assistant", session_id="garden")
        for number in range(3):
            await remote.home.store.publish({"type": "note", "session_id": "notes", "content": f"note {number}"})
        await remote.home.append("message 3", session_id="garden")
        await remove_all_but(remote, 3)  # a note, and what the last message is told by
    async with a_home(scene, tmp_path) as remote:
        page = await profile.new_page()
        async with remote.connected():
            await scene.paired(page)
            titles = page.locator(".sessions a .title")
            await expect(titles).to_have_text(["message 3", "notes", "plain", "About roses", "About ivy"])
            await page.get_by_role("link", name="About roses").click()
            await expect(messages(page)).to_have_text(["Why roses?"])
            await expect(page.get_by_text(NOT_KEPT)).to_be_visible()
            await expect(page.get_by_title("Copy the id")).to_have_text("roses")
            await back(page)
            await page.get_by_role("link", name="notes").click()
            await expect(page.locator(".row").first).to_have_text(NOT_KEPT)
            await expect(page.get_by_title("Copy the id")).to_be_hidden()  # it is the title
            await back(page)
            await open_session(page, "message 3")
            await expect(messages(page)).to_have_text(["message 1", "message 2", "message 3"])
            await expect(page.locator(".row.start")).to_contain_text(NOT_KEPT)
            await remote.home.append("message 4", session_id="garden")
            await expect(messages(page)).to_have_text([f"message {number}" for number in range(1, 5)])
            await expect_kept(page, 6)
        # Home is away, and the page is loaded anew: it says that something was before.
        await expect(page.locator("#session-state")).to_have_text("Waiting for home")
        await page.wait_for_timeout(FLUSH_MS)
        await page.reload()
        await expect(messages(page)).to_have_text(["message 3", "message 4"])
        await expect(page.locator(".row").first).to_have_text(
            "What came before, if anything did, was not received as events."
        )
        async with remote.connected():
            await expect(messages(page)).to_have_text([f"message {number}" for number in range(1, 5)])


async def test_whoever_was_away_too_long_is_told_that_home_removed_what_is_missing(
    scene: Scene, tmp_path: Path, profile: BrowserContext
) -> None:
    page = await profile.new_page()
    async with a_home(scene, tmp_path) as remote:
        await remote.home.create("garden")
        await remote.home.append("message 1", session_id="garden")
        async with remote.connected():
            await scene.paired(page)
            await open_session(page)
            await expect_kept(page, 4)
            await page.wait_for_timeout(FLUSH_MS)
            await page.goto("about:blank")
            for number in range(60):
                await remote.home.store.publish(asked(f"meanwhile {number}", session="elsewhere"))
            while scene.hub.homes.get(scene.server_id).head != await remote.home.store.head():
                await asyncio.sleep(0.005)
        await remove_all_but(remote, 10)
    async with a_home(scene, tmp_path) as remote, remote.connected():
        await page.go_back()
        await expect(page.locator(".row.gap")).to_contain_text("Home has removed them meanwhile")
        await back(page)
        await expect(page.locator(".gap-notice")).to_contain_text("Home has removed them meanwhile")
        await page.get_by_role("link", name="meanwhile").click()
        await expect(page.locator(".row").first).to_have_text(NOT_KEPT)


async def test_a_fork_shows_what_it_copied(scene: Scene, tmp_path: Path) -> None:
    async with a_home(scene, tmp_path) as remote:
        await remote.home.create("garden")
        await remote.home.append("message 1", session_id="garden")
        await remote.home.append("message 2", role="assistant", session_id="garden")
        body = {"session_id": "copy"}
        await remote.home.do("POST", "/sessions/garden/fork", body, status=201)
        await remote.home.do("PATCH", "/sessions/copy/messages/0", {"content": "What?"})
        async with remote.connected():
            page = await scene.paired()
            await page.locator('.sessions a[href$="/copy"]').click()
            await expect(page.locator(".row")).to_contain_text(
                ["message 1", "message 2", "begun as a copy of garden", "Message 1 was changed to: What?"]
            )
            await expect(page.locator("#session-title")).to_have_text("message 1")


async def test_links_to_nothing_say_so(scene: Scene, tmp_path: Path) -> None:
    async with a_home(scene, tmp_path) as remote, remote.connected():
        await remote.home.create("garden")
        page = await scene.page()
        await page.goto(f"{scene.url}#pair=AAAA")
        await expect(page.get_by_role("alert").first).to_contain_text("That is not a pairing code")
        await scene.paired(page)
        await page.evaluate("(home) => (location.hash = `#/${home}/nowhere`)", scene.server_id)
        await expect(page.get_by_role("heading", name="No such session")).to_be_visible()
        await expect(page.get_by_text("Home has no session of this id")).to_be_visible()
        await page.evaluate("(home) => (location.hash = `#/${home}/garden`)", scene.server_id)
        await expect(page.get_by_role("heading", name="garden")).to_be_visible()
        await expect(page.get_by_text("Home has no session of this id")).to_be_hidden()

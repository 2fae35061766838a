"""Where the viewer lets its reader write, and how a session is begun there, with a real home through the hub."""

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.e2e.viewer.stage import DESKTOP, Scene, asked, messages, open_session
from tests.support.remote_home import RemoteHome, remote_home
from tests.support.scripted_runner import ScriptedRunner, reply

pytestmark = [pytest.mark.requires("chromium"), pytest.mark.asyncio(loop_scope="module")]

ALL = ("view", "approve", "control")


def a_home(scene: Scene, folder: Path, runner: ScriptedRunner | None) -> Any:
    server = (scene.server_id, scene.home_token)
    return remote_home(scene.hub, folder, runner, server=server, name="Attic workstation")


async def with_a_session(remote: RemoteHome, session: str = "garden") -> None:
    await remote.home.create(session)
    await remote.home.append("message 1", session_id=session)


def field(page: Page) -> Any:
    return page.get_by_label("Message", exact=True)


def new_session(page: Page) -> Any:
    return page.get_by_role("button", name="New session")


async def test_a_session_is_begun_with_its_first_message(scene: Scene, tmp_path: Path) -> None:
    async with a_home(scene, tmp_path, ScriptedRunner(*reply("Basil."))) as remote:
        page = await scene.page()
        async with remote.connected():
            await scene.paired(page, scopes=ALL)
            await new_session(page).press("Enter")
            await expect(page.get_by_role("heading", name="New session")).to_be_visible()
            await expect(field(page)).to_be_focused()
            await expect(page.get_by_title("Copy the id")).to_be_hidden()  # it has none at home yet
            await page.reload()  # the address stays good
            await field(page).fill("What shall I plant?")
            await field(page).press("Enter")
            await expect(messages(page)).to_have_text(["What shall I plant?", "Basil."])
            await expect(page.get_by_role("heading", name="What shall I plant?")).to_be_visible()
            (made,) = (await remote.home.do("GET", "/sessions"))["sessions"]
            assert page.url.endswith("/" + made["session_id"])
            await page.get_by_role("link", name="Back to sessions").click()
            await expect(page.locator(".sessions a .title")).to_have_text(["What shall I plant?"])
            await expect(new_session(page)).to_be_visible()
        await expect(page.locator("#homes .pill")).to_have_text("Waiting for home")
        await expect(new_session(page)).to_be_hidden()
        assert page.complaints == []  # type: ignore[attr-defined]


async def test_what_is_only_watched_takes_no_message_and_says_why(scene: Scene, tmp_path: Path) -> None:
    async with a_home(scene, tmp_path, ScriptedRunner(*reply("x"))) as remote, remote.connected():
        await with_a_session(remote)
        await remote.home.store.publish(asked("a stranger", session="elsewhere"))
        await remote.home.store.publish(asked("a file's", session="/notes/a file"))
        page, reader = await scene.paired(scopes=ALL), await scene.paired(scopes=("view",))
        await expect(new_session(page)).to_be_visible()
        await open_session(page, "a file's")
        await expect(page.locator("#composer-why")).to_be_visible()
        await page.get_by_role("link", name="Back to sessions").click()
        await open_session(page, "a stranger")
        await expect(page.get_by_text("Only watched here: its agent runs elsewhere.")).to_be_visible()
        await expect(field(page)).to_be_hidden()
        await page.get_by_role("link", name="Back to sessions").click()
        await open_session(page)
        await expect(field(page)).to_be_visible()
        await expect(page.locator("#composer-why")).to_be_hidden()
        # Once home has it, it takes messages: nobody has to load the page anew.
        await page.go_back()
        await open_session(page, "a stranger")
        await expect(page.locator("#composer-why")).to_be_visible()
        await remote.home.create("elsewhere")
        await expect(field(page)).to_be_visible()
        # Who may only read is offered nothing.
        await expect(reader.locator("#homes .pill")).to_have_text("Online")
        await expect(reader.locator(".sessions a")).to_have_count(3)
        await expect(new_session(reader)).to_be_hidden()
        await open_session(reader, "a stranger")
        await expect(field(reader)).to_be_hidden()
        await expect(reader.locator("#composer-why")).to_be_hidden()


async def test_where_nobody_answers_nothing_is_begun_or_written(scene: Scene, tmp_path: Path) -> None:
    async with a_home(scene, tmp_path, None) as remote, remote.connected():
        await with_a_session(remote)
        page = await scene.paired(scopes=ALL)
        await open_session(page)
        await expect(page.get_by_text("no runner is set at home")).to_be_visible()
        await expect(field(page)).to_be_hidden()
        await page.get_by_role("link", name="Back to sessions").click()
        await expect(new_session(page)).to_be_hidden()


async def test_a_home_that_takes_no_requests_is_only_watched(scene: Scene, tmp_path: Path) -> None:
    async with a_home(scene, tmp_path, ScriptedRunner(*reply("x"))) as remote, remote.connected(requests=False):
        await with_a_session(remote)
        page = await scene.paired(scopes=ALL)
        await open_session(page)
        await expect(page.get_by_text("this home takes no requests")).to_be_visible()
        await expect(field(page)).to_be_hidden()


async def test_a_sessions_id_is_copied_whole(scene: Scene, tmp_path: Path) -> None:
    session = "7d9f2c1e-1111-4c5b-9a8e-123456789abc"
    async with a_home(scene, tmp_path, None) as remote, remote.connected():
        await with_a_session(remote, session)
        page = await scene.paired(viewport=DESKTOP)
        await page.context.grant_permissions(["clipboard-read"])
        await open_session(page)
        button = page.get_by_role("button", name=f"Copy the id: {session}")
        await expect(button).to_have_text("7d9f2c1e…")
        await button.press("Enter")
        await expect(page.locator("#announcer")).to_contain_text("The id is copied.")
        assert await page.evaluate("navigator.clipboard.readText()") == session
        await expect(button).to_be_focused()
        await expect(button).to_have_text("7d9f2c1e…")
        assert page.complaints == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("by_style", [True, False])
async def test_the_field_grows_with_its_text_to_six_lines_then_scrolls(
    scene: Scene, tmp_path: Path, by_style: bool
) -> None:
    async with a_home(scene, tmp_path, ScriptedRunner(*reply("x"))) as remote, remote.connected():
        await with_a_session(remote)
        page = await scene.page()
        if not by_style:  # as browsers do that know no field-sizing
            await page.add_init_script("CSS.supports = () => false")
        await scene.paired(page, scopes=ALL)
        await open_session(page)
        await expect(field(page)).to_be_visible()
        if not by_style:
            await field(page).evaluate("(field) => (field.style.fieldSizing = 'fixed')")

        async def lines(count: int) -> Any:
            await field(page).fill("\n".join(["a line"] * count))
            return await field(page).evaluate("({clientHeight, scrollHeight}) => [clientHeight, scrollHeight]")

        sizes = [await lines(count) for count in (1, 2, 6, 7, 40)]
        heights = [height for height, _ in sizes]
        assert heights[0] < heights[1] < heights[2] == heights[3] == heights[4]
        assert [height < whole for height, whole in sizes] == [False, False, False, True, True]
        assert await lines(1) == sizes[0], "it shrinks with its text"
        await lines(4)
        await page.get_by_role("button", name="Send").click()
        await expect(page.locator(".row:visible").last).to_have_text("Done")
        await expect(field(page)).to_have_value("")
        await expect(field(page)).to_have_js_property("clientHeight", heights[0])

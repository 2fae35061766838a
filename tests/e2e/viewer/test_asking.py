"""The viewer asks a real home through the hub: a message, a permission, a stop; and says what became of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from bridge_client.runners import RunnerError
from tests.e2e.viewer.stage import Scene, messages, open_session
from tests.support.remote_home import RemoteHome, remote_home
from tests.support.scripted_runner import ScriptedRunner, gate, partial, reply

pytestmark = [pytest.mark.requires("chromium"), pytest.mark.asyncio(loop_scope="module")]

ALL = ("view", "approve", "control")
CALL = {"id": "c1", "type": "function", "function": {"name": "open_valve", "arguments": '{"minutes":5}'}}


@asynccontextmanager
async def a_home(scene: Scene, folder: Path, runner: ScriptedRunner) -> AsyncIterator[RemoteHome]:
    """One with a session that begins with `message 1`; not yet connected."""
    server = (scene.server_id, scene.home_token)
    async with remote_home(scene.hub, folder, runner, server=server, name="Attic workstation") as remote:
        await remote.home.create("garden")
        await remote.home.append("message 1", session_id="garden")
        yield remote


def field(page: Page) -> Any:
    return page.get_by_label("Message", exact=True)


async def test_a_message_is_sent_from_the_viewer_and_answered(scene: Scene, tmp_path: Path) -> None:
    async with a_home(scene, tmp_path, ScriptedRunner(*reply("They are ", "watered."))) as remote:
        page = await scene.page()
        async with remote.connected():
            await scene.paired(page, scopes=ALL)
            await open_session(page)
            send = page.get_by_role("button", name="Send")
            await expect(send).to_be_disabled()
            await field(page).fill("And the roses?")
            await field(page).press("Enter")
            await expect(messages(page)).to_have_text(["message 1", "And the roses?", "They are watered."])
            await expect(page.locator(".row:visible").last).to_have_text("Done")
            await expect(field(page)).to_have_value("")
            history = await remote.home.do("GET", "/sessions/garden/messages")
            assert [one["content"] for one in history["messages"]] == [
                "message 1",
                "And the roses?",
                "They are watered.",
            ]
            await field(page).fill("Still there?")
            await expect(send).to_be_enabled()
            await page.reload()  # what was sent is gone from the field for good, what was not is there
            await expect(field(page)).to_have_value("Still there?")
            await expect(send).to_be_enabled()
        # Home is away: what was written stays, and can't be sent.
        await expect(send).to_be_disabled()
        await expect(field(page)).to_have_value("Still there?")
        await expect(field(page)).to_have_attribute("placeholder", "Home can't be reached: nothing can be sent now")
        async with remote.connected():
            await expect(send).to_be_enabled()
            await send.press("Enter")
            await expect(messages(page)).to_have_count(5)
        assert page.complaints == []  # type: ignore[attr-defined]


async def test_what_home_refuses_is_said_and_the_text_stays(scene: Scene, tmp_path: Path) -> None:
    async with a_home(scene, tmp_path, ScriptedRunner(*reply("x"))) as remote, remote.connected():
        page = await scene.paired(scopes=ALL)
        await open_session(page)
        await field(page).fill("hello?")
        await remote.home.store.transact([], lambda file, _: file.execute("DELETE FROM sessions"))
        await page.get_by_role("button", name="Send").click()
        await expect(page.locator("#composer").get_by_role("alert")).to_contain_text("no session 'garden'")
        await expect(field(page)).to_have_value("hello?")


async def test_a_permission_is_given_from_the_viewer(scene: Scene, tmp_path: Path) -> None:
    async def ask(context: Any) -> None:
        assert await context.approve(CALL)

    script = [{"type": "tool_calls", "tool_calls": [CALL]}, ask, *reply("Done.")]
    async with a_home(scene, tmp_path, ScriptedRunner(*script)) as remote, remote.connected():
        page = await scene.paired(scopes=("view", "approve"))
        reader = await scene.paired(scopes=("view",))
        for one in (page, reader):
            await open_session(one)
        await expect(field(page)).to_be_hidden()  # it may answer, not write
        request = await remote.home.send("water them", session_id="garden")
        card = page.locator("[data-approval]")
        await expect(card).to_contain_text("May it use open_valve?")
        await expect(card).to_contain_text('"minutes": 5')
        await expect(reader.locator("[data-approval]")).to_contain_text("this browser may only read")
        await expect(reader.locator("[data-approval] button")).to_have_count(0)
        await expect(page.locator(".row.tool .state")).to_have_text("waiting for you")
        await expect(page.locator("#session-doing")).to_have_text("waiting for you")
        await page.get_by_role("button", name="Allow: open_valve").press("Enter")
        await expect(messages(page).last).to_have_text("Done.")
        for one in (page, reader):
            await expect(one.locator("[data-approval]")).to_have_count(0)
            await expect(one.locator(".row.note").last).to_have_text("Allowed: open_valve")
        assert (await remote.home.until("tool_approval_granted"))["request_id"] == request


async def test_a_request_that_fails_shows_what_was_printed_and_where_the_answer_broke_off(
    scene: Scene, tmp_path: Path
) -> None:
    result = {"role": "tool", "content": "no such file", "metadata": {"tool_call_id": "c1", "is_error": True}}
    error = RunnerError("agent exited with status 1", provider_error={"stderr": "run /login first"})
    runner = ScriptedRunner(
        {"type": "tool_calls", "tool_calls": [CALL]},
        {"type": "tool_results", "messages": [result]},
        partial("I am"),
        error,
    )
    async with a_home(scene, tmp_path, runner) as remote, remote.connected():
        page = await scene.paired()
        await open_session(page)
        await remote.home.send("go", session_id="garden")
        row = page.locator(".row.error")
        await expect(row).to_contain_text("agent exited with status 1")
        await row.get_by_text("What it printed").click()
        await expect(row.get_by_text("run /login first")).to_be_visible()
        await expect(page.locator(".row.tool .state")).to_have_text("failed")
        await expect(page.get_by_text("broke off here")).to_be_visible()
        assert page.complaints == []  # type: ignore[attr-defined]


async def test_a_request_is_stopped_from_the_viewer(scene: Scene, tmp_path: Path) -> None:
    _, wait = gate()
    async with a_home(scene, tmp_path, ScriptedRunner(wait)) as remote, remote.connected():
        page = await scene.paired(scopes=ALL)
        await open_session(page)
        await field(page).fill("never mind")
        await page.get_by_role("button", name="Send").click()
        await page.get_by_role("button", name="Stop").click()
        await expect(page.locator(".row.request:visible").last).to_have_text("Cancelled")
        await expect(page.get_by_role("button", name="Stop")).to_be_hidden()
        assert (await remote.home.until("request_cancelled"))["session_id"] == "garden"

"""Notifications in the viewer, of a real home through the hub: where they stand, and that dismissing one is true."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.e2e.viewer.stage import DESKTOP, Scene, open_session
from tests.support.remote_home import RemoteHome, remote_home

pytestmark = [pytest.mark.requires("chromium"), pytest.mark.asyncio(loop_scope="module")]

APPLICATION, SESSION = "/application/notifications", "/sessions/garden/notifications"


@asynccontextmanager
async def a_home(scene: Scene, folder: Path) -> AsyncIterator[RemoteHome]:
    """One with a session that begins with `message 1`; not yet connected."""
    server = (scene.server_id, scene.home_token)
    async with remote_home(scene.hub, folder, server=server, name="Attic workstation") as remote:
        await remote.home.create("garden")
        await remote.home.append("message 1", session_id="garden")
        yield remote


async def stands_above(first: Any, second: Any) -> bool:
    above, below = await first.bounding_box(), await second.bounding_box()
    return bool(above["y"] + above["height"] <= below["y"])


async def make(remote: RemoteHome, path: str, title: str, presentation: str, **more: Any) -> Any:
    body = {"title": title, "key": title, "display": {"presentation": presentation}, **more}
    answer = await remote.home.ask(path, method="POST", json=body)
    assert answer.status in (200, 201), answer.body
    return answer.json()["notification"]


async def statuses(remote: RemoteHome, path: str) -> dict[str, str]:
    answer = await remote.home.do("GET", path + "?include_terminal=true")
    return {record["title"]: record["status"] for record in answer["notifications"]}


def titles(page: Page, place: str) -> Any:
    return page.locator(f"{place} .card h3")


def button(page: Page, verb: str, title: str) -> Any:
    return page.get_by_role("button", name=f"{verb}: {title}")


async def test_A171_to_A183_each_stands_where_it_belongs_on_a_phone_and_on_a_desktop(
    scene: Scene, tmp_path: Path
) -> None:
    async with a_home(scene, tmp_path) as remote, remote.connected():
        phone, desktop = await scene.paired(), await scene.paired(viewport=DESKTOP)
        for presentation in ("inline", "banner", "modal"):
            await make(remote, SESSION, f"s-{presentation}", presentation)
        await make(remote, APPLICATION, "a-banner", "banner", severity="error", body="It has to be looked at.")
        # The list on a phone: the home's own, without a label; the session's wait for their surface (A178, A180, A181).
        await expect(titles(phone, "#homes .cards")).to_have_text(["errora-banner"])
        await expect(phone.locator("#homes .card .from:visible")).to_have_count(0)
        await expect(phone.get_by_role("dialog")).to_have_count(0)
        assert await stands_above(phone.locator("#homes .card"), phone.locator(".sessions a").first)  # A179
        # A desktop: one rail above the placeholder, by the home's name (A182, A183).
        await expect(titles(desktop, "#rail")).to_have_text(["errora-banner"])
        await expect(desktop.locator("#rail .from")).to_have_text("Attic workstation")
        await expect(titles(desktop, "#homes")).to_have_count(0)
        assert await stands_above(desktop.locator("#rail"), desktop.locator("#start-words"))

        await open_session(phone)
        await expect(phone.get_by_role("dialog")).to_contain_text("s-modal")  # A176: in front of its own session
        await expect(titles(phone, "#session-notices [data-place=rail]")).to_have_text(["infos-banner"])  # A174
        await expect(titles(phone, "#session-notices [data-place=region]")).to_have_text(["infos-inline"])  # A175
        await phone.keyboard.press("Escape")
        await expect(phone.get_by_role("dialog")).to_have_count(0)
        await expect(titles(phone, "#session-notices [data-place=rail]")).to_have_text(["infos-modal", "infos-banner"])
        await make(remote, APPLICATION, "a-modal", "modal")
        await open_session(desktop)
        await expect(titles(desktop, "#rail")).to_have_text(
            ["errora-banner", "infoa-modal", "infos-modal", "infos-banner"]
        )
        await expect(desktop.locator("#rail .card:visible")).to_have_count(1)
        await desktop.get_by_role("button", name="Show 3 more").press("Enter")
        await expect(desktop.locator("#rail .from:visible")).to_have_text(["Attic workstation"] * 2)
        await expect(titles(desktop, "#session-notices")).to_have_text(["infos-inline"])
        await expect(phone.get_by_role("dialog")).to_have_count(0)  # A180: the list is not in front
        await phone.get_by_role("link", name="Back to sessions").click()
        await expect(phone.get_by_role("dialog")).to_contain_text("a-modal")  # A173

        # Dismissed there, it is over on every device and at home.
        await button(phone, "Dismiss", "a-modal").press("Enter")
        await expect(phone.get_by_role("dialog")).to_have_count(0)
        await expect(titles(desktop, "#rail")).to_have_text(["errora-banner", "infos-modal", "infos-banner"])
        await button(desktop, "Dismiss", "a-banner").click()
        await expect(titles(desktop, "#rail")).to_have_text(["infos-modal", "infos-banner"])
        await button(desktop, "Dismiss", "s-inline").click()
        await expect(titles(phone, "#homes")).to_have_count(0)
        await expect(titles(desktop, "#session-notices")).to_have_count(0)
        assert await statuses(remote, APPLICATION) == {"a-banner": "dismissed", "a-modal": "dismissed"}
        assert (await statuses(remote, SESSION))["s-inline"] == "dismissed"
        for page in (phone, desktop):
            assert page.complaints == []  # type: ignore[attr-defined]


async def test_A149_to_A152_home_is_away_when_it_is_dismissed(scene: Scene, tmp_path: Path) -> None:
    async with a_home(scene, tmp_path) as remote:
        async with remote.connected():
            phone, desktop = await scene.paired(), await scene.paired(viewport=DESKTOP)
            for title in ("one", "two", "three"):
                await make(remote, APPLICATION, title, "banner")
            await expect(titles(phone, "#homes")).to_have_count(3)
            await expect(titles(desktop, "#rail")).to_have_count(3)
            await phone.get_by_role("button", name="Show 2 more").click()
        await expect(desktop.locator("#homes .pill")).to_have_text("Waiting for home")
        await button(desktop, "Dismiss", "three").click()  # A152
        await expect(desktop.locator("#rail .card:visible")).to_contain_text("Home is not connected")
        await expect(button(desktop, "Dismiss", "three")).to_be_enabled()
        await expect(phone.locator("#homes .pill")).to_have_text("Waiting for home")
        for title in ("one", "two"):
            await button(phone, "Dismiss", title).click()  # A149
        await expect(titles(phone, "#homes")).to_have_text(["infothree"])
        await make(remote, APPLICATION, "two", "banner", body="It has become worse.")  # A151
        async with remote.connected():  # A150
            await expect(titles(desktop, "#rail")).to_have_text(["infotwo", "infothree"])
            await expect(titles(phone, "#homes")).to_have_text(["infotwo", "infothree"])
            await expect(phone.locator("#homes .card").first).to_contain_text("It has become worse.")
            await button(desktop, "Dismiss", "three").click()  # tried again
            await expect(titles(phone, "#homes")).to_have_text(["infotwo"])
            assert await statuses(remote, APPLICATION) == {"one": "dismissed", "two": "pending", "three": "dismissed"}


async def test_A132_A135_what_no_event_tells_any_more_is_read_from_home(scene: Scene, tmp_path: Path) -> None:
    async with a_home(scene, tmp_path) as remote:
        for path in (APPLICATION, SESSION):
            await make(remote, path, f"of {path}", "banner")
        await make(remote, APPLICATION, "too late", "banner", display={"presentation": "banner", "ttl_seconds": 1e-9})
        await remote.home.store.transact(
            [], lambda file, _: file.execute("DELETE FROM events WHERE data LIKE '%_notification_created%'")
        )
        async with remote.connected():
            page = await scene.paired()
            await expect(titles(page, "#homes")).to_have_text([f"infoof {APPLICATION}"])  # A130
            await open_session(page)
            await expect(titles(page, "#session-notices")).to_have_text([f"infoof {SESSION}"])
            await page.reload()
            await expect(titles(page, "#session-notices")).to_have_text([f"infoof {SESSION}"])


async def test_A177_A184_A188_what_an_action_answers_with_is_shown_where_it_was_done(
    scene: Scene, tmp_path: Path
) -> None:
    async with a_home(scene, tmp_path) as remote, remote.connected():
        phone = await scene.paired()
        for title in ("one", "two"):
            await make(remote, SESSION, title, "inline")
        await open_session(phone)
        remote.display = {"title": "Noted", "body": "It will not be said again.", "severity": "success"}
        await button(phone, "Dismiss", "one").click()
        dialog = phone.get_by_role("dialog")
        await expect(dialog).to_contain_text("Noted")
        remote.display = {"title": "Of the home", "presentation": "banner", "owner": "connection"}
        await button(phone, "Close", "Noted").click()
        await expect(dialog).to_have_count(0)
        await button(phone, "Dismiss", "two").click()
        await expect(phone.locator("#session-notices .card")).to_have_count(0)
        await phone.get_by_role("link", name="Back to sessions").click()
        await expect(titles(phone, "#homes")).to_have_text(["infoOf the home"])


@pytest.mark.parametrize("wide", [False, True])
async def test_of_many_an_error_stands_and_the_rest_is_a_key_away(scene: Scene, tmp_path: Path, wide: bool) -> None:
    async with a_home(scene, tmp_path) as remote, remote.connected():
        page = await (scene.paired(viewport=DESKTOP) if wide else scene.paired())
        place = page.locator("#rail" if wide else "#homes .cards")
        shown, fold = place.locator(".card:visible"), place.locator("[aria-expanded]")
        await make(remote, APPLICATION, "first", "banner", severity="error")
        await make(remote, APPLICATION, "second", "banner")
        await expect(shown).to_have_count(2)
        await expect(fold).to_have_count(0)
        await make(remote, APPLICATION, "third", "banner", body="word " * 500)
        await expect(shown).to_have_count(1)
        await expect(shown).to_contain_text("first")  # nothing newer hides an error
        assert (await place.bounding_box())["height"] < 150
        await expect(fold).to_have_text("2 more")
        await expect(fold).to_have_attribute("aria-expanded", "false")
        await fold.press("Enter")
        await expect(fold).to_have_attribute("aria-expanded", "true")
        await expect(fold).to_be_focused()
        await expect(shown.locator("h3")).to_have_text(["errorfirst", "infothird", "infosecond"])
        # What comes meanwhile takes its place above, and the focus from nobody.
        await button(page, "Dismiss", "second").focus()
        await make(remote, APPLICATION, "second", "banner", body="It has become worse.")
        await expect(shown.locator("h3")).to_have_text(["errorfirst", "infosecond", "infothird"])
        await expect(button(page, "Dismiss", "second")).to_be_focused()
        await fold.press("Enter")
        await expect(shown).to_have_count(1)
        await button(page, "Dismiss", "first").click()
        await expect(shown.locator("h3")).to_have_text(["infosecond", "infothird"])  # so few need no fold
        await expect(shown.first).to_contain_text("It has become worse.")
        await expect(fold).to_have_count(0)
        assert page.complaints == []  # type: ignore[attr-defined]

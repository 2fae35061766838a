"""Notifications from afar: apps make, read and dismiss them through the hub, as far as their scopes go."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bridge_client.app_client import AppClient, Event
from bridge_client.app_requests import RequestFailed
from bridge_server.app import Hub
from tests.support.remote_home import remote_home

PATH = "/application/notifications"


async def told(app: AppClient, type: str) -> dict[str, Any]:
    """The first event of this type, waited for."""
    while True:
        item = await anext(app)
        if isinstance(item, Event) and item.type == type:
            return item.value


async def test_A160_A161_A166_one_app_makes_it_another_dismisses_it_and_all_are_told(hub: Hub, tmp_path: Path) -> None:
    async with asyncio.timeout(40), remote_home(hub, tmp_path) as remote, remote.connected():
        scopes = (("view", "control"), ("view", "approve"), ("view",))
        maker, dismisser, reader = (remote.app(remote.device(one)[1], cursor=(None, 0)) for one in scopes)
        async with maker, dismisser, reader:
            made = (await maker.request("POST", PATH, {"title": "Look"})).json()["notification"]
            assert (await dismisser.request("GET", PATH)).json()["notifications"] == [made]
            dismiss = f"{PATH}/{made['id']}/dismiss"
            for app in (maker, reader):
                with pytest.raises(RequestFailed, match="forbidden"):
                    await app.request("POST", dismiss, {})
            stale = await dismisser.request("POST", dismiss, {"expected_revision": 7})
            assert (stale.status, stale.json()["error"]["notification"]) == (409, made)
            done = await dismisser.request("POST", dismiss, {"expected_revision": made["revision"]})
            assert done.json()["notification"]["status"] == "dismissed"
            event = await told(reader, "application_notification_dismissed")
            assert event["notification"] == done.json()["notification"]

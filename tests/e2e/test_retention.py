"""A home that keeps little, put together as `bridge-client serve` does, with a real hub: what goes, what is said."""

import asyncio
from pathlib import Path

import pytest

from bridge_client import app, cli_home, doctor, retention
from bridge_client.app_client import AppClient, Event, Gap
from bridge_client.config import Config
from bridge_client.keys import Credential
from bridge_client.retention import Extent, Rules
from bridge_client.retention_report import Outlook
from tests.bridge_client.scripted_hub import NoWait
from tests.e2e.test_dead_letters import serving
from tests.support.running_hub import running_hub

DEADLINE = 60.0


async def test_2_5_old_events_go_once_the_hub_has_them_and_everybody_can_see_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "INTERVAL", 0.05)
    config = Config(state_dir=tmp_path / "home", api=False, name="Home", retain_bytes=1)
    async with asyncio.timeout(DEADLINE), running_hub(tmp_path, history_events=100) as hub:
        server, token = hub.credentials.add_server("home")
        credential = Credential(hub.url, server.server_id, token)
        async with app.open_store(config) as store:
            await asyncio.gather(*(store.publish({"type": "note", "session_id": "s"}) for _ in range(1_200)))
        async with app.open_source(config) as opened, app.answering(config, opened) as report:  # no forwarder
            while (await report.facts())["stored"]["due_to"] != "1000":
                await asyncio.sleep(0.01)
            assert (await report.facts())["stored"]["removed_to"] is None
        found, check = await looked_at(config)
        waits = "events up to 1000 may go once the hub has acknowledged them"
        assert f"keeps at most 1 byte, as configured here; {waits}" in found
        assert (check.status, check.remedy) == ("warning", "run `bridge-client serve` with its hub in reach")

        async with serving(config, credential) as (store, report):
            while await store.floor() < 1_000:
                await asyncio.sleep(0.01)
            facts = (await report.facts())["stored"]
            assert (facts["events"], facts["oldest_id"], facts["removed_to"]) == (200, "1001", "1000")
            assert facts["file_bytes"] > facts["wal_bytes"] > 0
            assert (facts["due_to"], facts["retain_bytes"], facts["retain_days"]) == (None, 1, None)
            _, device = hub.credentials.add_device(server.server_id, "phone")
            items: list[Event | Gap] = []
            async with AppClient(hub.url, device, server.server_id, cursor=(store.epoch, 400), rng=NoWait()) as client:
                async for item in client:
                    if isinstance(item, Event | Gap):
                        items.append(item)
                    if isinstance(item, Event) and item.event_id == 1_200:
                        break
            assert items[0] == Gap("expired", 400, 1_000)
            assert [item.event_id for item in items[1:] if isinstance(item, Event)] == list(range(1_001, 1_201))
        found, check = await looked_at(config)
        assert "keeps at most 1 byte, as configured here; removed up to event 1000" in found
        assert "200 events of " in found
        assert "; oldest event 1001" in found
        assert check.status == "ok"


async def looked_at(config: Config) -> tuple[str, doctor.Finding]:
    """What `status` prints and `doctor` finds."""
    lines = cli_home._told(await app.status(config), await app.outlook(config))
    checks = {check.check: check async for check in doctor.examine(config, app.open_store, app.outlook, app.standing)}
    return "\n".join(f"{name} {value}" for name, value in lines), checks["retention"]


def test_sizes_are_told_in_units_that_say_something() -> None:
    extent = Extent(3, 2_500, 1_964, 0.0, 1_963, 7 << 20, 2 << 20, True, 4 << 20)
    said = Outlook(extent, Rules(None, 1 << 20), 0)
    assert said.holds == (
        "3 events of 2.4 KiB in a file of 7.0 MiB (2.0 MiB of it free for events to come and 4.0 MiB of it a log of"
        " late changes); oldest event 1964, published 1970-01-01T00:00:00.000Z or before"
    )
    assert said.keeps == "keeps at most 1.0 MiB, as configured here; removed up to event 1963"
    empty = Outlook(Extent(0, 0, None, None, 0, 3 << 30, 0, True), Rules(None, 900), 0)
    assert (empty.holds, empty.keeps[:23]) == ("no event, in a file of 3.0 GiB", "keeps at most 900 bytes")


async def test_settings_of_retention(tmp_path: Path) -> None:
    assert Config(state_dir=tmp_path).retention.keep_all
    config = Config.from_env({"SESSION_BRIDGE_RETAIN_DAYS": "1.5", "SESSION_BRIDGE_RETAIN_BYTES": "1000000"})
    assert config.retention == (1.5 * 86_400, 1_000_000)
    assert await app.outlook(Config(state_dir=tmp_path)) is None, "and no file is made"
    for name in ("RETAIN_DAYS", "RETAIN_BYTES"):
        with pytest.raises(ValueError, match=name):
            Config.from_env({f"SESSION_BRIDGE_{name}": "0"})

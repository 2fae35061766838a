"""What an operator can read: every metric is there from the start, and says what happened."""

import json
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from bridge_server.app import Hub
from bridge_server.metrics import Metrics, Reading
from tests.support.raw_socket import RawSocket
from tests.support.running_hub import running_hub
from tests.support.scripted_home import scripted_home

NAMES = {
    "bridge_connections",
    "bridge_homes_online",
    "bridge_longpoll_sessions",
    "bridge_events",
    "bridge_deliveries",
    "bridge_queued_bytes",
    "bridge_busy_peers",
    "bridge_cuts",
    "bridge_backfills",
    "bridge_backfill_pages",
    "bridge_backfill_failures",
    "bridge_refused_messages",
    "bridge_merged_parts",
    "bridge_queue_marks",
    "bridge_refused_upgrades",
}


def read(hub: Hub) -> dict[str, float]:
    """Samples as `name{label}`."""
    return {
        sample.name + "".join(f"{{{value}}}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(hub.metrics.text().decode())
        for sample in family.samples
    }


def test_readings_become_the_exposition_format() -> None:
    values = {"a": 1.0, 'b"\n\\': 2.5}
    metrics = Metrics(
        (
            Reading("some_things", "gauge", "Things.", lambda: values, "kind"),
            Reading("some_count", "counter", "A count.", lambda: {"": 3}),
        )
    )
    families = {family.name: family for family in text_string_to_metric_families(metrics.text().decode())}
    assert {sample.labels["kind"]: sample.value for sample in families["some_things"].samples} == values
    assert [(sample.name, sample.value) for sample in families["some_count"].samples] == [("some_count_total", 3.0)]
    values["a"] = 7.0  # read at scrape time, kept nowhere
    assert b'some_things{kind="a"} 7.0' in metrics.text()


async def test_what_happens_on_the_hub_is_counted(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as hub:
        families = {family.name for family in text_string_to_metric_families(hub.metrics.text().decode())}
        assert families == NAMES
        server, token = hub.credentials.add_server("home")
        _, device_token = hub.credentials.add_device(server.server_id, "phone")
        async with RawSocket(hub.port) as refused:
            assert (await refused.upgrade("/socket/websocket?vsn=2.0.0")).status == 403
        async with (
            scripted_home(hub.url, server.server_id, token) as home,
            RawSocket(hub.port) as app,
        ):
            await app.upgrade("/socket/websocket?vsn=2.0.0", f"Authorization: Bearer {device_token}")
            app.send_text(json.dumps(["1", "1", f"app:{server.server_id}", "phx_join", {}]))
            while json.loads(await app.text())[3] != "replay_complete":
                pass
            await home.publish(3)
            for _ in range(3):
                assert json.loads(await app.text())[3] == "session_event"
            now = read(hub)
        assert now["bridge_connections{server}"] == now["bridge_connections{device}"] == 1
        assert now["bridge_connections{other}"] == 0
        assert now["bridge_homes_online"] == 1
        assert now["bridge_events_total"] == now["bridge_deliveries_total"] == 3
        assert now["bridge_refused_upgrades_total{credential_missing}"] == 1
        assert now["bridge_queued_bytes"] == now["bridge_busy_peers"] == now["bridge_cuts_total{stuck}"] == 0

"""The app client: each event once and in order, or told of the gap; the cursor is a place it can come back to."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bridge_client.app_client import QUEUE_LIMIT, AppClient, CaughtUp, Event, Gap, Item, Place, ServerStatus, TopicEnded
from bridge_client.dial import CredentialRefused
from bridge_client.link import JoinRejected
from protocol.client import JOIN_TIMEOUT
from tests.bridge_client.scripted_hub import DEADLINE, NoWait, Peer, ScriptedHub, scripted_hub

SERVER_ID = "abcdefghijklmnopqrstuvwxyz"
ONLINE = {"online": True, "since": "t0", "name": "home"}


def reply(head: str | None = "0", recovered: bool | None = True, gap: Any = None, epoch: str | None = "e") -> Any:
    return {"epoch": epoch, "head_id": head, "recovered": recovered, "gap": gap, "server": ONLINE}


def complete(to: str | None, recovered: bool = True, gap: Any = None, epoch: str | None = "e") -> Any:
    return {"epoch": epoch, "to_id": to, "recovered": recovered, "gap": gap}


def gap(reason: str, from_id: str | None, resume_after: str | None) -> Any:
    return {"reason": reason, "from_id": from_id, "resume_after": resume_after}


async def send(peer: Peer, *event_ids: int) -> None:
    for n in event_ids:
        await peer.push("session_event", {"event": {"event_id": str(n), "type": "note", "session_id": "s"}})


@asynccontextmanager
async def receiving(hub: ScriptedHub, cursor: Any = None, **more: Any) -> AsyncIterator[AppClient]:
    client = AppClient(hub.url, "credential", SERVER_ID, cursor=cursor, rng=NoWait(), **more)
    async with asyncio.timeout(DEADLINE), client:
        yield client


async def take(client: AppClient, count: int) -> list[Any]:
    """The next `count` items, events as their ids, without status."""
    taken: list[Item] = []
    async for item in client:
        if not isinstance(item, ServerStatus):
            taken.append(item)
        if len(taken) == count:
            break
    return [item.event_id if isinstance(item, Event) else item for item in taken]


async def test_what_is_said_on_the_wire() -> None:
    joins = []

    async def hub_side(peer: Peer) -> None:
        joins.append((await peer.join(reply("9")), peer.topic))
        await peer.push("replay_complete", complete("9"))

    async with scripted_hub(hub_side) as hub:
        async with receiving(hub) as client:
            assert await take(client, 1) == [CaughtUp(9)]
            assert client.cursor == Place("e", 9)
        async with receiving(hub, ("e", 4), session_id="s-1", types=["final", "error"], partials="merged") as client:
            assert await take(client, 1) == [CaughtUp(9)]
        assert [r.headers["Authorization"] for r in hub.requests] == ["Bearer credential"] * 2
    assert joins == [
        ({"partials": "all"}, f"app:{SERVER_ID}"),
        (
            {"partials": "merged", "session_id": "s-1", "types": ["final", "error"], "epoch": "e", "since_id": "4"},
            f"app:{SERVER_ID}",
        ),
    ]


async def test_A203_an_event_is_the_bytes_the_home_wrote() -> None:
    text = '{"event_id":"5", "type":"a","session_id":null,"n":1.50,"z":"\\u00e9é"}'

    async def hub_side(peer: Peer) -> None:
        await peer.join(reply("4"))
        await peer.send_text(f'["{peer.join_ref}",null,"{peer.topic}","session_event",{{"event":{text}}}]')

    async with scripted_hub(hub_side) as hub, receiving(hub) as client:
        async for item in client:
            if isinstance(item, Event):
                assert item == Event(5, "a", None, text.encode())
                assert item.value["n"] == 1.5
                break


@pytest.mark.parametrize("session_id", ["7", "true", '{"a":1}', "[]"])
async def test_a_session_id_that_is_no_text_is_none_and_stops_nothing(session_id: str) -> None:
    text = f'{{"event_id":"5","type":"a","session_id":{session_id}}}'

    async def hub_side(peer: Peer) -> None:
        await peer.join(reply("4"))
        await peer.send_text(f'["{peer.join_ref}",null,"{peer.topic}","session_event",{{"event":{text}}}]')
        await send(peer, 6)

    async with scripted_hub(hub_side) as hub:
        async with receiving(hub, ("e", 4)) as client:
            events = [item async for item in _first_events(client, 2)]
        assert len(hub.requests) == 1
    assert events[0] == Event(5, "a", None, text.encode())
    assert events[1].event_id == 6


async def _first_events(client: AppClient, count: int) -> AsyncIterator[Event]:
    async for item in client:
        if isinstance(item, Event):
            yield item
            count -= 1
            if not count:
                return


async def test_an_event_without_a_usable_id_ends_the_connection() -> None:
    async def hub_side(peer: Peer) -> None:
        await peer.join(reply("4"))
        if len(hub.requests) == 1:
            await peer.push("session_event", {"event": {"event_id": 5, "type": "a"}})
        else:
            await send(peer, 6)

    async with scripted_hub(hub_side) as hub, receiving(hub, ("e", 4)) as client:
        assert await take(client, 1) == [6]
        assert len(hub.requests) == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e999", float("inf")),
        ("-1e999", float("-inf")),
        ("9" * 400, int("9" * 400)),
        ("9" * 4300, int("9" * 4300)),
        ("9" * 4301, float("inf")),
        ("-" + "9" * 5000, float("-inf")),
        ('"\\ud800"', "\ud800"),
    ],
)
def test_the_value_of_an_event_is_had_whatever_its_numbers(text: str, value: object) -> None:
    event = Event(5, "a", None, f'{{"event_id":"5","type":"a","n":[{text},1]}}'.encode())
    assert event.value == {"event_id": "5", "type": "a", "n": [value, 1]}


async def test_the_cursor_covers_what_was_taken_and_no_more() -> None:
    async def hub_side(peer: Peer) -> None:
        await peer.join(reply("3"))
        await send(peer, 1, 2, 3)
        await peer.push("replay_complete", complete("3"))
        await send(peer, 7)

    async with scripted_hub(hub_side) as hub, receiving(hub, ("e", 0)) as client:
        cursors = []
        async for item in client:
            cursors.append(client.cursor)
            if isinstance(item, Event) and item.event_id == 7:
                break
    assert cursors == [Place("e", n) for n in (0, 1, 2, 3, 3, 7)]


async def test_the_cursor_moves_over_events_that_filters_hid() -> None:
    async def hub_side(peer: Peer) -> None:
        await peer.join(reply("90"))
        await send(peer, 7)
        await peer.push("replay_complete", complete("90"))

    async with scripted_hub(hub_side) as hub, receiving(hub, ("e", 0), types=["note"]) as client:
        assert await take(client, 2) == [7, CaughtUp(90)]
        assert client.cursor == Place("e", 90)


@pytest.mark.parametrize("how", ["reset", 1001, 1012, 4000, "phx_error"])
async def test_case_76_each_rejoin_brings_a_fresh_cursor_and_no_event_twice(how: Any) -> None:
    joins = []

    async def hub_side(peer: Peer) -> None:
        if how != "phx_error":
            await one_join(peer)
        else:
            while True:
                await one_join(peer)

    async def one_join(peer: Peer) -> None:
        joins.append(await peer.join(reply("100")))
        since = int(joins[-1]["since_id"])
        await send(peer, *range(since - 1, since + 4))  # the first two are repeats
        if len(joins) > 4:
            await peer.gone()
        elif how == "phx_error":
            await peer.end("phx_error", {"reason": "channel_crash"})
        elif how == "reset":
            await peer.push("server_status", {"online": len(joins) % 2 == 0, "since": None, "last_event_at": None})
            peer.reset()
        else:
            await peer.close(how)

    async with scripted_hub(hub_side) as hub, receiving(hub, ("e", 10)) as client:
        assert await take(client, 15) == list(range(11, 26))
    assert joins[0]["since_id"] == "10"
    assert len(joins) >= 5
    assert all(join["epoch"] == "e" for join in joins)


async def test_an_app_without_cursor_gets_one_and_resumes_with_it() -> None:
    joins = []

    async def first(peer: Peer) -> None:
        joins.append(await peer.join(reply("40")))
        await peer.push("replay_complete", complete("40"))
        peer.reset()

    async def second(peer: Peer) -> None:
        joins.append(await peer.join(reply("44")))
        await send(peer, 41, 42)

    async with scripted_hub(first, second) as hub, receiving(hub) as client:
        items = await take(client, 2)
    assert items[-2:] in ([CaughtUp(40), 41], [41, 42])  # a reset may swallow what was on its way
    assert joins == [{"partials": "all"}, {"partials": "all", "epoch": "e", "since_id": "40"}]


async def test_case_77_a_gap_is_told_and_what_is_retained_follows() -> None:
    joins = []

    async def hub_side(peer: Peer) -> None:
        joins.append(await peer.join(reply("30", False, gap("expired", "5", "20"))))
        await peer.push("replay_complete", complete("30", False, gap("expired", "5", "20")))
        await send(peer, 31)
        joins.append(await peer.join(reply("30")))
        await send(peer, *range(21, 31))
        await peer.push("replay_complete", complete("30"))
        await send(peer, 31)

    async with scripted_hub(hub_side) as hub, receiving(hub, ("e", 5)) as client:
        assert await take(client, 1) == [Gap("expired", 5, 20)]
        assert client.cursor == Place("e", 20)
        assert await take(client, 12) == [*range(21, 31), CaughtUp(30), 31]
    assert [(join["epoch"], join["since_id"]) for join in joins] == [("e", "5"), ("e", "20")]


async def test_case_86_after_a_gap_in_another_epoch_ids_start_over() -> None:
    async def hub_side(peer: Peer) -> None:
        await peer.join(reply("3", False, gap("epoch_changed", "500", "0"), epoch="new"))
        join = await peer.join(reply("3", epoch="new"))
        assert (join["epoch"], join["since_id"]) == ("new", "0")
        await send(peer, 1, 2, 3)
        await peer.push("replay_complete", complete("3", epoch="new"))

    async with scripted_hub(hub_side) as hub, receiving(hub, ("old", 500)) as client:
        assert await take(client, 5) == [Gap("epoch_changed", 500, 0), 1, 2, 3, CaughtUp(3)]
        assert client.cursor == Place("new", 3)


async def test_without_recovery_a_gap_is_followed_by_what_happens_next() -> None:
    async def hub_side(peer: Peer) -> None:
        await peer.join(reply("30", False, gap("expired", "5", "20")))
        await peer.push("replay_complete", complete("30", False, gap("expired", "5", "20")))
        await send(peer, 31)

    async with scripted_hub(hub_side) as hub, receiving(hub, ("e", 5), recover_retained=False) as client:
        assert await take(client, 3) == [Gap("expired", 5, 20), CaughtUp(30), 31]


async def test_what_is_retained_is_asked_for_again_while_the_hub_drops_it_under_our_eyes() -> None:
    """On a busy hub the oldest event moves on between verdict and join: each try in a row asks for less of it."""
    joins = []

    async def hub_side(peer: Peer) -> None:
        for since, floor in (("1", "100"), ("100", "103"), ("119", "140")):
            behind = gap("expired", since, floor)
            joins.append((await peer.join(reply("900", False, behind)))["since_id"])
            await peer.push("replay_complete", complete("900", False, behind))
            await send(peer, 901)
        joins.append((await peer.join(reply("901")))["since_id"])
        await send(peer, 173, 174)

    async with scripted_hub(hub_side) as hub, receiving(hub, ("e", 1)) as client:
        gaps = [Gap("expired", 1, 100), Gap("expired", 100, 119), Gap("expired", 119, 172)]
        assert await take(client, 5) == [*gaps, 173, 174]
    assert joins == ["1", "100", "119", "172"]


async def test_a_hub_that_drops_all_that_is_asked_for_is_asked_no_more() -> None:
    """The app goes on at the head, and the last gap says so."""
    joins = []

    async def hub_side(peer: Peer) -> None:
        for since in ("1", "50", "66", "82"):
            behind = gap("expired", since, "50")
            joins.append((await peer.join(reply("90", False, behind)))["since_id"])
        await peer.push("replay_complete", complete("90", False, behind))
        await send(peer, 91)

    async with scripted_hub(hub_side) as hub, receiving(hub, ("e", 1)) as client:
        taken = await take(client, 6)
    assert [(told.from_id, told.resume_after) for told in taken[:4]] == [(1, 50), (50, 66), (66, 82), (82, 90)]
    assert taken[4:] == [CaughtUp(90), 91]
    assert joins == ["1", "50", "66", "82"]


async def test_a_slow_consumer_is_joined_again_however_much_had_piled_up() -> None:
    """The socket was no longer read, and the rejoin drops what piled up: its answer must be read all the same."""
    sent = asyncio.Event()

    async def hub_side(peer: Peer) -> None:
        await peer.join(reply("900"))
        await send(peer, *range(6, 200))
        await peer.push("replay_complete", complete("900", False, gap("expired", "199", "500")))
        await send(peer, *range(901, 1100))
        sent.set()
        await peer.join(reply("900"))
        await send(peer, 501)

    async with scripted_hub(hub_side) as hub, receiving(hub, ("e", 5)) as client:
        # Those that wait here fill the queue: the gap behind them finds no room, and what follows it piles up.
        assert await take(client, 194 - QUEUE_LIMIT) == [*range(6, 200 - QUEUE_LIMIT)]
        await sent.wait()
        for _ in range(100):
            await asyncio.sleep(0.001)
        async with asyncio.timeout(0.9 * JOIN_TIMEOUT):  # then it would be given up, and joined again
            rest = await take(client, QUEUE_LIMIT + 2)
        assert rest == [*range(200 - QUEUE_LIMIT, 200), Gap("expired", 199, 500), 501]


async def test_a_verdict_withdrawn_in_the_middle_of_a_replay_is_a_gap() -> None:
    async def hub_side(peer: Peer) -> None:
        await peer.join(reply("90"))
        await send(peer, 6, 7)
        await peer.push("replay_complete", complete("90", False, gap("expired", "7", "50")))
        await peer.end("phx_error", {"reason": "expired"})
        join = await peer.join(reply("90"))
        assert join["since_id"] == "50"
        await send(peer, 51)

    async with scripted_hub(hub_side) as hub, receiving(hub, ("e", 5)) as client:
        assert await take(client, 4) == [6, 7, Gap("expired", 7, 50), 51]


async def test_an_open_verdict_is_taken_from_replay_complete() -> None:
    async def hub_side(peer: Peer) -> None:
        await peer.join(reply(None, None, epoch=None))
        await send(peer, 6)
        await peer.push("replay_complete", complete("6"))
        await send(peer, 7)

    async with scripted_hub(hub_side) as hub, receiving(hub, ("e", 5)) as client:
        assert await take(client, 3) == [6, CaughtUp(6), 7]


@pytest.mark.parametrize(("known", "kept"), [("mine", "mine"), (None, "e")])
async def test_events_under_an_open_verdict_keep_the_epoch_of_the_cursor(known: str | None, kept: str) -> None:
    """A drop in the middle of a long history must not lose it: the ids would be taken for another epoch's."""
    joins = []

    async def hub_side(peer: Peer) -> None:
        joins.append(await peer.join(reply("9", recovered=None)))
        await send(peer, 3, 4)
        if len(joins) == 1:
            peer.reset()

    async with scripted_hub(hub_side) as hub, receiving(hub, (known, 2)) as client:
        assert await take(client, 2) == [3, 4]
        assert client.cursor == Place(kept, 4)
        while len(joins) < 2:
            await asyncio.sleep(0)
    assert joins[1] == {"partials": "all", "epoch": kept, "since_id": "4"}


async def test_a_hub_without_memory_and_home_is_one_gap_and_the_cursor_waits_for_the_home() -> None:
    joins = []

    async def hub_side(peer: Peer) -> None:
        for _ in range(4):  # nobody home: the same verdict each time
            joins.append(await peer.join(reply(None, None, epoch=None)))
            await peer.push("replay_complete", complete(None, False, gap("hub_reset", "5", None), epoch=None))
            await peer.end("phx_error", {"reason": "hub_reset"})
        joins.append(await peer.join(reply("7")))
        await send(peer, 6, 7)
        await peer.push("replay_complete", complete("7"))

    async with scripted_hub(hub_side) as hub, receiving(hub, ("e", 5)) as client:
        items = await take(client, 8)
    assert [item for item in items if item != CaughtUp(None)] == [Gap("hub_reset", 5, None), 6, 7, CaughtUp(7)]
    assert [join["since_id"] for join in joins] == ["5"] * 5


async def test_an_app_that_never_had_a_place_follows_its_home_into_another_epoch() -> None:
    async def hub_side(peer: Peer) -> None:
        await peer.join(reply(None, True, epoch=None))
        await peer.push("replay_complete", complete(None, epoch=None))
        await send(peer, 500, 501, 1, 2)

    async with scripted_hub(hub_side) as hub, receiving(hub) as client:
        assert await take(client, 3) == [CaughtUp(None), 500, 501]
        assert client.cursor == Place(None, 501)
        assert await take(client, 2) == [1, 2]
        assert client.cursor == Place(None, 2)


async def test_an_app_moved_into_another_epoch_is_told_what_it_misses_there() -> None:
    """It joined without a cursor and has a place since: what the new store holds below its head is not passed over."""
    joins = []

    async def hub_side(peer: Peer) -> None:
        joins.append(await peer.join(reply("40")))
        await peer.push("replay_complete", complete("40"))
        await send(peer, 41)
        await peer.push("server_status", {**ONLINE, "epoch": "new", "head_id": "60"})
        await send(peer, 61)
        joins.append(await peer.join(reply("61", False, gap("epoch_changed", "41", "58"), epoch="new")))
        joins.append(await peer.join(reply("61", epoch="new")))
        await send(peer, 59, 60, 61)

    async with scripted_hub(hub_side) as hub, receiving(hub) as client:
        assert await take(client, 6) == [CaughtUp(40), 41, Gap("epoch_changed", 41, 58), 59, 60, 61]
        assert client.cursor == Place("new", 61)
    assert [(join.get("epoch"), join.get("since_id")) for join in joins] == [(None, None), ("e", "41"), ("new", "58")]


async def test_server_status_is_told_when_it_changes() -> None:
    async def hub_side(peer: Peer) -> None:
        await peer.join(reply("0"))
        await peer.push("server_status", {"online": True, "since": "t0", "last_event_at": "t1"})  # nothing new
        await peer.push("server_status", {"online": False, "since": "t2", "last_event_at": "t1"})
        await peer.push("server_status", {"online": True, "since": "t3", "last_event_at": "t1"})

    async with scripted_hub(hub_side) as hub, receiving(hub) as client:
        statuses = [await anext(client) for _ in range(3)]
    assert statuses == [
        ServerStatus(True, "t0", None),
        ServerStatus(False, "t2", "t1"),
        ServerStatus(True, "t3", "t1"),
    ]


async def test_unknown_pushes_are_ignored() -> None:
    async def hub_side(peer: Peer) -> None:
        await peer.join(reply("0"))
        await peer.push("news_of_a_later_version", {"a": 1})
        await send(peer, 1)

    async with scripted_hub(hub_side) as hub, receiving(hub) as client:
        assert await take(client, 1) == [1]


async def test_a_malformed_event_costs_the_socket_not_the_app(caplog: pytest.LogCaptureFixture) -> None:
    async def bad(peer: Peer) -> None:
        await peer.join(reply("0"))
        await send(peer, 1)
        await peer.push("session_event", {"event": {"event_id": 2, "type": "note"}})

    async def good(peer: Peer) -> None:
        assert (await peer.join(reply("0")))["since_id"] == "1"
        await send(peer, 2)

    async with scripted_hub(bad, good) as hub, receiving(hub) as client:
        assert await take(client, 2) == [1, 2]
    assert "can't be read" in caplog.text


async def test_the_end_of_the_topic_ends_the_iteration_after_what_came_before() -> None:
    async def hub_side(peer: Peer) -> None:
        await peer.join(reply("0"))
        await send(peer, 1)
        await peer.end("phx_close", {})

    async with scripted_hub(hub_side) as hub, receiving(hub) as client:
        assert await take(client, 1) == [1]
        for _ in range(2):
            with pytest.raises(TopicEnded):
                await anext(client)


async def test_a_revoked_device_and_a_bad_cursor_end_the_iteration() -> None:
    async def refuse(peer: Peer) -> None:
        await peer.join({"reason": "bad_cursor"}, "error")

    async with scripted_hub(refuse) as hub:
        async with receiving(hub) as client:
            with pytest.raises(JoinRejected, match="bad_cursor"):
                await anext(client)
        hub.refusals.append((403, '{"reason": "credential_revoked"}', {}))
        async with receiving(hub) as client:
            with pytest.raises(CredentialRefused, match="revoked"):
                await anext(client)


async def test_a_slow_consumer_holds_the_hub_back() -> None:
    total, text = 3000, "x" * 20_000
    progress = 0
    stuck = asyncio.Event()

    async def hub_side(peer: Peer) -> None:
        nonlocal progress
        await peer.join(reply("0"))
        for n in range(1, total + 1):
            sending = asyncio.ensure_future(
                peer.push("session_event", {"event": {"event_id": str(n), "type": "note", "text": text}})
            )
            if not (await asyncio.wait([sending], timeout=1.0))[0]:
                stuck.set()
            await sending
            progress = n

    async with scripted_hub(hub_side) as hub, receiving(hub) as client:
        await stuck.wait()
        assert progress < total / 2
        assert await take(client, total) == list(range(1, total + 1))


async def test_leaving_the_context_leaves_nothing_behind() -> None:
    async def hub_side(peer: Peer) -> None:
        await peer.join(reply("0"))
        await send(peer, *range(1, 200))

    before = asyncio.all_tasks()
    async with scripted_hub(hub_side) as hub:
        async with receiving(hub) as client:
            assert await take(client, 1) == [1]
        assert {task for task in asyncio.all_tasks() - before if "app client" in task.get_name()} == set()


async def test_the_credential_and_the_events_are_in_no_log_record(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "bridge_client")

    async def hub_side(peer: Peer) -> None:
        await peer.join(reply("0"))
        await peer.push("session_event", {"event": {"event_id": "1", "type": "note", "text": "a private remark"}})

    async with scripted_hub(hub_side) as hub:
        hub.refusals.append((503, "", {}))
        async with receiving(hub) as client:
            assert await take(client, 1) == [1]
    assert caplog.records
    assert "Bearer" not in caplog.text
    assert "private" not in caplog.text

"""The Python app client asks its home: one id over every reconnect, one answer, and the truth about what was done."""

import asyncio
from typing import Any

import pytest

from bridge_client.app_client import QUEUE_LIMIT, TopicEnded
from bridge_client.app_requests import RequestFailed
from protocol.requests import MAX_BODY_BYTES
from tests.bridge_client.scripted_hub import Peer, scripted_hub
from tests.bridge_client.test_app_client import complete, receiving, reply, send

ANSWER = {"status": 202, "headers": {"content-type": "application/json"}, "body": {"request_id": "r"}}


async def asked(peer: Peer) -> tuple[str, Any]:
    """The next message, a request: its ref and its payload."""
    _, ref, _, event, payload = await peer.next()
    assert event == "request"
    return ref, payload


async def test_what_is_asked_and_answered() -> None:
    seen = []

    async def hub_side(peer: Peer) -> None:
        await peer.join(reply())
        ref, payload = await asked(peer)
        seen.append(payload)
        await peer.reply(ref, ANSWER)
        ref, payload = await asked(peer)
        seen.append(payload)
        await peer.push("body_part", {"id": payload["id"], "index": 0, "text": '{"a":"é'})
        await peer.push("body_part", {"id": payload["id"], "index": 1, "text": '"}'})
        await peer.reply(ref, {"status": 404, "headers": {}, "parts": 2})
        await peer.gone()

    async with scripted_hub(hub_side) as hub, receiving(hub) as client:
        answer = await client.request("POST", "/sessions/s/send", {"content": "é"}, request_id="request-0001")
        assert (answer.status, answer.ok, answer.json()) == (202, True, {"request_id": "r"})
        assert answer.headers == {"content-type": "application/json"}
        answer = await client.request("GET", "/sessions/s")
        assert (answer.status, answer.ok, answer.json()) == (404, False, {"a": "é"})
    assert seen[0] == {
        "id": "request-0001",
        "method": "POST",
        "path": "/sessions/s/send",
        "body": {"content": "é"},
    }
    assert seen[1].keys() == {"id", "method", "path"}


async def test_after_a_lost_connection_the_same_is_asked_again() -> None:
    seen = []

    async def first(peer: Peer) -> None:
        await peer.join(reply())
        seen.append((await asked(peer))[1])
        peer.reset()

    async def second(peer: Peer) -> None:
        await peer.join(reply())
        seen.append((await asked(peer))[1])
        await peer.end("phx_error", {"reason": "channel_crash"})
        await peer.join(reply())
        ref, payload = await asked(peer)
        seen.append(payload)
        await peer.reply(ref, ANSWER)
        await peer.gone()

    async with scripted_hub(first, second) as hub, receiving(hub) as client:
        assert (await client.request("POST", "/sessions/s/send", {"content": "x"})).status == 202
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize(
    ("response", "reason", "sent", "retry"),
    [
        ({"reason": "server_offline", "sent": False}, "server_offline", False, None),
        ({"reason": "server_offline", "sent": True}, "server_offline", True, None),
        ({"reason": "timeout"}, "timeout", True, None),
        ({"reason": "rate_limited", "retry_after_ms": 1500}, "rate_limited", False, 1.5),
        ({"reason": "idempotency_mismatch", "message": "used"}, "idempotency_mismatch", False, None),
        ({"reason": "something new"}, "something new", False, None),
    ],
)
async def test_why_there_is_no_answer(response: Any, reason: str, sent: bool, retry: float | None) -> None:
    async def hub_side(peer: Peer) -> None:
        await peer.join(reply())
        ref, _ = await asked(peer)
        await peer.reply(ref, response, "error")
        await peer.gone()

    async with scripted_hub(hub_side) as hub, receiving(hub) as client:
        with pytest.raises(RequestFailed, match=reason) as failed:
            await client.request("POST", "/sessions", {}, request_id="request-0001")
    error = failed.value
    assert (error.reason, error.sent, error.retry_after, error.request_id) == (reason, sent, retry, "request-0001")


async def test_parts_that_are_missing_are_no_answer() -> None:
    async def hub_side(peer: Peer) -> None:
        await peer.join(reply())
        ref, payload = await asked(peer)
        await peer.push("body_part", {"id": payload["id"], "index": 1, "text": "x"})
        await peer.reply(ref, {"status": 200, "parts": 2})
        await peer.gone()

    async with scripted_hub(hub_side) as hub, receiving(hub) as client:
        with pytest.raises(RequestFailed, match="bad_answer"):
            await client.request("GET", "/sessions")


async def test_what_can_not_be_asked_is_not_sent() -> None:
    async def hub_side(peer: Peer) -> None:
        await peer.join(reply())
        await peer.push("replay_complete", complete("0"))
        _, payload = await asked(peer)
        assert payload["id"] == "the-only-one"
        await peer.gone()

    async with scripted_hub(hub_side) as hub, receiving(hub) as client:
        for path, body, reason in (
            ("/sessions/../x", None, "bad_push"),
            ("/status", None, "forbidden"),
            ("/sessions", "x" * MAX_BODY_BYTES, "too_large"),
        ):
            with pytest.raises(RequestFailed) as failed:
                await client.request("POST", path, body)
            assert (failed.value.reason, failed.value.sent) == (reason, False)
        with pytest.raises(ValueError, match="no JSON"):
            await client.request("POST", "/sessions", {"x": object()})
        waiting = asyncio.create_task(client.request("GET", "/sessions", request_id="the-only-one"))
        await asyncio.sleep(0)
        with pytest.raises(ValueError, match="under way"):
            await client.request("GET", "/sessions", request_id="the-only-one")
        with pytest.raises(RequestFailed, match="timeout"):
            await client.request("GET", "/sessions", timeout=0)
        waiting.cancel()


async def test_the_end_of_the_topic_ends_what_waits() -> None:
    async def hub_side(peer: Peer) -> None:
        await peer.join(reply())
        await asked(peer)
        await peer.end("phx_close", {})
        await peer.gone()

    async with scripted_hub(hub_side) as hub, receiving(hub) as client:
        with pytest.raises(RequestFailed) as failed:
            await client.request("POST", "/sessions", {})
        assert (failed.value.reason, failed.value.sent) == ("closed", True)
        with pytest.raises(TopicEnded):
            await client.request("POST", "/sessions", {})


async def test_an_answer_behind_many_events_comes_to_who_takes_none() -> None:
    many = 4 * QUEUE_LIMIT

    async def hub_side(peer: Peer) -> None:
        await peer.join(reply())
        ref, _ = await asked(peer)
        await send(peer, *range(1, many + 1))
        await peer.reply(ref, ANSWER)
        await peer.gone()

    async with scripted_hub(hub_side) as hub, receiving(hub) as client:
        assert (await client.request("GET", "/sessions")).status == 202
        ids = [(await anext(client)) for _ in range(many + 1)][1:]  # the first is the home's status
        assert [item.event_id for item in ids if hasattr(item, "event_id")] == list(range(1, many + 1))

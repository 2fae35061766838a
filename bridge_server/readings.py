"""The hub's metrics by name: which object is asked for what."""

from collections.abc import Collection, Mapping, Sized
from typing import Protocol

from bridge_server.auth import Device, Server
from bridge_server.backlog import Level
from bridge_server.home import Homes
from bridge_server.hub import Hub
from bridge_server.limits import Limits
from bridge_server.metrics import Reading
from bridge_server.outbox import Budget
from bridge_server.peer import Peer


class Connection(Protocol):
    """Whatever carries a peer."""

    peer: Peer | None


def readings(
    connections: Collection[Connection],
    refusals: Mapping[str, int],
    homes: Homes,
    topics: Hub,
    budget: Budget,
    limits: Limits,
    longpoll_sessions: Sized,
) -> tuple[Reading, ...]:
    """Every metric of a hub."""

    def peers() -> dict[str, float]:
        kinds = {"server": 0.0, "device": 0.0, "other": 0.0}
        for connection in connections:
            identity = connection.peer.identity if connection.peer is not None else None
            kinds[
                "server" if isinstance(identity, Server) else "device" if isinstance(identity, Device) else "other"
            ] += 1
        return kinds

    return (
        Reading(
            "bridge_connections", "gauge", "Open sockets and long-poll sessions, by who holds them.", peers, "peer"
        ),
        Reading(
            "bridge_longpoll_sessions",
            "gauge",
            "Long-poll sessions, also counted as connections.",
            lambda: {"": len(longpoll_sessions)},
        ),
        Reading(
            "bridge_homes_online", "gauge", "Homes connected now.", lambda: {"": sum(home.online for home in homes)}
        ),
        Reading("bridge_events", "counter", "Events taken from homes.", lambda: {"": homes.events}),
        Reading(
            "bridge_deliveries",
            "counter",
            "Events handed to apps, replays not counted.",
            lambda: {"": topics.deliveries},
        ),
        Reading("bridge_queued_bytes", "gauge", "Bytes that slow peers have not taken yet.", lambda: {"": budget.used}),
        Reading(
            "bridge_busy_peers",
            "gauge",
            "Peers with something queued.",
            lambda: {"": sum(outbox.queued > 0 for outbox in budget.busy)},
        ),
        Reading(
            "bridge_queue_marks",
            "counter",
            "Queues of slow peers that grew, or got old, past a mark.",
            lambda: {"merge": budget.passed[Level.MERGE], "hold": budget.passed[Level.HOLD]},
            "mark",
        ),
        Reading(
            "bridge_merged_parts",
            "counter",
            "Pieces of texts that left a queue inside another one, or inside their whole.",
            lambda: {"": budget.merged_parts},
        ),
        Reading(
            "bridge_cuts",
            "counter",
            "Peers cut because they read too slowly, by what was too much.",
            lambda: dict(budget.cuts),
            "reason",
        ),
        *homes.backfills.readings(),
        Reading(
            "bridge_refused_messages",
            "counter",
            "Messages refused because their sender is over its limit.",
            lambda: {"": limits.messages_refused},
        ),
        Reading(
            "bridge_refused_upgrades",
            "counter",
            "Upgrade requests and long-poll sessions refused.",
            lambda: dict(refusals),
            "reason",
        ),
    )

"""The list of targets, and what a target is.

A target takes any bytes, hands them to the code as a stranger would, and raises when that code breaks a promise: an
exception that is not its contract's, an answer that is none, a state beyond its bounds. An exception of the contract,
such as ProtocolError, is the right answer and stays inside the target.
"""

from collections.abc import Callable
from typing import NamedTuple

from tests.fuzz import longpoll, machines, texts, wire

SEPARATOR = machines.SEPARATOR


class Target(NamedTuple):
    """`seeds` are inputs to start from, `tokens` what the grammar is made of."""

    name: str
    run: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
    tokens: tuple[bytes, ...]


TARGETS = {
    target.name: target
    for target in (
        Target("codec", texts.codec, texts.CODEC_SEEDS, texts.JSON_TOKENS),
        Target("door", texts.door, texts.CODEC_SEEDS, texts.JSON_TOKENS),
        Target("envelope", texts.envelope_of_an_event, texts.EVENT_SEEDS, (*texts.JSON_TOKENS, *texts.EVENT_TOKENS)),
        Target("event-id", texts.ids, texts.ID_SEEDS, texts.ID_TOKENS),
        Target("pairing-code", texts.codes, texts.CODE_SEEDS, texts.CODE_TOKENS),
        Target("names", texts.names, texts.NAME_SEEDS, texts.NAME_TOKENS),
        Target("site", texts.site, texts.SITE_SEEDS, texts.SITE_TOKENS),
        Target("server-machine", machines.server, machines.SERVER_SEEDS, machines.TOKENS),
        Target("client-machine", machines.client, machines.CLIENT_SEEDS, machines.TOKENS),
        Target("request-head", wire.request_head, wire.HEAD_SEEDS, wire.HEAD_TOKENS),
        Target("websocket", wire.websocket, wire.FRAME_SEEDS, wire.FRAME_TOKENS),
        Target("longpoll", longpoll.longpoll, longpoll.SEEDS, (*texts.JSON_TOKENS, *longpoll.TOKENS)),
        Target("home-and-app", wire.home_and_app, wire.PEER_SEEDS, (*texts.JSON_TOKENS, *wire.PEER_TOKENS)),
    )
}

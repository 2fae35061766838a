"""How each system is spoken to."""

from collections.abc import Mapping
from typing import Any

from benchmarks.generator import Dialect


def hub(ready: Mapping[str, Any]) -> Dialect:
    """Phoenix channels, serializer 2.0.0, with the credentials the hub printed."""
    tenants = ready["tenants"]
    path = "/socket/websocket?vsn=2.0.0"
    return Dialect(
        app_request=lambda group: (path, [("Authorization", f"Bearer {tenants[group]['app']}")]),
        app_hello=lambda group: [f'["1","1","app:{tenants[group]["server_id"]}","phx_join",{{}}]'],
        app_answers=2,  # the reply, and replay_complete
        publisher_request=lambda group: (path, [("Authorization", f"Bearer {tenants[group]['home']}")]),
        publisher_hello=lambda group: [f'["1","1","server:{tenants[group]["server_id"]}","phx_join",{{}}]'],
        publisher_answers=1,
        publish=lambda group, number, event: (
            f'["1","{number + 1}","server:{tenants[group]["server_id"]}","session_event",{{"event":{event}}}]'
        ),
    )


def floor(ready: Mapping[str, Any]) -> Dialect:
    """The same frames, for a server that asks for no credential."""
    return Dialect(
        app_request=lambda group: ("/", []),
        app_hello=lambda group: [f'["1","1","app:{group}","phx_join",{{}}]'],
        app_answers=1,
        publisher_request=lambda group: ("/", []),
        publisher_hello=lambda group: [f'["1","1","server:{group}","phx_join",{{}}]'],
        publisher_answers=1,
        publish=lambda group, number, event: (
            f'["1","{number + 1}","server:{group}","session_event",{{"event":{event}}}]'
        ),
    )


def plain(ready: Mapping[str, Any]) -> Dialect:
    """Bare texts: the path says who one is, an app is greeted, each publish answered."""
    return Dialect(
        app_request=lambda group: (f"/app/{group}", []),
        app_hello=lambda group: [],
        app_answers=1,
        publisher_request=lambda group: (f"/publish/{group}", []),
        publisher_hello=lambda group: [],
        publisher_answers=0,
        publish=lambda group, number, event: event,
    )


def socketio(ready: Mapping[str, Any]) -> Dialect:
    """Engine.IO 4 over WebSocket: `40` connects, `42<ack>[…]` is an event that wants an answer."""
    path = "/socket.io/?EIO=4&transport=websocket"
    return Dialect(
        app_request=lambda group: (path, []),
        app_hello=lambda group: ["40", f'421["join",{group}]'],
        app_answers=2,  # `0{…}` came before the second hello
        publisher_request=lambda group: (path, []),
        publisher_hello=lambda group: ["40"],
        publisher_answers=2,
        publish=lambda group, number, event: f'42{number}["publish",{group},{event}]',
    )

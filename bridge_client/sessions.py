"""The sessions of a home: their histories, every change of them, and the events that tell it (rows A80 to A108).

- A change is durable together with its events when the call returns; each event's `session` is the state after it.
- One cursor per session. A snapshot's messages hold the effect of every event up to its cursor and of none behind it,
  so who loads messages and then reads events behind `cursor_event_id` misses nothing and gets nothing twice (A94 to
  A96). Only what changes the history moves the cursor: what else is told of a session stays behind it.
- While a request runs the history is its own: append, modify and delete raise RequestRunning, as a second request does.
  Forking, reading and metadata are always possible.
- Changes of one session take turns. What another process changed meanwhile is seen, and the change thought out anew.
- A cancelled call may have made its change or not, as a whole.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import uuid4
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import replace

from bridge_client import session_rules as rules
from bridge_client.clock import Clock, rfc3339
from bridge_client.notification_rules import BadNotification, check_given
from bridge_client.notification_rules import without as without_notifications
from bridge_client.runners import Message
from bridge_client.session_records import Change, RecordMoved, SessionRecord, SessionRecords, pause_before
from bridge_client.session_rules import BadSession, NoSuchSession, RequestRunning, SessionExists, SessionFull
from bridge_client.store import StoreError

MAX_PAGE_BYTES: Final = 8 << 20
MAX_PAGE_MESSAGES: Final = 1_000

DEFAULT_AGENT: Final = "default"
Json = dict[str, Any]

_TRIES: Final = 24
_encode: Final = msgspec.json.encode
_decode: Final = msgspec.json.Decoder(Json).decode
_decode_message: Final = msgspec.json.Decoder(Message).decode


class Page(NamedTuple):
    """A piece of a session's history, and the state that it belongs to."""

    record: SessionRecord
    offset: int
    messages: list[bytes]
    """Each the JSON of one message."""

    @property
    def next_offset(self) -> int | None:
        """Where the next piece begins, None at the end."""
        end = self.offset + len(self.messages)
        return end if end < self.record.message_count else None


_Records = list[SessionRecord]  # inside the class, `list` is a method
_Texts = list[bytes]
_Messages = list[Message]
_Thought = Callable[[SessionRecord], Awaitable[Change]]


class Sessions:
    """All sessions of one home. Every method raises StoreError besides what it names."""

    def __init__(self, records: SessionRecords, clock: Clock) -> None:
        self._records = records
        self._clock = clock
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    # Reading.

    async def get(self, session_id: str) -> SessionRecord:
        """The session without its messages. Raises NoSuchSession."""
        record = await self._records.get(session_id)
        if record is None:
            raise NoSuchSession(session_id)
        return record

    async def cursor(self, session_id: str) -> int | None:
        """Row A90: where a reader of this session begins; None for a session that is known only by its events."""
        record = await self._records.get(session_id)
        return None if record is None else record.cursor_event_id

    async def list(self, *, before: int | None = None, limit: int = 100) -> _Records:
        """Sessions, the last changed first; `before` is the cursor of the last one of the page before."""
        return await self._records.list(before, limit)

    async def page(
        self, session_id: str, *, offset: int = 0, limit: int = MAX_PAGE_MESSAGES, expected: int | None = None
    ) -> Page:
        """Messages from `offset` on, negative from the end, and the cursor that belongs to them (A91, A95, A96).

        Raises NoSuchSession; SessionChanged if the cursor is not the `expected` one.
        """
        found = await self._records.snapshot(session_id, offset, limit, MAX_PAGE_BYTES)
        if found is None:
            raise NoSuchSession(session_id)
        rules.check_expected(found.record, expected)
        return Page(*found)

    async def history(self, session_id: str) -> tuple[SessionRecord, _Messages]:
        """The whole history, at one moment. Raises NoSuchSession."""
        found = await self._records.snapshot(session_id, 0, rules.MAX_MESSAGES, rules.MAX_SESSION_BYTES)
        if found is None:
            raise NoSuchSession(session_id)
        return found.record, [_decode_message(message) for message in found.messages]

    async def with_request(self) -> _Records:
        """The sessions that have a request under way, or had when their home stopped."""
        return await self._records.with_request()

    # What the API changes.

    async def create(
        self, *, agent_id: str = DEFAULT_AGENT, session_id: str | None = None, metadata: Json | None = None
    ) -> tuple[SessionRecord, Json]:
        """A session without messages, and how events show it (rows A100, A102, A103).

        Raises SessionExists, SessionFull, TooLarge, BadSession.
        """
        session_id = rules.check_id(session_id) if session_id is not None else str(uuid4())
        rules.check_id(agent_id, "agent_id")
        metadata = {} if metadata is None else metadata
        rules.check_metadata(metadata)
        try:
            check_given(metadata)
        except BadNotification as error:
            raise BadSession(str(error)) from None
        if await self._records.count() >= rules.MAX_SESSIONS:
            raise SessionFull(f"a home keeps at most {rules.MAX_SESSIONS} sessions")
        now = rfc3339(self._clock.wall())
        record = SessionRecord(
            session_id=session_id, agent_id=agent_id, created_at=now, updated_at=now, metadata=metadata
        )
        return await self._add(record, [])

    async def fork(self, source_id: str, *, session_id: str | None = None) -> tuple[SessionRecord, Json]:
        """A new session with the history and metadata of another as they are now (row A101).

        Notifications stay behind: they are of the session that they name (row A187).

        Raises NoSuchSession, and what `create` raises.
        """
        session_id = rules.check_id(session_id) if session_id is not None else str(uuid4())
        for _ in range(_TRIES):
            source = await self.get(source_id)
            if await self._records.count() >= rules.MAX_SESSIONS:
                raise SessionFull(f"a home keeps at most {rules.MAX_SESSIONS} sessions")
            now = rfc3339(self._clock.wall())
            record = SessionRecord(
                session_id=session_id,
                agent_id=source.agent_id,
                created_at=now,
                updated_at=now,
                metadata=without_notifications(source.metadata),
                source_session_id=source_id,
                message_count=source.message_count,
                message_bytes=source.message_bytes,
            )
            try:
                return await self._add(record, await self._shown_messages(source), copied=source)
            except RecordMoved:
                continue
        raise StoreError(f"session {source_id} changes faster than it can be copied; try again")

    async def _add(
        self, record: SessionRecord, messages: Sequence[bytes] | None, copied: SessionRecord | None = None
    ) -> tuple[SessionRecord, Json]:
        shown = rules.show(record, messages)
        event: Json = {"type": "session_created", "session_id": record.session_id, "agent_id": record.agent_id}
        if record.source_session_id is not None:
            event["source_session_id"] = record.source_session_id
        change = Change(record, [{**event, "session": shown}, self._marker(record.session_id)], 1)
        if copied is not None:
            change = change._replace(copy_from=copied.session_id, copy_revision=copied.revision)
        try:
            made, _ = await self._records.apply(change)
        except RecordMoved as moved:
            if str(moved) != record.session_id:
                raise
            raise SessionExists(record.session_id) from None
        return made, shown

    async def append(self, session_id: str, message: Message) -> tuple[SessionRecord, int]:
        """Add a message to the history; where it stands (rows A104, A105).

        Raises NoSuchSession, RequestRunning, SessionFull, TooLarge, BadSession.
        """
        data = rules.check_message(message)

        async def think(record: SessionRecord) -> Change:
            return Change(
                record, [await self._appended(record, message, data), self._marker(session_id)], 1, append=[data]
            )

        record = await self._change(session_id, think, idle=True)
        return record, record.message_count - 1

    async def modify(
        self, session_id: str, index: int, content: Any, *, expected: int | None = None
    ) -> tuple[SessionRecord, Message]:
        """Give a message another content (row A106); the message as it is now.

        Raises NoSuchSession, NoSuchMessage, SessionChanged, RequestRunning, SessionFull, TooLarge, BadSession.
        """
        made: _Messages = []

        async def think(record: SessionRecord) -> Change:
            rules.check_expected(record, expected)
            rules.check_index(record, index)
            found = await self._records.snapshot(session_id, index, 1, MAX_PAGE_BYTES)
            if found is None or not found.messages:
                raise RecordMoved(session_id)
            old = _decode_message(found.messages[0])
            message = Message(role=old.role, content=content, metadata=old.metadata)
            data = rules.check_message(message, roles=None)
            grown = record.message_bytes + len(data) - len(found.messages[0])
            rules.check_room(record.message_count, grown)
            made[:] = [message]
            shown = await self._shown_messages(record)
            after = None if shown is None else [*shown[:index], data, *shown[index + 1 :]]
            event: Json = {"type": "message_modified", "session_id": session_id, "index": index, "content": content}
            event["session"] = rules.show(replace(record, message_bytes=grown), after)
            return Change(record, [event, self._marker(session_id)], 1, replace=(index, data))

        return await self._change(session_id, think, idle=True), made[0]

    async def delete(self, session_id: str, indices: Sequence[int], *, expected: int | None = None) -> SessionRecord:
        """Remove messages (row A107); those that stay move up.

        Raises NoSuchSession, NoSuchMessage, SessionChanged, RequestRunning, BadSession.
        """
        gone = sorted(set(indices))
        if not gone:
            raise rules.BadSession("indices is empty; name at least one message")

        async def think(record: SessionRecord) -> Change:
            rules.check_expected(record, expected)
            for index in gone:
                rules.check_index(record, index)
            shown = await self._shown_messages(record)
            left = set(gone)
            after = None if shown is None else [data for at, data in enumerate(shown) if at not in left]
            event: Json = {"type": "messages_deleted", "session_id": session_id, "indices": gone}
            event["session"] = rules.show(replace(record, message_count=record.message_count - len(gone)), after)
            return Change(record, [event, self._marker(session_id)], 1, delete=gone)

        return await self._change(session_id, think, idle=True)

    async def update_metadata(
        self, session_id: str, change: Callable[[Json], Sequence[Mapping[str, Any]]]
    ) -> SessionRecord:
        """Change the session's metadata, always, also while a request runs. The cursor stays.

        `change` gets a copy to change in place, and returns the events that tell it, without `session_id`; they are
        stored with it, a `checkpoint` behind them (row A86). It may be called more than once. What it raises passes
        through, and nothing is stored. Raises NoSuchSession, TooLarge.
        """

        async def think(record: SessionRecord) -> Change:
            metadata = _decode(_encode(record.metadata))
            told = change(metadata)
            rules.check_metadata(metadata)
            events = [{**event, "session_id": session_id} for event in told]
            return Change(replace(record, metadata=metadata), [*events, self._marker(session_id)])

        return await self._change(session_id, think)

    # What a request changes (request_execution.py).

    async def begin(self, session_id: str, request_id: str, message: Message, *, stream: bool) -> SessionRecord:
        """Append the user's message and begin a request. The cursor lies before `request_started` (row A42).

        Raises what `append` raises.
        """
        data = rules.check_message(message)

        async def think(record: SessionRecord) -> Change:
            appended = await self._appended(record, message, data)
            started = {"type": "request_started", "session_id": session_id, "request_id": request_id, "stream": stream}
            events = [appended, self._marker(session_id), started]
            return Change(replace(record, request_id=request_id), events, 1, append=[data])

        return await self._change(session_id, think, idle=True)

    async def checkpoint(self, session_id: str, request_id: str, messages: Sequence[Message]) -> SessionRecord:
        """Persist what a request has come to (rows A84, A85): its messages behind the others, and the cursor.

        Raises SessionFull, TooLarge, BadSession.
        """
        data = [rules.check_message(message, rules.MAX_RUNNER_MESSAGE_BYTES, roles=None) for message in messages]

        async def think(record: SessionRecord) -> Change:
            rules.check_request(record, request_id)
            rules.check_room(record.message_count + len(data), record.message_bytes + sum(map(len, data)))
            return Change(record, [self._marker(session_id, request_id)], 0, append=data)

        return await self._change(session_id, think)

    async def end(self, session_id: str, request_id: str, events: Sequence[Mapping[str, Any]]) -> SessionRecord:
        """The request is over: store its last events. The session is free."""

        async def think(record: SessionRecord) -> Change:
            rules.check_request(record, request_id)
            return Change(replace(record, request_id=None), events)

        return await self._change(session_id, think)

    # Inside.

    async def _change(self, session_id: str, think: _Thought, *, idle: bool = False) -> SessionRecord:
        lock = self._locks.setdefault(session_id, asyncio.Lock())
        async with lock:
            for tries in range(_TRIES):
                record = await self.get(session_id)
                if idle and record.request_id is not None:
                    raise RequestRunning(session_id, record.request_id)
                try:
                    change = await think(replace(record, updated_at=rfc3339(self._clock.wall())))
                    made, _ = await self._records.apply(change)
                except RecordMoved:
                    await self._clock.sleep(pause_before(tries))
                    continue
                return made
        raise StoreError(f"another process keeps changing session {session_id}; run one home for each store")

    async def _appended(self, record: SessionRecord, message: Message, data: bytes) -> Json:
        count, size = record.message_count + 1, record.message_bytes + len(data)
        rules.check_room(count, size)
        shown = await self._shown_messages(record)
        after = None if shown is None else [*shown, data]
        return {
            "type": "message_appended",
            "session_id": record.session_id,
            "role": message.role,
            "content": message.content,
            "metadata": message.metadata,
            "message": msgspec.to_builtins(message),
            "session": rules.show(replace(record, message_count=count, message_bytes=size), after),
        }

    async def _shown_messages(self, record: SessionRecord) -> _Texts | None:
        """All messages of the session, None if they are too many to be shown. Raises RecordMoved."""
        if record.message_bytes > rules.MAX_SHOWN_BYTES:
            return None
        found = await self._records.snapshot(record.session_id, 0, rules.MAX_MESSAGES, MAX_PAGE_BYTES)
        if found is None or found.record.revision != record.revision:
            raise RecordMoved(record.session_id)
        return found.messages

    def _marker(self, session_id: str, request_id: str | None = None) -> Json:
        """Row A84."""
        marker = {"type": "checkpoint", "session_id": session_id, "timestamp": rfc3339(self._clock.wall())}
        return marker if request_id is None else {**marker, "request_id": request_id}

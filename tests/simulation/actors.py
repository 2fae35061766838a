"""Who takes part: a hub, homes, apps. Each runs the real code in a process of its own, and starts again after its end.

An `Actor` is what outlives its processes: its disk, its name, what it was told. `main` is the program; it ends with
`Stopped`, or when the process is killed. A new kind of app is a subclass with a `main`; a new fault, a line in
`faults.FAULTS`.
"""

import asyncio
import json
from collections.abc import Iterator, MutableSet
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from bridge_client.app_client import AppClient, Event, Gap, Item
from bridge_client.cursor import CursorFile, SavedCursor
from bridge_client.dial import Disconnected, Stopped, WebSocketDialler, socket_url
from bridge_client.forwarder import Forwarder, Limits
from bridge_client.home_topic import EventRefused, Replaced
from bridge_client.link import Link, Session
from bridge_client.sources.store import StoreSource
from bridge_client.store import StoreError
from bridge_server.app import Hub
from bridge_server.clock import Clock
from bridge_server.config import Config
from bridge_server.device_cursors import WRITE_SECONDS
from protocol.client import ChannelClosed, ChannelErrored, NotJoined, Received, Replied
from protocol.events.compaction import PARTS
from tests.simulation.disk import Disk, DiskStore, StoreFile, VirtualPath
from tests.simulation.loop import Process
from tests.simulation.truth import Account, Breach, Sees, read

if TYPE_CHECKING:
    from tests.simulation.world import World

PORT = 4000
URL = f"http://127.0.0.1:{PORT}"


class Ordered(MutableSet[Any]):
    """A set in the order of its making: that of a real one depends on addresses."""

    def __init__(self, members: Any = ()) -> None:
        self._members = dict.fromkeys(members)

    def __contains__(self, member: object) -> bool:
        return member in self._members

    def __iter__(self) -> Iterator[Any]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def add(self, value: Any) -> None:
        self._members[value] = None

    def discard(self, value: Any) -> None:
        self._members.pop(value, None)


class Actor:
    """See the module."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.process: Process | None = None
        self.wanted = True
        self.crashes = 0

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.alive

    def start(self) -> None:
        """Start its program, unless it runs."""
        if self.wanted and not self.up:
            self.process = process = Process(self.world.loop, self.name)
            self.world.trace(f"{self.name} starts")
            process.spawn(self._main(process))

    async def _main(self, process: Process) -> None:
        try:
            await self.main(process)
        except Breach as breach:
            self.world.breach(str(breach))
        except Exception as error:
            self.world.breach(f"{self.name} failed: {type(error).__name__}: {error}", error)
        if process.alive:
            self.world.loop.at_once(lambda: self._over(process))

    def _over(self, process: Process) -> None:
        if self.process is process and process.alive:
            self.crash()
            self.world.again(self)

    async def main(self, process: Process) -> None:
        """The program."""
        raise NotImplementedError

    def crash(self, *, silently: bool = False) -> None:
        """End its process now; `silently` = the machine lost power, and its peers hear nothing."""
        if self.process is not None and self.process.alive:
            self.crashes += 1
            self.world.trace(f"{self.name} ends{' silently' if silently else ''}")
            self.world.network.kill(self.process, silently=silently)
            self.ended(self.process.kill(), power=silently)

    def ended(self, jobs: Any, *, power: bool) -> None:
        """Its memory is gone; `jobs` is what its threads were about to do."""


class HubActor(Actor):
    """The hub as `bridge_server.app` puts it together, on the virtual network."""

    def __init__(self, world: "World", name: str, settings: dict[str, Any]) -> None:
        super().__init__(world, name)
        self.settings = settings
        self.hub: Hub | None = None
        self._ends: dict[Process, float] = {}  # of its processes that were never frozen

    async def main(self, process: Process) -> None:
        config = Config(port=PORT, auto_enrol=False, state_dir=self.world.folder, **self.settings)
        clock = Clock(process.monotonic, process.wall)
        async with Hub(config, self.world.credentials, clock=clock) as hub:
            assert hub._listener is not None
            hub._listener.drivers = Ordered()  # type: ignore[assignment]
            hub._listener.splits = Ordered()  # type: ignore[assignment]
            hub.budget.busy = Ordered()  # type: ignore[assignment]
            self.hub = hub
            await hub.wait_closed()

    async def drain(self) -> None:
        """End it as an operator does."""
        hub, process = self.hub, self.process
        if hub is not None and process is not None and self.up:
            await hub.drain()
            await hub.close()

    def remembers(self, process: Process | None, at: float) -> bool:
        """Whether what it was told then must be known still: to this process, or written by it before its end."""
        if process is self.process:
            return True
        end = None if process is None else self._ends.get(process)
        return end is not None and end - at > 3 * WRITE_SECONDS

    def ended(self, jobs: Any, *, power: bool) -> None:
        self.hub = None
        self.world.hub_forgot()
        process = self.process
        if process is not None and not process.was_frozen:
            self._ends[process] = self.world.loop.time()


class HomeActor(Actor):
    """A home: a store on a disk, programs that publish into it, and the forwarder."""

    def __init__(self, world: "World", name: str, file: StoreFile, disk: Disk, limits: Limits) -> None:
        super().__init__(world, name)
        self.disk = disk
        self.file = file
        self.limits = limits
        self.publishes = True
        self.replaced = 0
        self._reply = ("s1", "r1")
        self._parts: dict[tuple[str, str], list[str]] = {}

    async def main(self, process: Process) -> None:
        store = DiskStore(self.file)
        rng = Random(self.world.random.random())
        publishing = asyncio.create_task(self._publish(store, rng))
        cursor = CursorFile(VirtualPath(self.disk, f"{self.name}.cursor"))  # type: ignore[arg-type]
        forwarder = Forwarder(
            StoreSource(store),
            cursor,
            Link(URL, self.world.home_token, dial=WebSocketDialler(), clock=process, rng=rng),
            server_id=self.world.server_id,
            hub_url=URL,
            name=self.name,
            instance=self.name,
            limits=self.limits,
            clock=process,
        )
        try:
            await forwarder.run()
        except Replaced:
            self.replaced += 1
            self.world.trace(f"{self.name} was replaced")
        except EventRefused as refused:
            self.world.breach(f"{self.name}: {refused}")
        except (OSError, StoreError) as error:
            self.world.trace(f"{self.name} ends: {error}")
        publishing.cancel()

    async def _publish(self, store: DiskStore, rng: Random) -> None:
        while True:
            await asyncio.sleep(rng.choice((0.001, 0.1, 1.0, 5.0)))
            for _ in range(rng.choice((1, 1, 1, 2, 5, 20)) if self.publishes else 0):
                await self.publish(store, rng)

    async def publish(self, store: DiskStore, rng: Random) -> None:
        """One event, which no other is like: mostly the next part of a reply, or its whole."""
        number = self.world.number()
        if rng.random() < 0.4:
            self._reply = (rng.choice(("s1", "s2")), rng.choice(("r1", "r2")))
        parts = self._parts.setdefault(self._reply, [])
        event: dict[str, Any] = {"session_id": self._reply[0], "request_id": self._reply[1], "n": number}
        text = f"<{number}>" + "x" * rng.choice(
            (0, 10, 10, 300, 5_000 if rng.random() < self.world.profile.large else 40)
        )
        event["type"] = kind = rng.choice(("partial", "partial", "partial", "final", "tool_call"))
        if kind == "partial":
            parts.append(text)
            event["message"] = {"role": "assistant", "content": text}
        elif kind == "final":
            whole = "".join(parts) if parts and rng.random() < 0.8 else text
            event["messages"] = [{"role": "assistant", "content": whole}]
            parts.clear()
        else:
            event["text"] = text
        try:
            await store.publish(event)
        except StoreError:
            self.world.trace(f"{self.name} could not publish")

    def ended(self, jobs: Any, *, power: bool) -> None:
        self.disk.finish(jobs)
        if power:
            self.disk.crash()

    @property
    def cursor(self) -> Any:
        """What its cursor file says, None if there is none or it is damaged."""
        try:
            return json.loads(self.disk.read(f"{self.name}.cursor"))
        except (FileNotFoundError, ValueError):
            return None


class PlainHome(HomeActor):
    """A home of another make: one event at a time, from its own cursor on, whatever the hub says that it holds.

    What was not acknowledged before a drop comes again.
    """

    async def main(self, process: Process) -> None:
        store = DiskStore(self.file)
        rng = Random(self.world.random.random())
        publishing = asyncio.create_task(self._publish(store, rng))
        cursor = CursorFile(VirtualPath(self.disk, f"{self.name}.cursor"))  # type: ignore[arg-type]
        link = Link(URL, self.world.home_token, dial=WebSocketDialler(), clock=process, rng=rng)
        saved = cursor.load()
        self._at = 0 if saved is None else saved.event_id
        try:
            await link.run(lambda session: self._talk(session, store, cursor))
        except Replaced:
            self.world.trace(f"{self.name} was replaced")
        publishing.cancel()

    async def _talk(self, session: Session, store: DiskStore, cursor: CursorFile) -> None:
        topic, head = f"server:{self.world.server_id}", await store.head()
        await session.join(topic, {"epoch": store.epoch, "head_id": None if head is None else str(head)})
        while True:
            page = await store.list(since_id=self._at, limit=1)
            if not page:
                for event in session.take():
                    self._heed(event)
                await asyncio.sleep(0.3)
                continue
            try:
                ref = session.push(topic, "session_event", b'{"event":%b}' % page[0].data)
                async with asyncio.timeout(30):
                    while not (isinstance(event := await session.next(), Replied) and event.ref == ref):
                        self._heed(event)
            except (TimeoutError, NotJoined):
                raise Disconnected("no answer") from None
            if not event.ok:
                raise Disconnected(f"not taken: {bytes(event.response)!r}")
            self._at = page[0].event_id
            cursor.save(SavedCursor(store.epoch, self._at, None, URL, self.world.server_id))

    def _heed(self, event: Any) -> None:
        if isinstance(event, Received) and event.event == "replaced":
            raise Replaced(None)
        if isinstance(event, ChannelErrored | ChannelClosed):
            raise Disconnected("the topic ended")


def everything(data: bytes) -> bool:
    return True


def no_partials(data: bytes) -> bool:
    return read(data)["type"] not in PARTS


def finals(data: bytes) -> bool:
    return bool(read(data)["type"] == "final")


def one_session(data: bytes) -> bool:
    return bool(read(data)["session_id"] == "s1")


WISHES: tuple[tuple[dict[str, Any], Sees], ...] = (
    ({}, everything),
    ({}, everything),
    ({"partials": "merged"}, everything),
    ({"partials": "merged", "session_id": "s1"}, one_session),
    ({"partials": "none"}, no_partials),
    ({"types": ["final"]}, finals),
)


class App(Actor):
    """What all kinds of app share: an account, durable as far as the app saved it, and a pace."""

    moves_along = True
    """See Account."""

    def __init__(self, world: "World", name: str, since: int | None, wishes: int) -> None:
        super().__init__(world, name)
        self.wishes, sees = WISHES[wishes]
        self.account = Account(
            name,
            world.truth,
            since,
            sees,
            moves_along=self.moves_along,
        )
        self.token = world.device()
        self.slow = 0.0
        self.cursor: Any = None if since is None else (None, since)
        self._saved = (self.account.state, self.cursor)

    async def took(self, rng: Random) -> None:
        """Something was taken: deal with it, for as long as that takes, and perhaps save how far it got."""
        if self.slow:
            await asyncio.sleep(rng.random() * self.slow)
        if rng.random() < 0.6:
            state = (self.account.state, self.cursor)
            await asyncio.sleep(0.0001)
            self._saved = state

    def ended(self, jobs: Any, *, power: bool) -> None:
        self.account.state, self.cursor = self._saved


class PythonApp(App):
    """`bridge_client.AppClient`."""

    moves_along = False

    async def main(self, process: Process) -> None:
        rng = Random(self.world.random.random())
        client = AppClient(
            URL,
            self.token,
            self.world.server_id,
            cursor=self.cursor,
            dial=WebSocketDialler(),
            clock=process,
            rng=rng,
            **self.wishes,
        )
        async with client:
            async for item in client:
                self.world.trace(f"{self.name} takes {_brief(item)} at {client.cursor}")
                self._take(item, client.cursor)
                self.cursor = client.cursor
                await self.took(rng)

    def _take(self, item: Item, cursor: Any) -> None:
        account = self.account
        if isinstance(item, Event):
            account.event(cursor.epoch, item.event_id, item.data)
        elif isinstance(item, Gap):
            account.gap(item.reason, item.from_id, item.resume_after)
        elif cursor is not None and cursor != self.cursor:
            account.moved(cursor.epoch, cursor.event_id)


def _brief(item: Item) -> str:
    return f"event {item.event_id}" if isinstance(item, Event) else str(item)


_V2 = msgspec.json.Decoder(tuple[Any, Any, str, str, msgspec.Raw])


class _Push(msgspec.Struct):
    event: msgspec.Raw


class PhoenixApp(App):
    """An app on a plain Phoenix client. It reads the verdict in the join's reply only: `replay_complete` it ignores.

    `stubborn`: it sends the payload of its first join for ever, as phoenix.js does with a plain object, and so asks for
    everything again.
    """

    stubborn = False
    forgetful = False

    async def main(self, process: Process) -> None:
        self._asked: dict[str, Said] = {}
        self._epoch: str | None = None  # of the events that come, as far as the hub has said it
        self._rng = Random(self.world.random.random())
        while True:
            try:
                async with asyncio.timeout(20):
                    wire = await WebSocketDialler()(socket_url(URL), {"Authorization": f"Bearer {self.token}"})
                try:
                    await self._talk(wire)
                finally:
                    wire.abort()
            except (Disconnected, TimeoutError):
                await asyncio.sleep(self._rng.choice((0.1, 1.0, 5.0)))
            except Stopped as stopped:
                raise Breach(f"{self.name}: {stopped}") from None

    async def _talk(self, wire: Any) -> None:
        self._refs = 0
        self._topic = f"app:{self.world.server_id}"
        self._asked.clear()
        await self._join(wire)
        heard = True
        while True:
            try:
                async with asyncio.timeout(20):
                    message = await wire.recv()
            except TimeoutError:
                if not heard:
                    return
                heard = False
                async with asyncio.timeout(20):
                    await wire.send(b'[null,"h","phoenix","heartbeat",{}]')
                continue
            heard = True
            join_ref, ref, topic, event, payload = _V2.decode(message)
            if topic == self._topic and join_ref == self._join_ref:
                await self._take(wire, event, ref, bytes(payload))

    async def _join(self, wire: Any) -> None:
        self._refs += 1
        self._join_ref = str(self._refs)
        wishes = dict(self.wishes)
        if self.stubborn:
            wishes["since_id"] = "0"
        elif self.forgetful:
            wishes["cursor"] = "server"
        elif self.cursor is not None:
            epoch, place = self.cursor
            wishes |= {"since_id": str(place)} | ({} if epoch is None else {"epoch": epoch})
        await wire.send(json.dumps([self._join_ref, self._join_ref, self._topic, "phx_join", wishes]).encode())

    async def _take(self, wire: Any, event: str, ref: Any, payload: bytes) -> None:
        if event == "session_event":
            await self._event(bytes(msgspec.json.decode(payload, type=_Push).event))
            await self._say(wire)
        elif event == "phx_reply" and ref == self._join_ref:
            self._judged(json.loads(payload))
            await self._say(wire)
        elif event == "server_status":
            self._status(json.loads(payload))
            await self._say(wire)
        elif event == "phx_reply":
            self._answered(ref, json.loads(payload))
        elif event == "phx_error":
            self.world.trace(f"{self.name} joins again: {payload!r}")
            if json.loads(payload)["reason"] == "epoch_changed" and self.cursor and self.cursor[0] is None:
                self.account.gap("epoch_changed", self.cursor[1], 0)  # it can't say of which epoch its place was
                self.cursor = (None, 0)
            await asyncio.sleep(self._rng.choice((0.1, 1.0)))
            await self._join(wire)
        elif event == "phx_close":
            raise Breach(f"{self.name}: the hub ended its topic")

    async def _say(self, wire: Any) -> None:
        """Tell the hub how far it has read, if that is where its place is kept."""

    def _answered(self, ref: str, reply: dict[str, Any]) -> None:
        """The hub's answer to that."""

    def _reminded(self, answer: dict[str, Any]) -> None:
        """The hub says how far it had read."""

    async def _event(self, data: bytes) -> None:
        number = int(read(data)["event_id"])
        epoch = (self.cursor and self.cursor[0]) or self._epoch
        self.world.trace(f"{self.name} takes event {number} in {epoch}")
        self.account.event(epoch, number, data)
        self.cursor = (epoch, number)
        await self.took(self._rng)

    def _status(self, status: dict[str, Any]) -> None:
        self._epoch = status["epoch"] or self._epoch
        # Told to who joined without a cursor: from where events come.
        if status["head_id"] is not None and (self.cursor is None or self.cursor[0] not in (None, status["epoch"])):
            self.cursor = (status["epoch"], int(status["head_id"]))
            self.account.moved(*self.cursor)

    def _judged(self, reply: dict[str, Any]) -> None:
        answer = reply["response"]
        self.world.trace(f"{self.name} is answered {answer}")
        if reply["status"] != "ok":
            raise Breach(f"{self.name}: its join was refused: {answer}")
        if self.stubborn:
            self.account.rewind(0)
            self.cursor = (answer["epoch"], 0)
        elif self.forgetful:
            self._reminded(answer)
        epoch, place = self.cursor or (None, None)
        self._epoch = answer["epoch"]
        if answer["recovered"] is False:
            gap, head = answer["gap"], answer["head_id"]
            told_nothing = gap["reason"] == "hub_reset" or head is None
            after = None if told_nothing else int(head)
            self.account.gap(gap["reason"], int(gap["from_id"]), after)
            if after is not None:
                self.cursor = (answer["epoch"], after)
        elif answer["epoch"] is not None and epoch is None and answer["recovered"]:
            at = place if place is not None else answer["head_id"]
            self.cursor = None if at is None else (answer["epoch"], int(at))


class StubbornApp(PhoenixApp):
    """See PhoenixApp."""

    stubborn = True


class Said(NamedTuple):
    """A place that an app told the hub: when, to which of its processes."""

    epoch: str
    place: int
    at: float
    hub: Process | None


class ForgetfulApp(PhoenixApp):
    """Keeps nothing at all: the hub keeps its place, which it tells now and then."""

    forgetful = True

    def __init__(self, world: "World", name: str, since: int | None, wishes: int) -> None:
        super().__init__(world, name, None, wishes)
        self._said: list[Said] = []
        self._kept: Said | None = None  # the last one that the hub has to know still

    async def _say(self, wire: Any) -> None:
        if self.cursor is not None and self.cursor[0] is not None and self._rng.random() < 0.5:
            self._refs += 1
            epoch, place = self.cursor
            said = Said(epoch, place, self.world.loop.time(), self.world.hub.process)
            self._said.append(said)
            self._asked[str(self._refs)] = said
            payload = {"event_id": str(place), "epoch": epoch}
            await wire.send(json.dumps([self._join_ref, str(self._refs), self._topic, "cursor", payload]).encode())

    def _answered(self, ref: str, reply: dict[str, Any]) -> None:
        said = self._asked.pop(ref, None)
        if said is not None and reply["status"] == "ok":
            self._kept = said._replace(at=self.world.loop.time())

    def _reminded(self, answer: dict[str, Any]) -> None:
        since, kept = answer["since_id"], self._kept
        known = [said for said in self._said if since is not None and said.place == int(since)]
        if since is not None and not known:
            raise Breach(f"{self.name}: it never said that it was at {since}")
        if (
            kept is not None
            and self.world.hub.remembers(kept.hub, kept.at)
            and not any(said.epoch != kept.epoch or said.place >= kept.place for said in known)
        ):
            raise Breach(f"{self.name}: the hub says that it was at {since}, and had taken {kept}")
        self._kept = None
        self.account.rewind(None if since is None else int(since), {said.epoch for said in known})
        self.cursor = None if since is None else (known[-1].epoch, int(since))

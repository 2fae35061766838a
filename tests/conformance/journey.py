"""What every client must get through: join, receive, be dropped, resume with nothing missing or doubled, leave."""

from typing import Protocol

from tests.conformance.driver import Driver
from tests.support.cable import Cable

LONG_TEXT = "while nobody listened: é, \u2028, 🙂"


class Source(Protocol):
    """Whose events the clients receive."""

    epoch: str

    async def publish(self, count: int = 1, text: str = "some text") -> list[str]:
        """Publish so many events; their ids."""


async def join_drop_resume_leave(program: Driver, home: Source, cable: Cable) -> None:
    """Take its clients through it all.

    Their ids in the end are exactly what the home published while they were joined.
    """
    await program.until(lambda it: it.of("joined"), "its join")
    await program.until(lambda it: it.payloads("replay_complete"), "replay_complete of the first join")
    sent = await home.publish(20)
    await program.until(lambda it: it.event_ids()[-1:] == sent[-1:], "the live events")

    cable.cut()
    await program.until(lambda it: it.of("closed"), "the drop")
    sent += await home.publish(50, text=LONG_TEXT)
    for client in program.clients:
        assert client.event_ids() == sent[:20], client.name
    cable.mend()

    await program.until(lambda it: len(it.payloads("replay_complete")) == 2, "replay_complete of the rejoin")
    for client in program.clients:
        assert client.event_ids() == sent, f"{client.name}: the replay comes whole, in order, before replay_complete"
        verdict = client.payloads("replay_complete")[1]
        assert verdict == {"epoch": home.epoch, "to_id": sent[-1], "recovered": True, "gap": None}, client.name
    sent += await home.publish(20)
    await program.until(lambda it: it.event_ids()[-1:] == sent[-1:], "the live events after the rejoin")

    await program.command("leave")
    await program.until(lambda it: it.of("left"), "the answer to its leave")
    await home.publish(5)
    for client in program.clients:
        assert client.event_ids() == sent, f"{client.name}: everything once, in order, and nothing after the leave"
        texts = [payload["event"]["data"] for payload in client.payloads("session_event")]
        assert texts == ["some text"] * 20 + [LONG_TEXT] * 50 + ["some text"] * 20, client.name
        assert len(client.of("opened")) == 2, f"{client.name}: one drop, one reconnect: nothing else closed the socket"

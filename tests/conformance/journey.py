"""What every client must get through: join, receive, be dropped, resume with nothing missing or doubled, leave."""

from tests.conformance.conftest import Scene
from tests.conformance.driver import Driver


async def join_drop_resume_leave(client: Driver, scene: Scene) -> None:
    """Take one client through it all. Its ids in the end are exactly what the home published while it was joined."""
    home, cable = scene.home, scene.cable
    await client.until(lambda it: it.of("joined"), "its join")
    await client.until(lambda it: it.payloads("replay_complete"), "replay_complete of the first join")
    sent = await home.publish(20)
    await client.until(lambda it: it.event_ids()[-1:] == sent[-1:], "the live events")

    cable.cut()
    await client.until(lambda it: it.of("closed"), "the drop")
    sent += await home.publish(50, text="while nobody listened: é, \u2028, 🙂")
    assert client.event_ids() == sent[:20]
    cable.mend()

    await client.until(lambda it: len(it.payloads("replay_complete")) == 2, "replay_complete of the rejoin")
    assert client.event_ids() == sent, "the replay comes whole, in order, before replay_complete"
    verdict = client.payloads("replay_complete")[1]
    assert verdict == {"epoch": home.epoch, "to_id": sent[-1], "recovered": True, "gap": None}
    sent += await home.publish(20)
    await client.until(lambda it: it.event_ids()[-1:] == sent[-1:], "the live events after the rejoin")
    assert client.event_ids() == sent
    texts = [payload["event"]["data"] for payload in client.payloads("session_event")]
    assert texts == ["some text"] * 20 + ["while nobody listened: é, \u2028, 🙂"] * 50 + ["some text"] * 20

    await client.command("leave")
    await client.until(lambda it: it.of("left"), "the answer to its leave")
    await home.publish(5)
    assert client.event_ids() == sent, "nothing comes after a leave"
    assert len(client.of("opened")) == 2, "one drop, one reconnect: nothing else closed the socket"

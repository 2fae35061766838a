"""The PubSub contract, against every backend."""

from typing import Any

import pytest

from bridge_server.pubsub import PubSub
from bridge_server.pubsub.memory import MemoryPubSub


@pytest.fixture(params=["memory"])
def pubsub() -> PubSub:
    return MemoryPubSub()


def test_messages_of_one_topic_arrive_in_order_at_every_receiver(pubsub: PubSub) -> None:
    one: list[Any] = []
    two: list[Any] = []
    pubsub.subscribe("a", one.append)
    pubsub.subscribe("a", two.append)
    for number in range(100):
        pubsub.publish("a", number)
    assert one == two == list(range(100))


def test_topics_are_apart(pubsub: PubSub) -> None:
    got: list[Any] = []
    pubsub.subscribe("a", got.append)
    for topic in ("b", "", "A", "a:", "a*", "*"):
        pubsub.publish(topic, topic)
    assert got == []


def test_nothing_is_kept_for_who_comes_later(pubsub: PubSub) -> None:
    got: list[Any] = []
    pubsub.publish("a", 1)
    pubsub.subscribe("a", got.append)
    pubsub.publish("a", 2)
    assert got == [2]


def test_who_unsubscribes_gets_nothing_more(pubsub: PubSub) -> None:
    one: list[Any] = []
    two: list[Any] = []
    take_one, take_two = one.append, two.append
    pubsub.subscribe("a", take_one)
    pubsub.subscribe("a", take_two)
    pubsub.publish("a", 1)
    pubsub.unsubscribe("a", take_one)
    pubsub.publish("a", 2)
    assert (one, two) == ([1], [1, 2])


def test_unknown_receivers_are_ignored(pubsub: PubSub) -> None:
    pubsub.unsubscribe("nowhere", print)
    got: list[Any] = []
    take = got.append
    pubsub.subscribe("a", take)
    pubsub.unsubscribe("a", print)
    pubsub.unsubscribe("a", take)
    pubsub.unsubscribe("a", take)
    pubsub.publish("a", 1)
    assert got == []


def test_receivers_may_come_and_go_during_a_publish(pubsub: PubSub) -> None:
    got: list[Any] = []
    late: list[Any] = []

    def once(message: Any) -> None:
        got.append(message)
        pubsub.unsubscribe("a", once)
        pubsub.subscribe("a", late.append)

    last: list[Any] = []
    pubsub.subscribe("a", once)
    pubsub.subscribe("a", last.append)
    pubsub.publish("a", 1)
    pubsub.publish("a", 2)
    assert got == [1]
    assert last == [1, 2]
    assert late[-1] == 2


def test_memory_in_particular_forgets_a_topic_without_receivers() -> None:
    pubsub = MemoryPubSub()
    take = [].append
    pubsub.subscribe("a", take)
    pubsub.unsubscribe("a", take)
    pubsub.publish("b", 1)
    assert pubsub._receivers == {}

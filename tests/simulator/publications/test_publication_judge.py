"""The judge of publications notices what cannot be, and accepts what can."""

from __future__ import annotations

import pytest

from backend.api import ReceivedMessage, SendResult
from backend.engine.receipt_handles import Handles
from tests.simulator.checks.model import Violation
from tests.simulator.publications.history import PublicationHistory, SentPublication, SimTopic, SubscribedQueue

WINDOW_MS = 1000


class JudgedTopic:
    """Two subscribed queues with their judge, and short forms of calls."""

    def __init__(self, *, fifo: bool = False) -> None:
        self.history = PublicationHistory(WINDOW_MS)
        self.one = SubscribedQueue(11, "one", fifo)
        self.two = SubscribedQueue(12, "two", fifo)
        self.topic = SimTopic(9, "topic", fifo)
        self.other = SimTopic(10, "other", fifo)
        self.group = "g" if fifo else None

    def publish(
        self,
        name: str,
        *queues: SubscribedQueue,
        twin_of: str = "",
        answered: bool = True,
        topic: SimTopic | None = None,
    ) -> SentPublication:
        topic = topic or self.topic
        token_of = (twin_of or name).encode()
        sent = SentPublication(name.encode(), topic, self.group, self.history.tick(), token_of)
        self.call(sent, *queues)
        if answered:
            self.history.published(sent, SendResult(f"id of {name}", 1))
        return sent

    def call(self, sent: SentPublication, *queues: SubscribedQueue) -> None:
        """Publish, or repeat it, with the present subscriptions of these queues."""
        self.history.publishing(sent, {queue: queue.subscription(sent.topic) for queue in queues})

    def receive(
        self,
        queue: SubscribedQueue,
        name: str,
        number: int,
        *,
        sent_ms: int = 0,
        subscription: bytes | None = None,
        published: int | None = None,
    ) -> None:
        """``published``: the number of the publication; None: the one that the publish was answered with."""
        handle = Handles(queue.queue_id, bytes(16)).issue(number, 1, 1)
        one = ReceivedMessage(f"{queue.name}.{number}", handle, name.encode(), number, 1, 1, sent_ms, self.group)
        one.subscription, one.raw = subscription or queue.subscription(self.topic), queue.raw
        one.publication_number = (1 if queue.fifo else 0) if published is None else published
        self.history.received(queue, [one], self.history.tick())


def test_what_arrived_once_everywhere_may_be() -> None:
    judged = JudgedTopic()
    judged.publish("a", judged.one, judged.two)
    judged.publish("b", judged.one)
    judged.publish("lost", judged.one, judged.two, answered=False)
    for queue, name, number in ((judged.one, "b", 1), (judged.one, "a", 2), (judged.two, "a", 1), (judged.two, "a", 1)):
        judged.receive(queue, name, number)
    judged.history.finished()
    assert judged.history.counts["fanned out"] == 4


def test_an_answered_publication_has_to_arrive_everywhere() -> None:
    judged = JudgedTopic()
    judged.publish("a", judged.one, judged.two)
    judged.receive(judged.one, "a", 1)
    with pytest.raises(Violation, match=r"a has not arrived in \['two'\]"):
        judged.history.finished()
    judged.two.deleting = True
    judged.history.finished()


def test_an_unanswered_one_arrives_everywhere_or_nowhere() -> None:
    judged = JudgedTopic()
    judged.publish("a", judged.one, judged.two, answered=False)
    judged.history.finished()
    judged.receive(judged.one, "a", 1)
    with pytest.raises(Violation, match="has not arrived"):
        judged.history.finished()


def test_a_delivery_comes_once_and_to_no_other_queue() -> None:
    judged = JudgedTopic()
    judged.publish("a", judged.one)
    judged.receive(judged.one, "a", 1)
    with pytest.raises(Violation, match="was delivered twice"):
        judged.receive(judged.one, "a", 2)
    with pytest.raises(Violation, match="was not published to it"):
        judged.receive(judged.two, "a", 1)
    with pytest.raises(Violation, match="was not published to it"):
        judged.receive(judged.one, "unheard of", 3)
    with pytest.raises(Violation, match="has another head"):
        judged.receive(judged.one, "a", 1, subscription=b"s" * 16)


def test_a_deleted_message_does_not_return() -> None:
    judged = JudgedTopic()
    judged.publish("a", judged.one)
    judged.receive(judged.one, "a", 1)
    judged.history.deleted(judged.one, [b"a"])
    with pytest.raises(Violation, match="after its delete was answered"):
        judged.receive(judged.one, "a", 1)


def test_ids_are_used_once() -> None:
    judged = JudgedTopic()
    first = judged.publish("a", judged.one)
    with pytest.raises(Violation, match="with another id"):
        judged.history.published(first, SendResult("another", 1))
    second = judged.publish("b", judged.one, answered=False)
    with pytest.raises(Violation, match="have the same id"):
        judged.history.published(second, SendResult("id of a", 1))


def test_all_deliveries_have_the_number_of_the_answer_if_the_topic_is_fifo() -> None:
    judged = JudgedTopic(fifo=True)
    sent = judged.publish("a", judged.one, judged.two, answered=False)
    judged.receive(judged.one, "a", 5, published=3)
    with pytest.raises(Violation, match="another number than its publication: 4"):
        judged.receive(judged.two, "a", 5, published=4)
    with pytest.raises(Violation, match="was answered with 1, and it has 3"):
        judged.history.published(sent, SendResult("id of a", 1))
    judged.history.published(sent, SendResult("id of a", 3))
    plain = JudgedTopic()
    plain.publish("a", plain.one)
    with pytest.raises(Violation, match="another number than its publication: 1"):
        plain.receive(plain.one, "a", 1, published=1)


def test_groups_arrive_in_order() -> None:
    judged = JudgedTopic(fifo=True)
    judged.publish("a", judged.one, judged.two, answered=False)
    judged.publish("b", judged.one)
    judged.publish("c", judged.one, judged.two)
    judged.receive(judged.two, "c", 1)
    with pytest.raises(Violation, match="c in one was received before b"):
        judged.receive(judged.one, "c", 1)
    judged.receive(judged.one, "b", 1)
    judged.receive(judged.one, "c", 2)


def test_a_deduplication_id_arrives_once_in_its_window() -> None:
    judged = JudgedTopic(fifo=True)
    judged.publish("a", judged.one)
    judged.publish("b", judged.one, twin_of="a")
    with pytest.raises(Violation, match="has not arrived"):
        judged.history.finished()
    judged.receive(judged.one, "a", 1, sent_ms=5000)
    judged.history.finished()
    with pytest.raises(Violation, match="has the deduplication id of b'a'"):
        judged.receive(judged.one, "b", 2, sent_ms=5000 + WINDOW_MS - 1)
    judged.receive(judged.one, "b", 2, sent_ms=5000 + WINDOW_MS)


def test_a_deduplication_id_of_another_topic_counts_too() -> None:
    judged = JudgedTopic(fifo=True)
    judged.publish("a", judged.one, judged.two, topic=judged.other)
    judged.publish("b", judged.one, judged.two, twin_of="a")
    judged.publish("c", judged.one)
    judged.receive(judged.one, "b", 1)
    judged.receive(judged.one, "c", 2)
    with pytest.raises(Violation, match=r"a has not arrived in \['two'\]"):
        judged.history.finished()
    judged.receive(judged.two, "a", 1, subscription=judged.two.subscription(judged.other))
    judged.history.finished()


def test_what_arrives_is_what_one_call_listed() -> None:
    judged = JudgedTopic()
    sent = judged.publish("a", judged.one, judged.two, answered=False)
    judged.two.subscribed += 1
    judged.call(sent, judged.two)
    judged.receive(judged.two, "a", 1)
    judged.history.finished()
    judged.receive(judged.one, "a", 1)
    with pytest.raises(Violation, match="no single call"):
        judged.history.finished()


def test_what_is_pending_is_dropped_with_its_topic_or_when_it_is_old() -> None:
    judged = JudgedTopic(fifo=True)
    judged.publish("a", judged.one, judged.two)
    judged.publish("b", judged.one)
    with pytest.raises(Violation, match="has not arrived"):
        judged.history.finished()
    judged.topic.expires = True
    judged.receive(judged.one, "b", 1)
    assert judged.history.finished() == 2
    judged.topic.expires, judged.topic.deleting = False, True
    assert judged.history.finished() == 0

"""Histories that clients of a cluster may be told, and some that they may not."""

from __future__ import annotations

import pytest

from backend.api import HandleOutcome, NewMessage, ReceivedMessage, SendResult
from backend.engine.ids import message_id, salt_of
from backend.engine.receipt_handles import Handles
from tests.simulator.checks.history import DeliveryClaim, QueueHistory, RunHistory, SentMessage
from tests.simulator.checks.model import Violation

DEAD, SOURCE = 7, 8
"""Partitions."""


class _ClientView:
    """A FIFO queue with dead letters, and what its clients are told."""

    def __init__(self) -> None:
        self.history = RunHistory()
        self.dead = QueueHistory(1, "dead", fifo=True, partitions=[DEAD])
        self.source = QueueHistory(2, "source", fifo=True, partitions=[SOURCE], dead_letter=self.dead, max_receives=2)
        self.dead.feeds.append(self.source)
        self.now = 0.0

    def sent(self, number: int, payload: bytes) -> None:
        msgs = self.history.sending(self.source, [NewMessage(payload, group="g", token=payload.rjust(16))])
        stored = [SendResult(message_id(SOURCE, number, salt_of(b"")), number)]
        self.history.sent(msgs, stored, lambda _: True)

    def received(
        self, queue: QueueHistory, *found: tuple[int, bytes], receives: int = 1, seconds: int = 30
    ) -> list[tuple[str, SentMessage, DeliveryClaim]]:
        self.now += 1.0
        (partition,) = queue.partitions
        issue = Handles(partition, bytes(16)).issue
        answer = [
            ReceivedMessage(
                message_id(SOURCE, number, salt_of(b"")),
                issue(number, receives, int(self.now)),
                payload,
                number,
                receives,
                0,
                0,
                "g",
            )
            for number, payload in found
        ]
        return self.history.received(queue, answer, seconds, self.history.tick(), self.now, self.now)


def test_a_message_may_be_twice_when_a_purge_has_forgotten_its_id_and_it_had_left_before() -> None:
    """It became a dead letter, its queue was purged, and its sender, who had heard nothing, sent it again."""
    told = _ClientView()
    told.sent(1, b"m000001.")
    told.history.purged(told.source, told.history.purging(told.source))
    told.history.finished({b"m000001.": [(told.dead, (DEAD, 1)), (told.source, (SOURCE, 5))]})


def test_a_message_may_not_be_twice() -> None:
    told = _ClientView()
    told.sent(1, b"m000001.")
    with pytest.raises(Violation, match="in several places"):
        told.history.finished({b"m000001.": [(told.dead, (DEAD, 1)), (told.source, (SOURCE, 5))]})


def test_a_message_may_be_twice_when_its_send_was_repeated_after_the_window() -> None:
    told = _ClientView()
    told.sent(1, b"m000001.")
    told.history.repeated_late([told.history.messages[b"m000001."]])
    told.sent(5, b"m000001.")
    told.history.finished({b"m000001.": [(told.source, (SOURCE, 1)), (told.source, (SOURCE, 5))]})


def test_a_repeat_within_the_window_is_answered_as_the_first() -> None:
    told = _ClientView()
    told.sent(1, b"m000001.")
    with pytest.raises(Violation, match="a repeated send of m000001"):
        told.sent(5, b"m000001.")


def test_an_id_that_is_used_again_after_its_window_is_not_taken_for_a_repeat() -> None:
    told = _ClientView()
    told.sent(1, b"m000001.")
    with pytest.raises(Violation, match="have the same message id"):
        told.sent(1, b"m000002.")


def test_a_later_message_is_not_received_while_a_claim_holds_an_earlier_one() -> None:
    told = _ClientView()
    told.sent(1, b"m000001.")
    told.sent(2, b"m000002.")
    told.received(told.source, (1, b"m000001."))
    with pytest.raises(Violation, match="while a claim holds"):
        told.received(told.source, (2, b"m000002."))


def test_an_earlier_message_is_not_received_after_a_later_one() -> None:
    told = _ClientView()
    told.sent(1, b"m000001.")
    told.sent(2, b"m000002.")
    told.received(told.source, (2, b"m000002."))
    with pytest.raises(Violation, match="was received after"):
        told.received(told.source, (1, b"m000001."))


def test_a_later_message_is_received_when_the_earlier_one_is_a_dead_letter() -> None:
    told = _ClientView()
    told.sent(1, b"m000001.")
    told.sent(2, b"m000002.")
    told.received(told.source, (1, b"m000001."), seconds=0)
    told.received(told.source, (2, b"m000002."))
    told.received(told.dead, (1, b"m000001."))


def test_dead_letters_keep_their_order() -> None:
    told = _ClientView()
    told.sent(1, b"m000001.")
    told.sent(2, b"m000002.")
    told.received(told.dead, (5, b"m000002."), seconds=0)
    with pytest.raises(Violation, match="sent as"):
        told.received(told.dead, (6, b"m000001."))


def test_an_earlier_handle_of_a_fifo_queue_is_not_taken() -> None:
    told = _ClientView()
    told.sent(1, b"m000001.")
    ((_, msg, old),) = told.received(told.source, (1, b"m000001."), seconds=1)
    told.now = 10.0
    told.received(told.source, (1, b"m000001."), receives=2)
    told.history.deleting([msg])
    assert msg.endings == 1
    told.now += 1.0
    told.history.deleted(msg, old, HandleOutcome.EXPIRED, told.now, retired=False)
    with pytest.raises(Violation, match="an earlier handle"):
        told.history.handle_counted(msg, old, told.now, told.now)


def test_several_deletes_of_one_message_say_nothing_of_its_handles() -> None:
    """A call that arrives late, or twice, finds it gone, and any handle is answered as done.  (Found by seed 211 of
    the clocks, with two handles in one call, and by the ordinary seed 319, with a later call that was faster.)"""
    told = _ClientView()
    told.sent(1, b"m000001.")
    ((_, msg, _),) = told.received(told.source, (1, b"m000001."), seconds=1)
    told.history.deleting([msg, msg])
    assert msg.endings == 2
    told.history.purging(told.source)
    assert msg.endings == 3

"""Histories that clients of a cluster may observe, and some that they may not."""

import pytest

from backend.api import HandleOutcome, NewMessage, ReceivedMessage, SendResult
from backend.engine.ids import message_id, salt_of
from backend.engine.receipt_handles import Handles
from tests.simulator.checks.history import DeliveryClaim, QueueHistory, RunHistory, SentMessage
from tests.simulator.checks.model import Violation

DEAD, SOURCE = 7, 8
"""Partitions."""
ONE, TWO = b"m000001.", b"m000002."


class _ClientView:
    """A FIFO queue with dead letters, and the answers to its clients."""

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
        issue, salt = Handles(partition, bytes(16)).issue, salt_of(b"")
        answer = []
        for number, payload in found:
            one_id, handle = message_id(SOURCE, number, salt), issue(number, receives, int(self.now))
            answer.append(ReceivedMessage(one_id, handle, payload, number, receives, 0, 0, "g"))
        return self.history.received(queue, answer, seconds, self.history.tick(), self.now, self.now)


@pytest.fixture
def view() -> _ClientView:
    """Clients with the answer that message 1 is stored."""
    view = _ClientView()
    view.sent(1, ONE)
    return view


def test_a_message_may_be_twice_when_a_purge_has_forgotten_its_id_and_it_had_left_before(view: _ClientView) -> None:
    """It became a dead letter, its queue was purged, and its sender, without an answer, sent it again."""
    view.history.purged(view.source, view.history.purging(view.source))
    view.history.finished({ONE: [(view.dead, (DEAD, 1)), (view.source, (SOURCE, 5))]})


def test_a_message_may_not_be_twice(view: _ClientView) -> None:
    with pytest.raises(Violation, match="in several places"):
        view.history.finished({ONE: [(view.dead, (DEAD, 1)), (view.source, (SOURCE, 5))]})


def test_a_message_may_be_twice_when_its_send_was_repeated_after_the_window(view: _ClientView) -> None:
    view.history.repeated_late([view.history.messages[ONE]])
    view.sent(5, ONE)
    view.history.finished({ONE: [(view.source, (SOURCE, 1)), (view.source, (SOURCE, 5))]})


def test_a_repeat_within_the_window_is_answered_as_the_first(view: _ClientView) -> None:
    with pytest.raises(Violation, match="a repeated send of m000001"):
        view.sent(5, ONE)


def test_an_id_that_is_used_again_after_its_window_is_not_taken_for_a_repeat(view: _ClientView) -> None:
    with pytest.raises(Violation, match="have the same message id"):
        view.sent(1, TWO)


def test_a_later_message_is_not_received_while_a_claim_holds_an_earlier_one(view: _ClientView) -> None:
    view.sent(2, TWO)
    view.received(view.source, (1, ONE))
    with pytest.raises(Violation, match="while a claim holds"):
        view.received(view.source, (2, TWO))


def test_an_earlier_message_is_not_received_after_a_later_one(view: _ClientView) -> None:
    view.sent(2, TWO)
    view.received(view.source, (2, TWO))
    with pytest.raises(Violation, match="was received after"):
        view.received(view.source, (1, ONE))


def test_a_later_message_is_received_when_the_earlier_one_is_a_dead_letter(view: _ClientView) -> None:
    view.sent(2, TWO)
    view.received(view.source, (1, ONE), seconds=0)
    view.received(view.source, (2, TWO))
    view.received(view.dead, (1, ONE))


def test_dead_letters_keep_their_order(view: _ClientView) -> None:
    view.sent(2, TWO)
    view.received(view.dead, (5, TWO), seconds=0)
    with pytest.raises(Violation, match="sent as"):
        view.received(view.dead, (6, ONE))


def test_an_earlier_handle_of_a_fifo_queue_is_not_taken(view: _ClientView) -> None:
    ((_, msg, old),) = view.received(view.source, (1, ONE), seconds=1)
    view.now = 10.0
    view.received(view.source, (1, ONE), receives=2)
    view.history.deleting([msg])
    assert msg.endings == 1
    view.now += 1.0
    view.history.deleted(msg, old, HandleOutcome.EXPIRED, view.now, retired=False)
    with pytest.raises(Violation, match="an earlier handle"):
        view.history.handle_counted(msg, old, view.now, view.now)


def test_several_deletes_of_one_message_say_nothing_of_its_handles(view: _ClientView) -> None:
    """A call that arrives late, or twice, finds it gone, and any handle is answered as done.  (Found by seed 211 of
    the clocks, with two handles in one call, and by the ordinary seed 319, with a later call that was faster.)"""
    ((_, msg, _),) = view.received(view.source, (1, ONE), seconds=1)
    view.history.deleting([msg, msg])
    assert msg.endings == 2
    view.history.purging(view.source)
    assert msg.endings == 3

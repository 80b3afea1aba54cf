"""Histories that clients of a cluster may be told, and some that they may not."""

from __future__ import annotations

import pytest

from backend.api import NewMessage, Stored
from backend.engine.ids import message_id, salt_of
from tests.simulator.history import History, Queue
from tests.simulator.model import Violation

DEAD, SOURCE = 7, 8
"""Partitions."""
PAYLOAD = b"m000001."


def found_twice(*, purged: bool) -> None:
    """A message of a FIFO queue is found there and in its dead-letter queue at the end."""
    history = History()
    dead = Queue(1, "dead", fifo=True, partitions=[DEAD])
    source = Queue(2, "source", fifo=True, partitions=[SOURCE], dead_letter=dead)
    dead.feeds.append(source)
    msgs = history.sending(source, [NewMessage(PAYLOAD, group="g", token=PAYLOAD.rjust(16))])
    history.sent(msgs, [Stored(message_id(SOURCE, 1, salt_of(source.handle_key)), 1)], lambda _: True)
    if purged:
        history.purged(source, history.purging(source))
    history.finished({PAYLOAD: [(dead, (DEAD, 1)), (source, (SOURCE, 5))]})


def test_a_message_may_be_twice_when_a_purge_has_forgotten_its_id_and_it_had_left_before() -> None:
    """It became a dead letter, its queue was purged, and its sender, who had heard nothing, sent it again."""
    found_twice(purged=True)


def test_a_message_may_not_be_twice() -> None:
    with pytest.raises(Violation, match="in several places"):
        found_twice(purged=False)

"""The judges of streams and groups notice what cannot be, and accept what can."""

from __future__ import annotations

from collections import Counter

import pytest

from backend.api import AckLevel
from backend.stream_api import (
    Appended,
    CommittedOffset,
    FoundOffset,
    GroupSettings,
    NewBatch,
    StreamError,
    StreamRefused,
    StreamSettings,
)
from backend.stream_commands import Fetched, FetchedBatch, StreamEnds, TimestampFound
from tests.simulator.checks.model import Violation
from tests.simulator.streams.group_history import GroupHistory
from tests.simulator.streams.history import Asked, SentBatch, StreamHistory

NOW = 1_000_000


class Judged:
    """A partition with its judge, and short forms of calls."""

    def __init__(self, **settings: int) -> None:
        known = StreamSettings(7, 7, 1, "0", "orders", bytes(16), 0, **settings)  # type: ignore[arg-type]
        self.history = StreamHistory(known, lambda: NOW, Counter())

    def send(self, payload: bytes, count: int = 1, *, stamp: int = NOW, sequence: int = -1) -> SentBatch:
        producer = (1, 0, sequence) if sequence >= 0 else (-1, -1, -1)
        return self.history.sending(NewBatch(payload, count, len(payload), stamp, stamp, 0, *producer))

    def stored(self, payload: bytes, offset: int, count: int = 1, *, stamp: int = NOW, sequence: int = -1) -> None:
        batch = self.send(payload, count, stamp=stamp, sequence=sequence)
        self.history.appended(batch, AckLevel.QUORUM, Appended(offset, -1, 0), self.history.ask())

    def fetched(self, offset: int, *batches: tuple[int, bytes | None], end: int, asked: Asked | None = None) -> None:
        found = [FetchedBatch(base, 1, 1, payload, -1, NOW) for base, payload in batches]
        self.history.fetched(offset, Fetched(found, end, 0), self.history.ask() if asked is None else asked)


def test_what_is_acknowledged_may_be_read() -> None:
    judged = Judged()
    judged.stored(b"a", 0)
    judged.stored(b"b", 1)
    judged.fetched(0, (0, b"a"), (1, b"b"), end=2)
    judged.history.check_sequences()


@pytest.mark.parametrize(
    ("batches", "end", "says"),
    [
        ([(0, b"a"), (1, b"c")], 2, "where c is now"),
        ([(0, b"a")], 1, "ended at 2, and ends at 1"),
        ([(0, b"a"), (2, b"c")], 3, "continues with 2 where 1 is expected"),
        ([(0, b"a"), (1, b"b"), (2, b"c")], 2, "not durable"),
        ([(0, b"a"), (1, None)], 2, "has lost"),
        ([(0, b"a"), (1, b"b"), (2, b"d")], 3, "nobody has sent"),
        ([(0, b"a"), (1, b"b"), (2, b"a")], 3, "has a at 0 and at 2"),
        ([], 2, "returns nothing"),
    ],
)
def test_what_cannot_be_read_is_noticed(batches: list[tuple[int, bytes | None]], end: int, says: str) -> None:
    judged = Judged()
    judged.stored(b"a", 0)
    judged.stored(b"b", 1)
    judged.send(b"c")
    with pytest.raises(Violation, match=says):
        judged.fetched(0, *batches, end=end)


def test_an_append_without_an_answer_may_be_stored_or_not() -> None:
    judged = Judged()
    judged.history.unanswered(judged.send(b"a"))
    judged.history.unanswered(judged.send(b"b"))
    judged.fetched(0, (0, b"b"), end=1)
    judged.history.refused(judged.send(b"c"))
    with pytest.raises(Violation, match="nobody has sent"):
        judged.fetched(1, (1, b"c"), end=2)


def test_an_append_at_a_weak_level_may_lose_its_place() -> None:
    judged = Judged()
    judged.history.appended(judged.send(b"a"), AckLevel.LEADER, Appended(0, -1, 0), judged.history.ask())
    judged.stored(b"b", 0)
    judged.fetched(0, (0, b"b"), end=1)


def test_an_answer_may_be_as_old_as_its_call() -> None:
    judged = Judged()
    asked = judged.history.ask()
    judged.stored(b"a", 0)
    judged.fetched(0, end=0, asked=asked)


def test_sequences_are_in_order_and_without_gaps() -> None:
    judged = Judged()
    judged.stored(b"a", 0, sequence=0)
    judged.stored(b"c", 1, sequence=2)
    with pytest.raises(Violation, match="lacks batches between a and c"):
        judged.history.check_sequences()
    with pytest.raises(Violation, match="before b of one producer"):
        judged.stored(b"b", 2, sequence=1)


def test_a_sequence_that_follows_is_not_refused() -> None:
    judged = Judged()
    error = StreamRefused(StreamError.OUT_OF_ORDER_SEQUENCE_NUMBER, "")
    judged.history.sequence_refused(judged.send(b"b", sequence=1), error, must_be_taken=False)
    with pytest.raises(Violation, match="refuses a"):
        judged.history.sequence_refused(judged.send(b"a", sequence=0), error, must_be_taken=True)


def test_records_are_removed_by_request_or_by_the_retention() -> None:
    judged = Judged(retention_ms=10)
    judged.stored(b"a", 0, stamp=NOW - 10)
    judged.stored(b"b", 1)
    judged.history.ends(StreamEnds(FoundOffset(1), FoundOffset(2), 0), judged.history.ask())
    with pytest.raises(Violation, match="nobody has deleted b at 1"):
        judged.history.ends(StreamEnds(FoundOffset(2), FoundOffset(2), 0), judged.history.ask())
    with pytest.raises(Violation, match="nobody has deleted b at 1"):
        judged.history.out_of_range(1, judged.history.ask())
    judged.history.deleting(2)
    judged.history.records_deleted(2, 2, judged.history.ask())
    with pytest.raises(Violation, match="began at 2, and begins at 1"):
        judged.history.ends(StreamEnds(FoundOffset(1), FoundOffset(2), 0), judged.history.ask())


def test_the_retention_by_size_keeps_as_much_as_it_allows() -> None:
    judged = Judged(retention_ms=-1, retention_bytes=2)
    for offset, payload in enumerate((b"a", b"b", b"c")):
        judged.stored(payload, offset)
    judged.history.ends(StreamEnds(FoundOffset(1), FoundOffset(3), 0), judged.history.ask())
    with pytest.raises(Violation, match="nobody has deleted b at 1"):
        judged.history.ends(StreamEnds(FoundOffset(2), FoundOffset(3), 0), judged.history.ask())


def test_a_search_finds_the_first() -> None:
    judged = Judged()
    judged.stored(b"a", 0)
    judged.stored(b"b", 1)
    first, second = (FetchedBatch(offset, 1, 1, payload, -1, NOW) for offset, payload in ((0, b"a"), (1, b"b")))
    judged.history.searched(NOW, 0, TimestampFound(first, NOW, 0), judged.history.ask())
    judged.history.searched(NOW, 1, TimestampFound(second, NOW, 1), judged.history.ask())
    judged.history.searched(NOW + 1, 0, None, judged.history.ask())
    for answer in (TimestampFound(second, NOW, 0), None):
        with pytest.raises(Violation, match="a search by time passed it"):
            judged.history.searched(NOW, 0, answer, judged.history.ask())


def test_an_epoch_ends_where_the_next_begins() -> None:
    judged = Judged()
    for offset, epoch in ((0, 1), (1, 3)):
        judged.stored(b"%d" % offset, offset)
        judged.history.read(FetchedBatch(offset, 1, epoch, b"%d" % offset, -1, NOW))
    judged.history.epoch_ended(2, FoundOffset(1), judged.history.ask())
    for wrong in (0, 2):
        with pytest.raises(Violation, match="2 ended at"):
            judged.history.epoch_ended(2, FoundOffset(wrong), judged.history.ask())


# --- groups -------------------------------------------------------------------------------------------


def group() -> GroupHistory:
    return GroupHistory(GroupSettings(8, 8, 1, "0", "readers"), lambda: NOW, Counter())


def commit(history: GroupHistory, value: int) -> None:
    write = history.committing(0, value, history.ask())
    history.committed(0, write, StreamError.NONE)


def test_a_partition_has_one_member_in_a_generation() -> None:
    history = group()
    history.synced("a", 1, b"x", [0, 1], history.ask())
    history.synced("b", 1, b"x", [2], history.ask())
    with pytest.raises(Violation, match="a and b have partition 1"):
        history.synced("b", 1, b"x", [1], history.ask())
    with pytest.raises(Violation, match="two assignments"):
        history.synced("b", 1, b"y", [2], history.ask())


def test_a_generation_is_over_when_the_next_has_begun() -> None:
    history = group()
    asked = history.ask()
    history.synced("a", 2, b"x", [0], history.ask())
    history.check_generation("commit", "a", 1, asked)
    with pytest.raises(Violation, match="after 2 began"):
        history.check_generation("commit", "a", 1, history.ask())


def test_an_offset_does_not_go_back() -> None:
    history = group()
    commit(history, 1)
    asked = history.ask()
    commit(history, 2)
    history.read(0, CommittedOffset(1), asked)
    history.read(0, CommittedOffset(2), history.ask())
    with pytest.raises(Violation, match="1 is back, after 2"):
        history.read(0, CommittedOffset(1), history.ask())
    with pytest.raises(Violation, match="has lost offset"):
        history.read(0, None, history.ask())


def test_a_commit_without_an_answer_counts_once_it_was_read() -> None:
    history = group()
    commit(history, 1)
    lost = history.committing(0, 2, history.ask())
    history.process_died()
    history.read(0, CommittedOffset(1), history.ask())
    assert lost.effective_by is None
    history.read(0, CommittedOffset(2), history.ask())
    with pytest.raises(Violation, match="1 is back, after 2"):
        history.read(0, CommittedOffset(1), history.ask())


def test_a_session_lasts() -> None:
    history = group()
    history.session_ended("a", NOW - 100, 100)
    with pytest.raises(Violation, match="is not known, 99 ms after"):
        history.session_ended("a", NOW - 99, 100)

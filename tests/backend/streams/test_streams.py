"""A topic's partition: offsets, producers, fetches, searches, retention, binding."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backend.engine.timers import NEVER
from backend.extent_ids import ExtentId
from backend.stream_api import Appended, FoundOffset, NewBatch, StreamError, StreamRefused
from backend.streams import binding, records, snapshot
from backend.streams.binding import BIND_BYTES, EXTENT_BYTES_MAX, SEGMENTS_BACK, orphans, retention_due
from backend.streams.commands import (
    ExtentPlace,
    LogPlace,
)
from backend.streams.producers import SEQUENCE_MAX, next_sequence
from tests.backend.streams.stream_machine import SEGMENT_BYTES, StreamChunks, StreamMachine


def refused(machine: StreamMachine, **arguments: Any) -> StreamError:
    before = snapshot.describe(machine.fold)
    with pytest.raises(StreamRefused) as raised:
        machine.append(**arguments)
    assert snapshot.describe(machine.fold) == before
    return raised.value.error


# --- append -------------------------------------------------------------------------------------------


def test_offsets_are_dense() -> None:
    machine = StreamMachine()
    assert [machine.append(count).base_offset for count in (1, 100, 3)] == [0, 1, 101]
    assert machine.fold.next_offset == 104
    machine.bind()
    machine.restart()
    assert machine.append(2).base_offset == 104


def test_a_batch_that_does_not_follow_is_not_applied() -> None:
    machine = StreamMachine()
    machine.append(3)
    for base in (2, 4):
        with pytest.raises(AssertionError, match="dense"):
            machine.fold.apply(records.Batches(base, 1, 1), machine.now)


def test_the_time_of_the_append_is_the_timestamp_by_a_setting_of_the_topic() -> None:
    machine = StreamMachine(append_time=True)
    assert machine.append(timestamp=5) == Appended(0, machine.now, 0)
    record = machine.journal[-1][0]
    assert isinstance(record, records.Batches)
    assert (record.first_timestamp, record.max_timestamp, record.append_ms) == (machine.now,) * 3
    assert StreamMachine().append(timestamp=5).append_ms == -1


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (NewBatch(b"", 1, 1001), StreamError.MESSAGE_TOO_LARGE),
        (NewBatch(b"", 0, 10), StreamError.INVALID_RECORD),
        (NewBatch(b"", 1, 10, producer_id=-2, producer_epoch=0, base_sequence=0), StreamError.INVALID_RECORD),
        (NewBatch(b"", 1, 10, producer_id=1, producer_epoch=-1, base_sequence=0), StreamError.INVALID_RECORD),
        (NewBatch(b"", 1, 10, producer_id=1, producer_epoch=32768, base_sequence=0), StreamError.INVALID_RECORD),
        (NewBatch(b"", 1, 10, producer_id=1, producer_epoch=0, base_sequence=-1), StreamError.INVALID_RECORD),
    ],
)
def test_a_batch_that_is_not_valid_is_refused(batch: NewBatch, error: StreamError) -> None:
    machine = StreamMachine(batch_bytes_max=1000)
    with pytest.raises(StreamRefused) as raised:
        machine.commands.append(batch, machine.now)
    assert raised.value.error is error
    machine.commands.append(NewBatch(b"", 1, 1000), machine.now)


# --- producers ----------------------------------------------------------------------------------------

OUT_OF_ORDER = StreamError.OUT_OF_ORDER_SEQUENCE_NUMBER
FENCED = StreamError.INVALID_PRODUCER_EPOCH
PRODUCER_CASES: list[tuple[str, list[tuple[int, int, int, int | StreamError]]]] = [
    # (producer, epoch, base sequence, offset or error), each a batch of ten records
    ("in order", [(1, 0, 0, 0), (1, 0, 10, 10), (1, 0, 20, 20)]),
    ("a gap", [(1, 0, 0, 0), (1, 0, 11, OUT_OF_ORDER), (1, 0, 10, 10)]),
    ("a repeat", [(1, 0, 0, 0), (1, 0, 10, 10), (1, 0, 0, 0), (1, 0, 10, 10)]),
    ("five are remembered", [(1, 0, 10 * n, 10 * n) for n in range(6)] + [(1, 0, 10, 10), (1, 0, 0, OUT_OF_ORDER)]),
    ("an older epoch", [(1, 3, 0, 0), (1, 2, 10, FENCED), (1, 2, 0, FENCED)]),
    ("a newer epoch begins at 0", [(1, 0, 0, 0), (1, 1, 10, OUT_OF_ORDER), (1, 1, 0, 10), (1, 1, 10, 20)]),
    ("batches of two epochs are two", [(1, 0, 0, 0), (1, 1, 0, 10), (1, 1, 0, 10), (1, 1, 10, 20)]),
    ("a newer epoch forgets", [(1, 0, 0, 0), (1, 1, 0, 10), (1, 0, 0, FENCED)]),
    ("each for itself", [(1, 0, 0, 0), (2, 0, 0, 10), (1, 0, 10, 20), (2, 0, 0, 10)]),
    ("an unknown one may begin anywhere", [(1, 5, 70, 0), (1, 5, 80, 10)]),
    ("after the largest follows 0", [(1, 0, SEQUENCE_MAX - 9, 0), (1, 0, 0, 10), (1, 0, SEQUENCE_MAX - 9, 0)]),
    ("within a batch, too", [(1, 0, SEQUENCE_MAX - 4, 0), (1, 0, 5, 10), (1, 0, SEQUENCE_MAX - 4, 0)]),
]


@pytest.mark.parametrize(("name", "steps"), PRODUCER_CASES, ids=[name for name, _ in PRODUCER_CASES])
@pytest.mark.parametrize("restarts", [False, True])
async def test_producers(name: str, steps: list[tuple[int, int, int, int | StreamError]], restarts: bool) -> None:
    machine, chunks = StreamMachine(), StreamChunks()
    stored = 0
    for producer, epoch, sequence, expected in steps:
        if isinstance(expected, StreamError):
            assert refused(machine, count=10, producer=(producer, epoch, sequence)) is expected
        else:
            answer = machine.append(10, producer=(producer, epoch, sequence))
            assert (answer.base_offset, answer.duplicate) == (expected, expected < stored)
            stored = max(stored, expected + 10)
        if restarts:
            machine.restart(await chunks.copy_stream(machine.fold))
    assert machine.fold.next_offset == stored


def test_part_of_a_batch_is_no_duplicate() -> None:
    machine = StreamMachine()
    machine.append(10, producer=(1, 0, 0))
    assert refused(machine, count=5, producer=(1, 0, 0)) is OUT_OF_ORDER
    assert refused(machine, count=5, producer=(1, 0, 5)) is OUT_OF_ORDER


def test_the_answer_to_a_duplicate_has_the_first_ones_timestamp() -> None:
    machine = StreamMachine()
    machine.append(2, timestamp=50, producer=(1, 0, 0))
    machine.append(2, timestamp=60, producer=(1, 0, 2))
    machine.write(machine.commands.delete_records(1, 4)[0])
    assert machine.append(2, timestamp=99, producer=(1, 0, 0)) == Appended(0, 50, 1, True)


async def test_a_producer_is_forgotten_to_the_millisecond() -> None:
    machine = StreamMachine(producer_expiry_ms=1000)
    machine.append(10, producer=(1, 0, 0))
    machine.pass_time(999)
    assert machine.append(10, producer=(1, 0, 0)).duplicate
    assert refused(machine, producer=(1, 0, 5)) is OUT_OF_ORDER
    machine.append(10, producer=(2, 0, 0))
    machine.pass_time(1)
    copy = await StreamChunks().copy_stream(machine.fold)
    machine.append(1, producer=(1, 0, 5))
    assert machine.fold.due == machine.now + 999
    machine.pass_time(999)
    for fold in (machine.fold, copy):
        fold.advance(machine.now)
        assert fold.producers.get(2) is None
    assert machine.fold.producers.get(1) is not None
    assert copy.due == NEVER


def test_a_setting_changes_when_producers_are_forgotten() -> None:
    machine = StreamMachine(producer_expiry_ms=1000)
    machine.append(producer=(1, 0, 0))
    machine.pass_time(500)
    machine.write(
        machine.commands.configure(msgspec.structs.replace(machine.settings, version=2, producer_expiry_ms=400))
    )
    assert len(machine.fold.producers) == 0
    assert machine.commands.configure(machine.settings) == []


def test_sequences_wrap() -> None:
    assert next_sequence(SEQUENCE_MAX, 1) == 0
    assert next_sequence(SEQUENCE_MAX - 1, 5) == 3
    assert next_sequence(7, 0) == 7


# --- fetch --------------------------------------------------------------------------------------------


def bases(machine: StreamMachine, offset: int, bytes_max: int, until: int, **options: Any) -> list[int]:
    plan = machine.commands.fetch(offset, bytes_max, until, **options)
    assert plan.extent is None
    return [place.base_offset for place in plan.batches]


def test_a_fetch_begins_with_the_batch_that_holds_the_offset() -> None:
    machine = StreamMachine()
    for _ in range(4):
        machine.append(10, b"x" * 100)
    assert bases(machine, 0, 1000, 40) == [0, 10, 20, 30]
    assert bases(machine, 15, 1000, 40) == [10, 20, 30]
    assert bases(machine, 39, 1000, 40) == [30]
    assert bases(machine, 10, 250, 40) == [10, 20]
    assert bases(machine, 10, 0, 40) == [10]
    assert bases(machine, 10, 99, 40, at_least_one=False) == []
    assert bases(machine, 10, 100, 40, at_least_one=False) == [10]


def test_reads_end_at_the_durable_end() -> None:
    machine = StreamMachine()
    for _ in range(3):
        machine.append(10)
    assert bases(machine, 0, 1000, 20) == [0, 10]
    for offset in (20, 25, 30):
        assert bases(machine, offset, 1000, 20) == []
    assert machine.commands.latest(20) == FoundOffset(20, -1, 1)
    assert machine.commands.search(-1, 0) is None


@pytest.mark.parametrize("offset", [-1, 4, 31])
def test_an_offset_that_is_not_stored_is_refused(offset: int) -> None:
    machine = StreamMachine()
    machine.append(30)
    machine.write(machine.commands.delete_records(5, 30)[0])
    with pytest.raises(StreamRefused) as raised:
        machine.commands.fetch(offset, 1000, 30)
    assert raised.value.error is StreamError.OFFSET_OUT_OF_RANGE


def test_old_batches_are_fetched_from_extents() -> None:
    machine = StreamMachine()
    for _ in range(3):
        machine.append(10)
    machine.bind(20)
    place = machine.commands.fetch(3, 1000, 30).extent
    assert place == ExtentPlace(ExtentId(7, 1, 1), len(machine.extents[ExtentId(7, 1, 1)]), 3, 20)
    assert bases(machine, 20, 1000, 30) == [20]
    machine.restart()
    machine.bind()
    place = machine.commands.fetch(25, 1000, 30).extent
    assert place is not None
    assert (place.extent, place.offset, place.end_offset) == (ExtentId(7, 2, 2), 25, 30)


# --- offsets by time and epoch ------------------------------------------------------------------------


def test_a_time_is_searched_in_extents_and_in_the_log() -> None:
    machine = StreamMachine()
    for timestamp in (100, 300, 200, 400):
        machine.append(10, timestamp=timestamp)
    machine.bind(20)
    search, until = machine.commands.search, 40
    found = search(50, until)
    assert found is not None
    assert isinstance(found.place, ExtentPlace)
    assert (found.place.offset, found.place.end_offset, found.timestamp, found.offset) == (0, 20, 50, 0)
    assert search(300, until) == (found.place, 300, 0)
    later = search(301, until)
    assert later is not None
    assert isinstance(later.place, LogPlace)
    assert later.place.base_offset == 30
    assert search(301, 30) is None
    assert search(401, until) is None
    behind = search(50, until, found.place.end_offset)
    assert behind is not None
    assert (behind.place.base_offset if isinstance(behind.place, LogPlace) else None) == 20


def test_the_largest_timestamp_is_found() -> None:
    machine = StreamMachine()
    assert machine.commands.largest(0) is None
    machine.append(10)
    assert machine.commands.largest(10) is None
    for timestamp in (100, 500, 200, 500, 900):
        machine.append(10, timestamp=timestamp)
    largest = machine.commands.largest(50)
    assert largest is not None
    assert (largest.timestamp, largest.place[1]) == (500, 20)
    machine.bind(30)
    largest = machine.commands.largest(50)
    assert largest is not None
    assert isinstance(largest.place, ExtentPlace)
    largest = machine.commands.largest(60)
    assert largest is not None
    assert (largest.timestamp, largest.place[1]) == (900, 50)


def test_the_first_offset_is_the_log_start() -> None:
    machine = StreamMachine()
    assert machine.commands.earliest() == FoundOffset(0, -1, 1)
    machine.append(10)
    machine.restart()
    machine.append(10)
    machine.write(machine.commands.delete_records(5, 20)[0])
    assert machine.commands.earliest() == FoundOffset(5, -1, 1)
    machine.write(machine.commands.delete_records(10, 20)[0])
    assert machine.commands.earliest() == FoundOffset(10, -1, 2)


async def test_ends_of_epochs() -> None:
    machine = StreamMachine(epoch=2)
    machine.append(10)
    for _ in range(3):
        machine.restart()
    machine.append(5)  # in epoch 5; 3 and 4 had none
    machine.restart()  # epoch 6, in which nothing has been appended yet
    ends = {1: (0, 1), 2: (10, 2), 3: (10, 2), 4: (10, 2), 5: (15, 5), 6: (15, 6), 7: (-1, -1), -1: (-1, -1)}
    copy = await StreamChunks().copy_stream(machine.fold)
    copy.open(6)
    for epoch, (offset, found) in ends.items():
        assert machine.commands.epoch_end(epoch) == FoundOffset(offset, -1, found), epoch
        assert copy.epoch_end(epoch) == FoundOffset(offset, -1, found), epoch
    assert [machine.fold.epoch_at(offset) for offset in (0, 9, 10, 14, 15)] == [2, 2, 5, 5, 6]
    machine.write(machine.commands.delete_records(12, 15)[0])
    assert machine.fold.epochs == [(5, 12)]
    assert machine.commands.epoch_end(2) == FoundOffset(12, -1, 2)


def test_an_epoch_is_that_of_its_first_batch_though_all_before_was_trimmed() -> None:
    machine = StreamMachine()
    machine.append(10)
    machine.restart()
    machine.write(machine.commands.delete_records(-1, 10)[0])
    machine.append(1)
    assert machine.fold.epochs == [(2, 10)]


@pytest.mark.parametrize(
    ("known", "error"),
    [(-1, None), (4, None), (3, StreamError.FENCED_LEADER_EPOCH), (5, StreamError.UNKNOWN_LEADER_EPOCH)],
)
def test_the_epoch_that_a_client_knows(known: int, error: StreamError | None) -> None:
    machine = StreamMachine(epoch=4)
    if error is None:
        machine.commands.check_epoch(known)
    else:
        with pytest.raises(StreamRefused) as raised:
            machine.commands.check_epoch(known)
        assert raised.value.error is error


# --- deletion and retention ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "start"),
    [(0, 0), (3, 3), (20, 20), (-1, 20), (21, None), (30, None), (-2, None)],
)
def test_records_are_deleted_up_to_the_durable_end(before: int, start: int | None) -> None:
    machine = StreamMachine()
    for _ in range(3):
        machine.append(10)
    if start is None:
        with pytest.raises(StreamRefused) as raised:
            machine.commands.delete_records(before, 20)
        assert raised.value.error is StreamError.OFFSET_OUT_OF_RANGE
        return
    written, low = machine.commands.delete_records(before, 20)
    machine.write(written)
    assert low == machine.fold.log_start == start
    assert len(machine.fold.tail) == 3 - start // 10
    assert machine.commands.delete_records(1, 20) == (([records.Trimmed(1)], 1) if start < 1 else ([], start))


def test_a_compacted_topic_deletes_nothing() -> None:
    machine = StreamMachine(has_retention=False, retention_ms=10, retention_bytes=0)
    machine.append(timestamp=0)
    machine.bind()
    assert retention_due(machine.fold) == NEVER
    machine.trim()
    assert machine.fold.log_start == 0
    with pytest.raises(StreamRefused) as raised:
        machine.commands.delete_records(-1, 1)
    assert raised.value.error is StreamError.POLICY_VIOLATION


def test_extents_are_dropped_by_their_largest_timestamp() -> None:
    machine = StreamMachine(retention_ms=1400)
    start = machine.now
    for age in (0, 50):
        machine.append(10, timestamp=start + age)
    machine.bind()
    machine.pass_time(101)
    machine.append(10, timestamp=start + 20)
    machine.bind()  # another extent: the first one spans a fourteenth of the retention time
    assert len(machine.fold.extents) == 2
    machine.pass_time(1349)
    assert machine.now == start + 1450
    assert retention_due(machine.fold) == start + 1451
    machine.trim()
    assert machine.fold.log_start == 0
    machine.pass_time(1)
    machine.trim()
    assert machine.fold.log_start == 30  # the second is older by its timestamps
    assert machine.fold.released == [(1, 1), (1, 2)]
    assert (machine.fold.stored_bytes, retention_due(machine.fold)) == (0, NEVER)


def test_a_younger_extent_stays() -> None:
    machine = StreamMachine(retention_ms=1400)
    for age in (0, 500):
        machine.append(timestamp=machine.now + age)
        machine.bind()
        machine.restart()
    machine.pass_time(1900)
    machine.trim()
    assert (machine.fold.log_start, len(machine.fold.extents)) == (1, 1)
    machine.pass_time(1)
    machine.trim()
    assert machine.fold.log_start == 2


def test_batches_without_timestamps_age_from_their_append() -> None:
    machine = StreamMachine(retention_ms=1400)
    machine.append()
    machine.bind()
    assert retention_due(machine.fold) == machine.now + 1401


def test_batches_of_the_tail_are_dropped_together() -> None:
    machine = StreamMachine(retention_ms=1400)
    start = machine.now
    for age in (0, 60, 101):
        machine.append(1, timestamp=start + age)
    assert retention_due(machine.fold) == start + 1501
    machine.pass_time(1500)
    machine.trim()
    assert machine.fold.log_start == 0
    machine.pass_time(1)
    assert binding.trim(machine.fold, machine.now, 1) == [records.Trimmed(1)]
    machine.trim()
    assert machine.fold.log_start == 2


def test_a_part_that_stays_keeps_those_behind_it() -> None:
    machine = StreamMachine(retention_ms=1000)
    machine.append(timestamp=machine.now + 10_000)
    machine.bind()
    machine.append(timestamp=0)
    machine.pass_time(5000)
    machine.trim()
    assert machine.fold.log_start == 0


@pytest.mark.parametrize(("limit", "left"), [(-1, 4), (400, 4), (399, 4), (301, 4), (300, 3), (200, 2), (0, 1)])
def test_extents_above_the_limit_of_bytes_are_dropped(limit: int, left: int) -> None:
    machine = StreamMachine(retention_bytes=limit)
    for _ in range(3):
        machine.append(1, b"x" * 100)
        machine.bind()
        machine.restart()
    machine.append(1, b"x" * 100)
    machine.trim()
    assert machine.fold.next_offset - machine.fold.log_start == left
    assert machine.fold.stored_bytes == left * 100


def test_the_log_start_may_lie_within_a_batch() -> None:
    machine = StreamMachine()
    machine.append(10, b"x" * 100)
    machine.append(10, b"x" * 100)
    machine.bind(10)
    machine.write(machine.commands.delete_records(5, 20)[0])
    assert (len(machine.fold.extents), machine.fold.stored_bytes) == (1, 200)
    machine.write(machine.commands.delete_records(15, 20)[0])
    assert (len(machine.fold.extents), machine.fold.stored_bytes) == (0, 100)
    assert bases(machine, 15, 1000, 20) == [10]


def test_stored_bytes_over_time() -> None:
    machine = StreamMachine()
    machine.append(1, b"x" * 100)
    machine.pass_time(10)
    machine.append(1, b"x" * 50)
    machine.bind()
    machine.pass_time(10)
    machine.write(machine.commands.delete_records(-1, 2)[0])
    machine.pass_time(10)
    assert machine.fold.stored_byte_ms(machine.now) == 100 * 20 + 50 * 10
    machine.restart()
    assert machine.fold.stored_byte_ms(machine.now) == 0


def test_a_dropped_topic_holds_nothing_but_extents_to_delete() -> None:
    machine = StreamMachine()
    machine.append(producer=(1, 0, 0))
    machine.bind()
    machine.append()
    machine.write(machine.commands.drop())
    fold = machine.fold
    assert (fold.stored_bytes, fold.log_bytes, fold.segments, len(fold.producers)) == (0, 0, {}, 0)
    assert fold.released == [(1, 1)]
    assert machine.commands.drop() == []
    assert machine.bind() is None
    fold.forget_released([(1, 1)])
    assert fold.released == []


# --- binding ------------------------------------------------------------------------------------------


def test_batches_are_due_by_bytes_or_by_distance() -> None:
    machine = StreamMachine(batch_bytes_max=BIND_BYTES)
    assert not machine.binder.is_due(machine.segment, 0)
    machine.append(1, b"x" * 1000)
    segment = machine.segment
    assert not machine.binder.is_due(segment + SEGMENTS_BACK - 1, 1)
    assert machine.binder.is_due(segment + SEGMENTS_BACK, 1)
    assert machine.binder.is_due(2 << 20, 1)
    assert not machine.binder.is_due(2 << 20, 0)
    machine.append(1, b"x" * (BIND_BYTES - 1000))
    assert machine.binder.is_due(machine.segment, 2)
    assert not StreamMachine().binder.is_due(2 << 20, 0)


def test_only_durable_batches_are_bound_and_at_most_eight_mebibytes_together() -> None:
    machine = StreamMachine()
    for _ in range(10):
        machine.append(1, b"x" * (1 << 20))
    plan = machine.binder.plan(3)
    assert plan is not None
    assert (plan.is_new, plan.length, plan.through) == (True, 0, 3)
    assert machine.binder.plan(0) is None
    plan = machine.bind(10)
    assert plan is not None
    assert plan.through == 7
    assert machine.fold.tail_base == 7
    assert machine.fold.log_bytes == 3 << 20
    assert sum(machine.fold.segments.values()) == 3


def test_an_extent_grows_to_its_largest_length() -> None:
    machine = StreamMachine(batch_bytes_max=BIND_BYTES)
    payload = b"x" * (7 << 20)
    for _ in range(10):
        machine.append(1, payload)
        machine.bind()
    lines = [machine.fold.extent_line(index) for index in range(len(machine.fold.extents))]
    assert [(line.number, line.base_offset, line.end_offset) for line in lines] == [(1, 0, 9), (2, 9, 10)]
    assert all(line.length <= EXTENT_BYTES_MAX for line in lines)


def test_a_batch_larger_than_an_extent_gets_one_of_its_own() -> None:
    machine = StreamMachine(batch_bytes_max=EXTENT_BYTES_MAX * 2)
    machine.append(1)
    machine.append(1, b"x" * EXTENT_BYTES_MAX)
    machine.append(1)
    plans = [machine.bind() for _ in range(3)]
    assert [plan.extent.number for plan in plans if plan is not None] == [1, 2, 3]


def test_no_two_owners_write_one_extent() -> None:
    machine = StreamMachine()
    machine.append()
    first = machine.bind()
    machine.append()
    zombie = machine.binder.plan(2)
    machine.restart()
    successor = machine.binder.plan(2)
    assert first is not None
    assert zombie is not None
    assert successor is not None
    assert zombie.extent == first.extent
    assert successor.extent == ExtentId(7, 2, 2)
    assert successor.is_new


def test_after_a_failed_bind_another_extent_begins() -> None:
    machine = StreamMachine()
    machine.append()
    failed = machine.binder.plan(1)
    assert failed is not None
    machine.binder.abandon(failed)
    assert machine.binder.abandoned == [failed.extent]
    second = machine.bind()
    assert second is not None
    assert second.extent.number == 2
    machine.append()
    third = machine.binder.plan(2)
    assert third is not None
    assert (third.extent, third.is_new) == (second.extent, False)
    machine.binder.abandon(third)
    assert machine.binder.abandoned == [failed.extent]  # the second one holds a batch
    fourth = machine.binder.plan(2)
    assert fourth is not None
    assert (fourth.extent.number, fourth.is_new) == (3, True)
    machine.binder.abandon(fourth)
    fifth = machine.bind()
    assert fifth is not None
    assert (fifth.extent.number, fifth.is_new) == (4, True), "the second one is never continued"


@pytest.mark.parametrize("is_new", [True, False])
def test_a_bind_is_void_if_all_was_trimmed_meanwhile(is_new: bool) -> None:
    machine = StreamMachine()
    machine.append()
    if not is_new:
        machine.bind()
        machine.append()
    plan = machine.binder.plan(machine.fold.next_offset)
    assert plan is not None
    machine.append()
    machine.write(machine.commands.delete_records(plan.through, plan.through)[0])
    assert machine.binder.bound(plan, machine.store(plan)) == []
    assert (plan.extent in machine.binder.abandoned) is is_new
    assert ((1, 1) in machine.fold.released) is not is_new
    following = machine.bind()
    assert following is not None
    assert following.extent.number == 2


def test_a_bind_counts_if_only_a_part_was_trimmed_meanwhile() -> None:
    machine = StreamMachine()
    for _ in range(3):
        machine.append(10, b"x" * 100)
    plan = machine.binder.plan(30)
    assert plan is not None
    machine.write(machine.commands.delete_records(15, 30)[0])
    machine.write(machine.binder.bound(plan, machine.store(plan)))
    line = machine.fold.extent_line(0)
    assert (line.base_offset, line.end_offset, line.size_bytes) == (10, 30, 200)
    assert machine.fold.stored_bytes == 200


def test_unreadable_batches_are_counted() -> None:
    machine = StreamMachine()
    machine.append()
    plan = machine.binder.plan(1)
    assert plan is not None
    machine.write(machine.binder.bound(plan, machine.store(plan), lost=1))
    assert machine.fold.lost == 1


def test_extents_that_no_record_names_are_orphans() -> None:
    machine = StreamMachine()
    machine.append(10)
    machine.bind()
    machine.append(10)
    machine.binder.abandon(machine.binder.plan(20) or pytest.fail("a plan"))
    lost = machine.binder.plan(20)
    assert lost is not None
    machine.write(machine.commands.delete_records(10, 20)[0])
    found = [ExtentId(7, 1, 1), lost.extent, ExtentId(7, 2, 3)]
    assert orphans(machine.fold, found) == []
    machine.restart()
    assert orphans(machine.fold, found) == [lost.extent]


# --- checkpoints --------------------------------------------------------------------------------------


async def test_a_checkpoint_costs_what_has_changed() -> None:
    machine = StreamMachine()
    for number in range(600):
        machine.append(1, producer=(number, 0, 0))
        machine.bind()
        machine.restart(machine.fold)
    for _ in range(1500):
        machine.append(1)
    chunks = StreamChunks()
    await chunks.copy_stream(machine.fold)
    written = len(chunks.stored)
    assert written == 3 + 2 + 5 + 1  # blocks of extents, of the tail, of producers, and the partition's own chunk
    machine.write(machine.commands.delete_records(300, 2100)[0])
    copy = await chunks.copy_stream(machine.fold)
    assert len(chunks.stored) == written + 1
    assert snapshot.describe(copy) == snapshot.describe(machine.fold)
    machine.append(1, producer=(3, 0, 1))
    fresh: list[Any] = []
    assert len(list(snapshot.ahead(machine.fold, chunks.add, fresh))) == 2  # the last of the tail, one of producers
    assert len(fresh) == 2
    copy = await chunks.copy_stream(machine.fold)
    assert len(chunks.stored) == written + 4
    assert snapshot.describe(copy) == snapshot.describe(machine.fold)


async def test_a_checkpoint_of_a_later_version_is_not_read() -> None:
    machine = StreamMachine()
    chunks = StreamChunks()
    ref, _ = snapshot.take(machine.fold, chunks.add, [])
    members = msgspec.msgpack.decode(chunks.stored[ref[2]])
    members[0] += 1
    with pytest.raises(ValueError, match="newer than this version reads"):
        await snapshot.read(msgspec.msgpack.encode(members), chunks.fetch)


def test_memory_is_that_of_the_lines() -> None:
    machine = StreamMachine()
    empty = machine.fold.memory_bytes()
    for _ in range(100):
        machine.append(1, b"x" * 1000, producer=(1, 0, machine.fold.next_offset))
    assert empty < machine.fold.memory_bytes() < empty + 100 * 50 + 1000
    assert machine.segment == 1 << 20 | machine.offset // SEGMENT_BYTES

"""A partition beside a list of batches, with crashes, zombies, replays and checkpoints at any point.

Promises: an offset has its batch until it is trimmed; offsets are dense; nobody reads what a crash can take; a
producer's sequences are stored once and in order; the state after a restart is that of the records that were left.
"""

from __future__ import annotations

import copy
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from backend.engine.fold import SEGMENT_SHIFT
from backend.extent_ids import ExtentId
from backend.stream_api import NewBatch, StreamError, StreamRefused
from backend.streams import binding, snapshot
from backend.streams.binding import BindPlan
from backend.streams.commands import (
    ExtentPlace,
)
from backend.streams.extents import scan
from backend.streams.producers import SEQUENCE_MAX
from backend.streams.records import Batches
from backend.streams.stream import StreamFold
from tests.backend.streams.stream_machine import StreamChunks, StreamMachine

T = TypeVar("T")
EXPIRY_MS = 100_000
RETENTION_MS = 50_000


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    raise AssertionError("it waits")


class StreamModel:
    """The partition as plain lists."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, bytes, int]] = []
        """(base offset, count, payload, timestamp)"""
        self.log_start = 0
        self.producers: dict[int, tuple[int, list[tuple[int, int, int]], int]] = {}
        """(epoch, [(base sequence, count, base offset)], time of the last append)"""

    @property
    def end(self) -> int:
        return self.batches[-1][0] + self.batches[-1][1] if self.batches else 0

    def readable(self, until: int) -> list[tuple[int, bytes]]:
        return [
            (base, payload)
            for base, count, payload, _ in self.batches
            if base + count > self.log_start and base + count <= until
        ]

    def judge(self, producer: int, epoch: int, sequence: int, count: int, now: int) -> int | StreamError | None:
        """Return the offset of a duplicate, an error, or None for a batch to be stored."""
        known = self.producers.get(producer)
        if known is None or known[2] + EXPIRY_MS <= now:
            return None
        known_epoch, batches, _ = known
        if epoch < known_epoch:
            return StreamError.INVALID_PRODUCER_EPOCH
        if epoch > known_epoch:
            return None if sequence == 0 else StreamError.OUT_OF_ORDER_SEQUENCE_NUMBER
        for base, size, offset in batches:
            if (base, size) == (sequence, count):
                return offset
        base, size, _ = batches[-1]
        return None if sequence == (base + size) % (SEQUENCE_MAX + 1) else StreamError.OUT_OF_ORDER_SEQUENCE_NUMBER

    def store(self, count: int, payload: bytes, timestamp: int, producer: tuple[int, int, int], now: int) -> None:
        base = self.end
        self.batches.append((base, count, payload, timestamp))
        number, epoch, sequence = producer
        if number >= 0:
            known = self.producers.get(number)
            lives = known is not None and known[0] == epoch and known[2] + EXPIRY_MS > now
            batches = known[1] if known is not None and lives else []
            self.producers[number] = (epoch, [*batches, (sequence, count, base)][-5:], now)


class StreamStates(RuleBasedStateMachine):
    """Operations on one partition."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = StreamMachine(retention_ms=RETENTION_MS, producer_expiry_ms=EXPIRY_MS, retention_bytes=8_000)
        self.model = StreamModel()
        self.history: dict[int, StreamModel] = {}
        """The model by the length of the journal."""
        self.chunks = StreamChunks()
        self.checkpoint: tuple[bytes, int, dict[str, Any]] | None = None
        self.durable = len(self.machine.journal)
        self.until = 0
        self.plan: BindPlan | None = None
        self.plans_of_others: list[BindPlan] = []
        self.payload = 0
        self.remember()

    @initialize(producer=st.integers(0, 2))
    def begin(self, producer: int) -> None:
        """Begin near the largest sequence with one of the producers."""
        self.append(10, 50, 0, producer, 0, SEQUENCE_MAX - 15)

    def remember(self) -> None:
        self.history[len(self.machine.journal)] = copy.deepcopy(self.model)

    # --- append ---------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 20), size=st.integers(0, 400), age=st.integers(-20_000, 20_000))
    def append_plain(self, count: int, size: int, age: int) -> None:
        self.append(count, size, age, -1, -1, -1)

    @rule(
        count=st.sampled_from([1, 10]),
        producer=st.integers(0, 2),
        step=st.integers(-60, 20).map(lambda n: n if n < -10 or n > 10 else 0),
        epoch=st.sampled_from([0, 0, 0, 0, 1, -1]),
    )
    def append_in_sequence(self, count: int, producer: int, step: int, epoch: int) -> None:
        """Append as a producer: in order, again, or neither."""
        known = self.model.producers.get(producer)
        if known is None:
            self.append(count, 50, 0, producer, 3, 0)
            return
        base, size, _ = known[1][-1]
        sequence = (base + size + step) % (SEQUENCE_MAX + 1) if epoch <= 0 else max(step, 0)
        self.append(count, 50, 0, producer, max(0, known[0] + epoch), sequence)

    @rule(producer=st.integers(0, 2), back=st.integers(1, 5))
    def append_again(self, producer: int, back: int) -> None:
        known = self.model.producers.get(producer)
        if known is not None:
            sequence, count, _ = known[1][-min(back, len(known[1]))]
            self.append(count, 50, 0, producer, known[0], sequence)

    def append(self, count: int, size: int, age: int, producer: int, epoch: int, sequence: int) -> None:
        machine, model = self.machine, self.model
        self.payload += 1
        payload = self.payload.to_bytes(4, "big") + bytes(size)
        timestamp = machine.now - age
        expected = None if producer < 0 else model.judge(producer, epoch, sequence, count, machine.now)
        batch = NewBatch(payload, count, len(payload), timestamp, timestamp, 0, producer, epoch, sequence)
        if isinstance(expected, StreamError):
            with pytest.raises(StreamRefused) as refused:
                machine.commands.append(batch, machine.now)
            assert refused.value.error is expected
            return
        record, answer = machine.commands.append(batch, machine.now)
        if record is None:
            assert (answer.duplicate, answer.base_offset) == (True, expected)
            return
        assert expected is None
        assert answer.base_offset == model.end
        machine.write([record], payload)
        model.store(count, payload, timestamp, (producer, epoch, sequence), machine.now)
        self.remember()

    # --- time, durability, deletion -------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 1_000, 10_000, 60_000]), advance=st.booleans())
    def pass_time(self, ms: int, advance: bool) -> None:
        self.machine.pass_time(ms)
        if advance:
            self.machine.fold.advance(self.machine.now)

    @rule()
    def make_durable(self) -> None:
        self.durable = len(self.machine.journal)
        self.until = self.machine.fold.next_offset

    @rule(share=st.integers(0, 100))
    def delete_records(self, share: int) -> None:
        before = self.until * share // 100
        written, start = self.machine.commands.delete_records(before, self.until)
        self.machine.write(written)
        self.model.log_start = max(self.model.log_start, before)
        assert start == self.model.log_start
        self.remember()

    @rule()
    def trim(self) -> None:
        """Let the retention work.  What it may remove: only what is old, or too much."""
        machine, model = self.machine, self.model
        written = binding.trim(machine.fold, machine.now, self.until)
        machine.write(written)
        start = machine.fold.log_start
        assert start <= max(self.until, model.log_start)
        gone = [one for one in model.batches if model.log_start < one[0] + one[1] <= start]
        left = sum(len(payload) for base, count, payload, _ in model.batches if base + count > start)
        for *_, timestamp in gone:
            assert timestamp < machine.now - RETENTION_MS or left >= 8_000 - 400
        model.log_start = start
        self.remember()

    # --- binding --------------------------------------------------------------------------------------

    @precondition(lambda self: self.plan is None)
    @rule()
    def plan_bind(self) -> None:
        self.plan = self.machine.binder.plan(self.until)

    @precondition(lambda self: self.plan is not None)
    @rule(ok=st.booleans())
    def finish_bind(self, ok: bool) -> None:
        assert self.plan is not None
        plan, self.plan = self.plan, None
        length = self.machine.store(plan)
        if ok:
            self.machine.write(self.machine.binder.bound(plan, length))
            self.remember()
        else:
            self.machine.binder.abandon(plan)

    @precondition(lambda self: self.plan is None)
    @rule(durable=st.integers(1, 2), more=st.booleans())
    def append_and_bind(self, durable: int, more: bool) -> None:
        for _ in range(durable):
            self.append(3, 200, 0, -1, -1, -1)
        self.make_durable()
        if more:
            self.append(3, 200, 0, -1, -1, -1)
        self.plan_bind()
        if self.plan is not None:
            self.finish_bind(ok=True)

    @precondition(lambda self: self.plans_of_others)
    @rule(noise=st.binary(min_size=1, max_size=200))
    def zombie_writes(self, noise: bytes) -> None:
        """Let an earlier owner append to its extent: late, and other bytes than it had planned."""
        plan = self.plans_of_others.pop()
        stored = self.machine.extents.get(plan.extent, b"")
        self.machine.extents[plan.extent] = stored[: plan.length] + noise + stored[plan.length + len(noise) :]

    # --- checkpoints and crashes ----------------------------------------------------------------------

    @rule(publish=st.booleans())
    def take_checkpoint(self, publish: bool) -> None:
        """Take a checkpoint; if it fails, all references that it has given are forgotten."""
        fold = self.machine.fold
        fresh: snapshot.Fresh = []
        ref, _ = snapshot.take(fold, self.chunks.add, fresh)
        if not publish:
            for holder, given in fresh:
                assert holder.ref == given
                holder.ref = None
                self.chunks.stored[given[2]] = b"never written"
            return
        self.make_durable()
        chunk = self.chunks.stored[ref[2]]
        released = list(fold.released)
        self.checkpoint = (chunk, len(self.machine.journal), snapshot.describe(fold))
        for number in released:
            self.machine.extents.pop(ExtentId(fold.partition, *number), None)
        fold.forget_released(released)

    @rule(share=st.integers(0, 100), from_checkpoint=st.booleans())
    def crash(self, share: int, from_checkpoint: bool) -> None:
        """Lose some of what is not durable, and start again under the next owner."""
        machine = self.machine
        left = self.durable + (len(machine.journal) - self.durable) * share // 100
        del machine.journal[left:]
        self.model = copy.deepcopy(self.history[left])
        fold = machine.replayed()
        if from_checkpoint and self.checkpoint is not None:
            chunk, index, described = self.checkpoint
            restored, _ = finished(snapshot.read(chunk, self.chunks.fetch))
            assert isinstance(restored, StreamFold)
            assert snapshot.describe(restored) == described
            for record, now, position, size in machine.journal[index:]:
                restored.apply(record, now, position, size)
            restored.advance(machine.now)
            # The replay from the start finds the extents again that were deleted after checkpoints.
            assert restored.released == fold.released[len(fold.released) - len(restored.released) :]
            fold.forget_released([one for one in fold.released if one not in restored.released])
            assert snapshot.describe(restored) == snapshot.describe(fold)
            fold = restored
        if self.plan is not None:
            self.plans_of_others.append(self.plan)
            self.plan = None
        machine.restart(fold)
        self.durable = len(machine.journal)
        self.until = fold.next_offset
        known = {(one.epoch, one.number) for one in map(fold.extent_line, range(len(fold.extents)))}
        for orphan in binding.orphans(fold, machine.extents):
            assert orphan[1:] not in known
            del machine.extents[orphan]
        self.read_everything()

    # --- reading --------------------------------------------------------------------------------------

    @rule(offset=st.integers(-1, 400), bytes_max=st.integers(0, 2_000))
    def fetch(self, offset: int, bytes_max: int) -> None:
        machine, model = self.machine, self.model
        if not model.log_start <= offset <= model.end:
            with pytest.raises(StreamRefused):
                machine.read(offset, bytes_max, self.until)
            return
        found = machine.read(offset, bytes_max, self.until)
        expected = [
            (base, payload)
            for base, count, payload, _ in model.batches
            if base + count > offset and base + count <= self.until
        ]
        assert found == expected[: len(found)]
        assert bool(found) is bool(expected)
        assert len(found) <= 1 or sum(len(payload) for _, payload in found) <= bytes_max

    @rule(age=st.integers(-30_000, 60_000))
    def search(self, age: int) -> None:
        """Search a time; the first batch with that timestamp is in the place that is found, or in a later one."""
        machine, model = self.machine, self.model
        wanted = machine.now - age
        expected = next(
            (
                base
                for base, count, _, timestamp in model.batches
                if timestamp >= wanted and base + count > model.log_start and base + count <= self.until
            ),
            None,
        )
        found = machine.commands.search(wanted, self.until)
        while found is not None and isinstance(found.place, ExtentPlace):
            if expected is not None and expected < found.place.end_offset:
                assert found.place.offset <= max(expected, model.log_start)
                return
            found = machine.commands.search(wanted, self.until, found.place.end_offset)
        assert (None if found is None else found.place[1]) == expected

    # --- what always holds ----------------------------------------------------------------------------

    @invariant()
    def the_fold_is_as_the_model(self) -> None:
        fold, model = self.machine.fold, self.model
        assert (fold.log_start, fold.next_offset) == (model.log_start, model.end)
        lines = [fold.tail_line(index) for index in range(len(fold.tail))]
        held = fold.extent_line(0).base_offset if len(fold.extents) else fold.tail_base
        sizes = {base: len(payload) for base, _, payload, _ in model.batches if base >= held}
        assert fold.stored_bytes == sum(sizes.values())
        assert all(base >= held for base, count, _, _ in model.batches if base + count > model.log_start)
        assert fold.log_bytes == sum(line.size_bytes for line in lines)
        segments: dict[int, int] = {}
        for line in lines:
            segments[line.position >> SEGMENT_SHIFT] = segments.get(line.position >> SEGMENT_SHIFT, 0) + 1
        assert fold.segments == segments

    @rule()
    def read_everything(self) -> None:
        assert self.machine.read_all(self.until) == self.model.readable(self.until)

    def teardown(self) -> None:
        machine = self.machine
        self.read_everything()
        machine.fold.advance(machine.now)
        replayed = machine.replayed()
        replayed.forget_released([one for one in replayed.released if one not in machine.fold.released])
        assert snapshot.describe(replayed) == snapshot.describe(machine.fold)
        for index in range(len(machine.fold.extents)):
            line = machine.fold.extent_line(index)
            extent = ExtentId(machine.fold.partition, line.epoch, line.number)
            assert scan(machine.extents[extent], extent, line.length).damage == []
        self.sequences_are_stored_once_and_in_order()

    def sequences_are_stored_once_and_in_order(self) -> None:
        last: dict[tuple[int, int], tuple[int, int]] = {}
        for record, now, *_ in self.machine.journal:
            if not isinstance(record, Batches) or record.producer_id < 0:
                continue
            key = (record.producer_id, record.producer_epoch)
            if key in last and last[key][1] + EXPIRY_MS > now:
                assert record.base_sequence == last[key][0], "a sequence follows the one before"
            following = (record.base_sequence + record.record_count) % (SEQUENCE_MAX + 1)
            last[key] = (following, now)


SHORT = settings(max_examples=40, stateful_step_count=35, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.timeout(600)
def test_a_partition() -> None:
    run_state_machine_as_test(StreamStates, settings=SHORT)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_partition_for_long() -> None:
    run_state_machine_as_test(StreamStates, settings=settings(SHORT, max_examples=400))

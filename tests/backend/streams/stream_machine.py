"""A topic's partition in virtual time: commands are executed at once, and their records are kept for a replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backend.extent_ids import ExtentId
from backend.stream_api import Appended, NewBatch, StreamSettings
from backend.streams import binding, snapshot
from backend.streams.binding import BindPlan, ExtentBinder
from backend.streams.commands import (
    StreamCommands,
)
from backend.streams.extents import (
    FOOTER_BYTES,
    ExtentBatch,
    ExtentWriter,
    decode_index,
    index_position,
    read_batches,
)
from backend.streams.group import GroupFold
from backend.streams.records import Batches, StreamRecord
from backend.streams.stream import StreamFold
from tests.backend.engine.machine import MemoryChunks

TOPIC_ID = bytes(range(16))
SEGMENT_BYTES = 1 << 16
"""Size of a segment of the machine's journal."""


class StreamChunks(MemoryChunks):
    """Chunks of streams' and groups' checkpoints, in memory."""

    async def copy_stream(self, fold: StreamFold) -> StreamFold:
        """Write a checkpoint, and restore it."""
        copy = await self._copy(fold)
        assert isinstance(copy, StreamFold)
        return copy

    async def copy_group(self, fold: GroupFold) -> GroupFold:
        """Write a checkpoint, and restore it."""
        copy = await self._copy(fold)
        assert isinstance(copy, GroupFold)
        return copy

    async def _copy(self, fold: StreamFold | GroupFold) -> StreamFold | GroupFold:
        ref, refs = snapshot.take(fold, self.add, [])
        chunk = self.stored[ref[2]]
        assert snapshot.hanging(chunk) == refs
        assert snapshot.is_stream(chunk) is isinstance(fold, StreamFold)
        assert snapshot.is_group(chunk) is isinstance(fold, GroupFold)
        copy, found = await snapshot.read(chunk, self.fetch)
        assert found == refs
        return copy


class StreamMachine:
    """One partition, its clock, its journal (a list) and its extents."""

    def __init__(self, *, partition: int = 7, epoch: int = 1, **settings: Any) -> None:
        self.now = 1_000_000_000_000
        self.log_id = 1
        self.offset = 0
        self.fold = StreamFold(partition)
        self.journal: list[tuple[StreamRecord, int, int, int]] = []
        self.payloads: dict[int, bytes] = {}
        """By position."""
        self.extents: dict[ExtentId, bytes] = {}
        self.writers: dict[ExtentId, ExtentWriter] = {}
        self._serve(self.fold, epoch)
        self.settings = StreamSettings(partition, 1, 1, "000000000000", "orders", TOPIC_ID, 0, **settings)
        self.write(self.commands.configure(self.settings))

    def _serve(self, fold: StreamFold, epoch: int) -> None:
        self.fold = fold
        fold.open(epoch)
        self.commands = StreamCommands(fold)
        self.binder = ExtentBinder(fold)
        self.writers.clear()

    @property
    def segment(self) -> int:
        """Key of the current segment."""
        return self.log_id << 20 | self.offset // SEGMENT_BYTES

    def pass_time(self, ms: int) -> None:
        self.now += ms

    def write(self, written: Sequence[StreamRecord], payload: bytes = b"") -> None:
        for record in written:
            position = self.segment << 24 | self.offset % SEGMENT_BYTES >> 3
            self.offset += len(payload) + 64 & ~7
            self.journal.append((record, self.now, position, len(payload)))
            if isinstance(record, Batches):
                self.payloads[position] = payload
            self.fold.apply(record, self.now, position, len(payload))

    # --- commands -------------------------------------------------------------------------------------

    def append(
        self,
        count: int = 1,
        payload: bytes = b"payload",
        timestamp: int = -1,
        producer: tuple[int, int, int] = (-1, -1, -1),
    ) -> Appended:
        """Append a batch; ``producer``: id, epoch and base sequence."""
        record, answer = self.commands.append(
            NewBatch(payload, count, len(payload), timestamp, timestamp, 0, *producer), self.now
        )
        if record is not None:
            self.write([record], payload)
        return answer

    def bind(self, until: int | None = None) -> BindPlan | None:
        """Move batches into an extent, as the binder does."""
        plan = self.binder.plan(self.fold.next_offset if until is None else until)
        if plan is not None:
            self.write(self.binder.bound(plan, self.store(plan)))
        return plan

    def store(self, plan: BindPlan) -> int:
        """Append a plan's batches to its extent; return its length."""
        if plan.is_new:
            self.writers[plan.extent] = ExtentWriter(plan.extent, plan.batches[0].base_offset, self.now)
        writer = self.writers[plan.extent]
        heads = {position: (record, now) for record, now, position, _ in self.journal if isinstance(record, Batches)}
        batches = []
        for place in plan.batches:
            record, time_ms = heads[place.position]
            assert isinstance(record, Batches)
            batches.append(ExtentBatch(record, self.payloads[place.position], time_ms))
        stored = self.extents.get(plan.extent, b"")[: plan.length]
        assert writer.length == plan.length == len(stored)
        self.extents[plan.extent] = stored + writer.append(batches)
        return writer.length

    def read(self, offset: int, bytes_max: int, until: int) -> list[tuple[int, bytes]]:
        """Fetch once; return (base offset, payload) of each batch, from the log or from an extent."""
        plan = self.commands.fetch(offset, bytes_max, until)
        if plan.extent is None:
            return [(place.base_offset, self.payloads[place.position]) for place in plan.batches]
        data = self.extents[plan.extent.extent][: plan.extent.length]
        at = index_position(data[-FOOTER_BYTES:])
        assert at is not None
        index = decode_index(data[at:])
        assert index is not None
        start, stop = index.range_of(offset, bytes_max)
        found = []
        for batch in read_batches(data[start:stop], start, offset, bytes_max):
            assert isinstance(batch, ExtentBatch)
            assert batch.payload is not None
            found.append((batch.record.base_offset, batch.payload))
        return found

    def read_all(self, until: int) -> list[tuple[int, bytes]]:
        """Fetch everything from the log start on, in small parts."""
        found: list[tuple[int, bytes]] = []
        offset = self.fold.log_start
        ends = {record.base_offset: record.end_offset for record, *_ in self.journal if isinstance(record, Batches)}
        while offset < until:
            part = self.read(offset, 300, until)
            assert part, "a fetch below the durable end returns something"
            found += part
            offset = ends[part[-1][0]]
        return found

    def trim(self) -> None:
        self.write(binding.trim(self.fold, self.now, self.fold.next_offset))

    # --- restart --------------------------------------------------------------------------------------

    def replayed(self) -> StreamFold:
        """Fold that a restart would compute from the journal."""
        fold = StreamFold(self.fold.partition)
        for record, now, position, size in self.journal:
            fold.apply(record, now, position, size)
        fold.advance(self.now)
        return fold

    def restart(self, fold: StreamFold | None = None) -> None:
        """Continue with the next epoch in another log, from a replay."""
        epoch = self.fold.epoch + 1
        self.log_id += 1
        self.offset = 0
        self._serve(self.replayed() if fold is None else fold, epoch)

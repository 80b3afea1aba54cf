"""Idempotent producers of a partition: the sequences of the last five batches of each.

The rules are Kafka's (its ``ProducerStateManager`` and ``ProducerAppendInfo``, version 3.9):

* a batch with the producer's epoch and the same first and last sequence as one of the last five is a *duplicate*;
* an epoch below the producer's is refused with INVALID_PRODUCER_EPOCH;
* a higher epoch begins with sequence 0, and in the same epoch a batch continues the last one; otherwise
  OUT_OF_ORDER_SEQUENCE_NUMBER.  After 2^31 - 1 follows 0;
* a producer that is not known may begin with any sequence: its state may have expired.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from backend.engine.blocks import Ref
from backend.engine.timers import NEVER
from backend.stream_api import StreamError, StreamRefused

SEQUENCE_MAX = (1 << 31) - 1
BATCHES_KEPT = 5
PRODUCER_BITS = 7
"""Ids are handed out in ascending order: 128 neighbours share a chunk of a checkpoint."""
PRODUCER_BYTES = 600
"""Approximate memory of a producer."""
_FIELDS = 4


class AppendedBatch(NamedTuple):
    """One of the last batches of a producer."""

    base_sequence: int
    record_count: int
    base_offset: int
    max_timestamp: int


class ProducerState:
    """One producer, and its last batches, four numbers each."""

    __slots__ = ("batches", "epoch", "last_ms")

    def __init__(self, epoch: int, last_ms: int, batches: array[int] | None = None) -> None:
        self.epoch = epoch
        self.last_ms = last_ms
        """Time of the last append."""
        self.batches: array[int] = array("q") if batches is None else batches

    def last_sequence(self) -> int:
        base, count = self.batches[-_FIELDS], self.batches[1 - _FIELDS]
        return next_sequence(base, count - 1)

    def duplicate_of(self, base_sequence: int, record_count: int) -> AppendedBatch | None:
        batches = self.batches
        for at in range(0, len(batches), _FIELDS):
            if batches[at] == base_sequence and batches[at + 1] == record_count:
                return AppendedBatch(*batches[at : at + _FIELDS])
        return None

    def described(self) -> tuple[int, int, tuple[int, ...]]:
        return self.epoch, self.last_ms, tuple(self.batches)


class ProducerBlock:
    """Producers with neighbouring ids."""

    __slots__ = ("producers", "ref")

    def __init__(self) -> None:
        self.producers: dict[int, ProducerState] = {}
        self.ref: Ref | None = None
        """Reference to this block in the last checkpoint; None if it has changed since."""


class Producers:
    """The producers of a partition."""

    __slots__ = ("_order", "blocks")

    def __init__(self) -> None:
        self.blocks: dict[int, ProducerBlock] = {}
        self._order: dict[int, int] = {}
        """Time of the last append by producer, the oldest first."""

    def __len__(self) -> int:
        return len(self._order)

    def get(self, producer_id: int) -> ProducerState | None:
        block = self.blocks.get(producer_id >> PRODUCER_BITS)
        return None if block is None else block.producers.get(producer_id)

    def check(self, producer_id: int, epoch: int, base_sequence: int, record_count: int) -> AppendedBatch | None:
        """Return the earlier batch if this one is a duplicate.  Raises :class:`StreamRefused`."""
        known = self.get(producer_id)
        if known is None:
            return None
        if epoch == known.epoch:
            duplicate = known.duplicate_of(base_sequence, record_count)
            if duplicate is not None:
                return duplicate
            expected = next_sequence(known.last_sequence(), 1)
        elif epoch < known.epoch:
            raise StreamRefused(
                StreamError.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} has epoch {known.epoch} here; the batch has {epoch}",
            )
        else:
            expected = 0
        if base_sequence != expected:
            raise StreamRefused(
                StreamError.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} with epoch {epoch} continues with {expected}; the batch has {base_sequence}",
            )
        return None

    def appended(self, producer_id: int, epoch: int, batch: AppendedBatch, now: int) -> None:
        """Remember a batch that was appended."""
        key = producer_id >> PRODUCER_BITS
        block = self.blocks.get(key)
        if block is None:
            block = self.blocks[key] = ProducerBlock()
        block.ref = None
        known = block.producers.get(producer_id)
        if known is None:
            known = block.producers[producer_id] = ProducerState(epoch, now)
        elif known.epoch != epoch:
            known.epoch, known.batches = epoch, array("q")
        known.last_ms = now
        batches = known.batches
        batches.extend(batch)
        del batches[: -_FIELDS * BATCHES_KEPT]
        self._order.pop(producer_id, None)
        self._order[producer_id] = now

    def next_expiry(self, expiry_ms: int) -> int:
        """Return the time at which the first producer expires."""
        for last_ms in self._order.values():
            return last_ms + expiry_ms
        return NEVER

    def expire(self, now: int, expiry_ms: int) -> None:
        """Forget the producers whose time is over."""
        while self._order:
            producer_id = next(iter(self._order))
            if self._order[producer_id] + expiry_ms > now:
                return
            del self._order[producer_id]
            key = producer_id >> PRODUCER_BITS
            block = self.blocks[key]
            del block.producers[producer_id]
            block.ref = None
            if not block.producers:
                del self.blocks[key]

    def clear(self) -> None:
        self.blocks.clear()
        self._order.clear()

    def items(self) -> Iterator[tuple[int, ProducerState]]:
        for block in self.blocks.values():
            yield from block.producers.items()

    def restore(self, producers: dict[int, ProducerState], ref: Ref) -> None:
        """Add a block from a checkpoint; :meth:`restored` follows the last one."""
        block = self.blocks[next(iter(producers)) >> PRODUCER_BITS] = ProducerBlock()
        block.producers = producers
        block.ref = ref

    def restored(self) -> None:
        known = sorted(self.items(), key=lambda item: item[1].last_ms)
        self._order = {producer_id: state.last_ms for producer_id, state in known}


def next_sequence(sequence: int, step: int) -> int:
    """Return the sequence ``step`` behind another; 2^31 - 1 is followed by 0."""
    return sequence + step & SEQUENCE_MAX

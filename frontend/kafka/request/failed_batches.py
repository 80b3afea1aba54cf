"""Batches of idempotent producers that have failed on a connection, and are expected again.

A client sends batches without waiting for the answers of earlier ones.  When one fails, its client repeats it and the
later ones, in their order.  Those that are already on their way must not reach the partition: it would refuse them as
out of order, and then some clients begin a new epoch, in which a batch whose outcome they do not know is stored again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from frontend.streams.batches import BatchHeader

FAILED_MAX: Final = 4096
"""Failed batches of a connection that are remembered, one for each producer and partition."""
_SEQUENCE_MASK: Final = (1 << 31) - 1
_LATER_MAX: Final = 1 << 30
"""Distance of sequences, which begin again at 0, below which one is later than the other."""


class _FailedBatch(NamedTuple):
    epoch: int
    sequence: int


class FailedBatches:
    """The failed batches of one connection."""

    __slots__ = ("_failed",)

    def __init__(self) -> None:
        self._failed: dict[tuple[str, int, int], _FailedBatch] = {}
        """By topic, partition and producer: the first of its batches that is expected again."""

    def failed(self, topic: str, partition: int, header: BatchHeader) -> None:
        """Expect a batch of an idempotent producer again, unless an earlier one is expected."""
        key = (topic, partition, header.producer_id)
        known = self._failed.get(key)
        if known is not None and known.epoch == header.producer_epoch and _is_later(header.base_sequence, known):
            return
        if len(self._failed) >= FAILED_MAX and key not in self._failed:
            del self._failed[next(iter(self._failed))]
        self._failed[key] = _FailedBatch(header.producer_epoch, header.base_sequence)

    def is_behind(self, topic: str, partition: int, header: BatchHeader) -> bool:
        """Return whether an earlier batch is expected first.  If not, none is expected any more."""
        if not self._failed:
            return False
        key = (topic, partition, header.producer_id)
        known = self._failed.get(key)
        if known is None:
            return False
        if known.epoch == header.producer_epoch and _is_later(header.base_sequence, known):
            return True
        del self._failed[key]
        return False


def _is_later(sequence: int, known: _FailedBatch) -> bool:
    return 0 < (sequence - known.sequence) & _SEQUENCE_MASK < _LATER_MAX

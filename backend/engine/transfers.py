"""Messages in transfer to another queue: the state that each side keeps.

A fold does not change another queue.  A message moves as ``TransferOut`` in the source, ``Message`` with a source and a
transfer number in the destination, ``TransferDone`` in the source.  Transfers of one (source, destination) pair are
numbered; the destination remembers accepted transfers not by time but by a mark (all below are done) and the numbers
above it.  To take a message back, a source lets the destination journal that it rejects the transfer
(``TransfersRejected``): the first of the two records that the destination journals decides, and both calls get that
answer.

The deliveries of publications are transfers of the same kind, numbered together with the others of their pair.  They
are packed columns, because one publication may have thousands, and its destinations a backlog: about 22 bytes each.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Container, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import NamedTuple

from backend.engine.blocks import Ref

DELIVERY_BYTES = 24
"""Approximate memory of a pending delivery."""
OUTGOING_BYTES = 900
"""Approximate memory of a destination of deliveries, beside its pending ones."""
CHUNK_DELIVERIES = 256
_TRANSFER_BITS = 64
_TRANSFER_MASK = (1 << _TRANSFER_BITS) - 1


class PendingDelivery(NamedTuple):
    """One delivery that is still to be made."""

    transfer: int
    number: int
    """The publication's message number."""
    place: int
    """Index of the delivery in its publication."""


class DeliveryChunk:
    """Consecutive pending deliveries of one pair, as columns.  A checkpoint writes a full chunk once."""

    __slots__ = ("indexes", "numbers", "ref", "start", "transfers")

    def __init__(self) -> None:
        self.transfers: array[int] = array("Q")
        self.numbers: array[int] = array("Q")
        """Publications; 0: the delivery is done."""
        self.indexes: array[int] = array("I")
        self.start = 0
        """Deliveries before this place in the columns are done."""
        self.ref: Ref | None = None
        """Reference to this chunk in the last checkpoint; None if it has changed since."""

    def columns(self) -> tuple[bytes, bytes, bytes]:
        """Return transfers, publications and indexes of what is not done at its front."""
        start = self.start
        return self.transfers[start:].tobytes(), self.numbers[start:].tobytes(), self.indexes[start:].tobytes()


class PendingDeliveries:
    """Deliveries of publications to one destination that are still to be made, in order of transfer number."""

    __slots__ = ("_by_publication", "_chunks", "_count", "_highest", "_in_order")

    def __init__(self) -> None:
        self._chunks: list[DeliveryChunk] = []
        self._count = 0
        self._highest = 0
        self._in_order = True
        """True if the publications are in order, too; deliveries that were sent to another partition before may not be.
        """
        self._by_publication: list[int] | None = None
        """Heap of all deliveries by publication and transfer, packed; those done since may be in it.  None: it is not
        needed, or is made when it is."""

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return self._count > 0

    def __iter__(self) -> Iterator[PendingDelivery]:
        for chunk in self._chunks:
            for place in range(chunk.start, len(chunk.numbers)):
                if chunk.numbers[place]:
                    yield PendingDelivery(chunk.transfers[place], chunk.numbers[place], chunk.indexes[place])

    @property
    def first(self) -> int:
        """Transfer number of the first one; there has to be one."""
        chunk = self._chunks[0]
        return chunk.transfers[chunk.start]

    def next(self, count: int) -> list[PendingDelivery]:
        """Return the first deliveries in order of their publications."""
        if self._in_order:
            return list(islice(self, count))
        heap = self._by_publication
        if heap is None:
            heap = self._by_publication = [_packed(one.number, one.transfer) for one in self]
            heapify(heap)
        first: list[int] = []
        found: list[PendingDelivery] = []
        while heap and len(found) < count:
            packed = heappop(heap)
            delivery = self.get(packed & _TRANSFER_MASK)
            if delivery is not None:
                first.append(packed)
                found.append(delivery)
        for packed in first:
            heappush(heap, packed)
        return found

    def append(self, transfer: int, number: int, index: int) -> None:
        """Add a delivery; its transfer number is higher than all others."""
        self._note(number)
        if self._by_publication is not None:
            heappush(self._by_publication, _packed(number, transfer))
        chunk = self._chunks[-1] if self._chunks else None
        if chunk is None or len(chunk.numbers) >= CHUNK_DELIVERIES:
            chunk = DeliveryChunk()
            self._chunks.append(chunk)
        chunk.transfers.append(transfer)
        chunk.numbers.append(number)
        chunk.indexes.append(index)
        chunk.ref = None
        self._count += 1

    def has(self, transfer: int) -> bool:
        """Return whether a delivery is pending."""
        return self._find(transfer) is not None

    def get(self, transfer: int) -> PendingDelivery | None:
        """Return a pending delivery; None: it is done, or unknown."""
        found = self._find(transfer)
        if found is None:
            return None
        chunk, place = found
        return PendingDelivery(transfer, chunk.numbers[place], chunk.indexes[place])

    def pop(self, transfer: int) -> PendingDelivery | None:
        """Remove a delivery and return it; None: it is done, or unknown."""
        found = self._find(transfer)
        if found is None:
            return None
        chunk, place = found
        popped = PendingDelivery(transfer, chunk.numbers[place], chunk.indexes[place])
        chunk.numbers[place] = 0
        chunk.ref = None
        self._count -= 1
        self._trim()
        return popped

    def drop_first(self, live: Container[int]) -> None:
        """Remove deliveries at the front whose publications are not ``live`` any more."""
        while self._chunks:
            chunk = self._chunks[0]
            if chunk.numbers[chunk.start] in live:
                return
            chunk.numbers[chunk.start] = 0
            chunk.ref = None
            self._count -= 1
            self._trim()

    def chunks(self) -> list[DeliveryChunk]:
        return list(self._chunks)

    def restore(self, transfers: array[int], numbers: array[int], indexes: array[int], ref: Ref) -> None:
        """Add a chunk of a checkpoint behind the others."""
        chunk = DeliveryChunk()
        chunk.transfers, chunk.numbers, chunk.indexes, chunk.ref = transfers, numbers, indexes, ref
        self._chunks.append(chunk)
        self._count += len(numbers) - numbers.count(0)
        for number in numbers:
            if number:
                self._note(number)

    def _note(self, number: int) -> None:
        if number < self._highest:
            self._in_order = False
        else:
            self._highest = number

    def _find(self, transfer: int) -> tuple[DeliveryChunk, int] | None:
        chunks = self._chunks
        # mostly one of the first
        at = 0 if chunks and transfer <= chunks[0].transfers[-1] else bisect_left(chunks, transfer, key=_last_transfer)
        if at == len(chunks):
            return None
        chunk = chunks[at]
        place = bisect_left(chunk.transfers, transfer, chunk.start)
        if place < len(chunk.numbers) and chunk.transfers[place] == transfer and chunk.numbers[place]:
            return chunk, place
        return None

    def _trim(self) -> None:
        """Skip what is done at the front."""
        while self._chunks:
            chunk = self._chunks[0]
            numbers, place = chunk.numbers, chunk.start
            while place < len(numbers) and not numbers[place]:
                place += 1
            chunk.start = place
            if place < len(numbers):
                return
            del self._chunks[0]
        self._in_order, self._highest, self._by_publication = True, 0, None


def _last_transfer(chunk: DeliveryChunk) -> int:
    return chunk.transfers[-1]


def _packed(number: int, transfer: int) -> int:
    """A publication and a transfer as one number that sorts as they do."""
    return number << _TRANSFER_BITS | transfer


class Outgoing:
    """The source's side of one pair."""

    __slots__ = ("deliveries", "next", "pending", "queue_id")

    def __init__(self, queue_id: int) -> None:
        self.queue_id = queue_id
        self.next = 1
        self.pending: OrderedDict[int, tuple[int, bool]] = OrderedDict()
        """transfer number → (message number, moved by a task), in order of number; there may be a backlog"""
        self.deliveries: PendingDeliveries | None = None
        """Pending deliveries of publications; None: there never were any."""

    @property
    def is_pending(self) -> bool:
        """True while a transfer is not done."""
        return bool(self.pending or self.deliveries)

    @property
    def acked_below(self) -> int:
        """The acked-below mark: all transfers below it are done."""
        first = next(iter(self.pending), self.next)
        return min(first, self.deliveries.first) if self.deliveries else first

    def add_delivery(self, number: int, index: int) -> None:
        """Number the transfer of a delivery."""
        if self.deliveries is None:
            self.deliveries = PendingDeliveries()
        self.deliveries.append(self.next, number, index)
        self.next += 1


class IncomingTransfers:
    """The destination's side of one pair."""

    __slots__ = ("above", "acked_below", "refused")

    def __init__(self) -> None:
        self.acked_below = 1
        self.above: set[int] = set()
        """Decided transfers above the mark, accepted or rejected."""
        self.refused: set[int] = set()
        """Rejected transfers among these, which the source has taken back."""

    def has(self, transfer: int) -> bool:
        return transfer < self.acked_below or transfer in self.above

    def accept(self, transfer: int, acked_below: int) -> None:
        if acked_below > self.acked_below:
            self.acked_below = acked_below
            self.above = {number for number in self.above if number >= acked_below}
            if self.refused:
                self.refused = {number for number in self.refused if number >= acked_below}
        if transfer >= self.acked_below:
            self.above.add(transfer)

    def refuse(self, transfer: int, acked_below: int) -> None:
        self.accept(transfer, acked_below)
        if transfer in self.above:
            self.refused.add(transfer)

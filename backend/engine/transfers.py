"""Messages in transfer to another queue: the state that each side keeps.

A fold does not change another queue.  A message moves as ``TransferOut`` in the source, ``Message`` with a source and a
transfer number in the destination, ``TransferDone`` in the source.  Transfers of one (source, destination) pair are
numbered; the destination remembers accepted transfers not by time but by a mark (all below are done) and the numbers
above it.  To take a message back, a source lets the destination journal that it rejects the transfer
(``TransfersRejected``): the first of the two records that the destination journals decides, and both calls get that
answer.
"""

from __future__ import annotations

from collections import OrderedDict


class Outgoing:
    """The source's side of one pair."""

    __slots__ = ("next", "pending", "queue_id")

    def __init__(self, queue_id: int) -> None:
        self.queue_id = queue_id
        self.next = 1
        self.pending: OrderedDict[int, tuple[int, bool]] = OrderedDict()
        """transfer number → (message number, moved by a task), in order of number; there may be a backlog"""

    @property
    def acked_below(self) -> int:
        """The acked-below mark: all transfers below it are done."""
        return next(iter(self.pending), self.next)


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

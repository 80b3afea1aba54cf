"""Messages as packed columns.

A waiting message costs 37 bytes (41 with a message group): its position in the journal, its size, its time, its links
in a list and its state.  Its body stays on disk.  Attributes of only some messages (receives, a delivery time, a group)
are columns that a block has only when one of its messages needs them.

A block holds the messages of 1,024 consecutive numbers and is removed when none of them is live.
"""

from __future__ import annotations

from array import array
from typing import TypeAlias

Ref: TypeAlias = tuple[int, int, int, int, int]
"""Reference to a chunk of a checkpoint; opaque to the engine."""

BLOCK_BITS = 10

# States.  In WAITING and BACK a message is in exactly one list (see lanes), in the other states in none.
DEAD = 0
WAITING = 1
"""Visible, or FIFO and not yet due; never received."""
BACK = 2
"""Visible again: its claim has ended."""
DELAYED = 3
IN_FLIGHT = 4
MOVING = 5
"""In transfer to another queue; hidden, and counted as in flight."""
PUBLISHED = 6
"""A publication, until its last delivery is done; hidden, and counted as in flight."""


class Block:
    """Columns of up to 1,024 messages with consecutive numbers from ``base``."""

    __slots__ = (
        "base",
        "carried",
        "deliver",
        "first_received",
        "lanes",
        "live",
        "next",
        "oldest",
        "positions",
        "previous",
        "receives",
        "ref",
        "sent",
        "sizes",
        "states",
    )

    def __init__(self, base: int) -> None:
        self.base = base
        self.positions: array[int] = array("Q")
        self.sizes: array[int] = array("I")
        """Bytes of the payloads; 0 in a checkpoint of a version that did not count them."""
        self.sent: array[int] = array("Q")
        self.next: array[int] = array("Q")
        self.previous: array[int] = array("Q")
        self.states = bytearray()
        self.lanes: array[int] | None = None
        self.receives: array[int] | None = None
        self.carried: array[int] | None = None
        """Receives of a dead letter in earlier queues; ``receives`` counts those of this queue."""
        self.first_received: array[int] | None = None
        self.deliver: array[int] | None = None
        self.live = 0
        self.oldest = 1 << 62
        """Lower bound of the send times of live messages."""
        self.ref: Ref | None = None
        """Reference to this block in the last checkpoint; None if it has changed since."""

    def append(self, position: int, size: int, sent: int, state: int, lane: int) -> int:
        """Add the message with the next number; return its index in the block."""
        index = len(self.states)
        self.positions.append(position)
        self.sizes.append(size)
        self.sent.append(sent)
        self.next.append(0)
        self.previous.append(0)
        self.states.append(state)
        if self.lanes is not None:
            self.lanes.append(lane)
        elif lane:
            self.lanes = array("I", bytes(4 * index))
            self.lanes.append(lane)
        if sent < self.oldest:
            self.oldest = sent
        self.live += 1
        self.ref = None
        return index

    def skip_to(self, index: int) -> None:
        """Pad with dead messages up to ``index`` (after a purge that left a few)."""
        missing = index - len(self.states)
        if missing > 0:
            self.positions.frombytes(bytes(8 * missing))
            self.sizes.frombytes(bytes(4 * missing))
            self.sent.frombytes(bytes(8 * missing))
            self.next.frombytes(bytes(8 * missing))
            self.previous.frombytes(bytes(8 * missing))
            self.states.extend(bytes(missing))
            if self.lanes is not None:
                self.lanes.frombytes(bytes(4 * missing))

    def link(self) -> None:
        """Link each message to its neighbours by number, as a list of this block alone."""
        first, size = self.base, len(self.states)
        self.next = array("Q", range(first + 1, first + size + 1))
        self.next[-1] = 0
        self.previous = array("Q", range(first - 1, first + size - 1))
        self.previous[0] = 0

    def lane_of(self, index: int) -> int:
        return self.lanes[index] if self.lanes is not None else 0

    def receives_of(self, index: int) -> int:
        column = self.receives
        return column[index] if column is not None and index < len(column) else 0

    def carried_of(self, index: int) -> int:
        column = self.carried
        return column[index] if column is not None and index < len(column) else 0

    def carry(self, index: int, receives: int, first_received_ms: int) -> None:
        """Set the receives that a message had in earlier queues."""
        if receives:
            self.carried = _extended(self.carried, "I", index)
            self.carried[index] = receives
            self.first_received = _extended(self.first_received, "Q", index)
            self.first_received[index] = first_received_ms

    def first_received_of(self, index: int) -> int:
        column = self.first_received
        return column[index] if column is not None and index < len(column) else 0

    def deliver_of(self, index: int) -> int:
        column = self.deliver
        return column[index] if column is not None and index < len(column) else 0

    def count_receive(self, index: int, now: int) -> int:
        """Count one more receive; return the number of receives in this queue."""
        receives, first = self.receives, self.first_received
        if receives is None or index >= len(receives):
            receives = self.receives = _extended(receives, "I", index)
        if first is None or index >= len(first):
            first = self.first_received = _extended(first, "Q", index)
        count = receives[index] + 1
        receives[index] = count
        if count == 1 and (self.carried is None or not self.carried_of(index)):
            first[index] = now
        return count

    def set_deliver(self, index: int, due: int) -> None:
        deliver = self.deliver = _extended(self.deliver, "Q", index)
        deliver[index] = due


def _extended(column: array[int] | None, code: str, index: int) -> array[int]:
    """Return the column, extended to at least ``index``."""
    if column is None:
        column = array(code)
    missing = index + 1 - len(column)
    if missing > 0:
        column.frombytes(bytes(column.itemsize * (missing + 15)))
    return column

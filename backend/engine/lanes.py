"""Lanes: the order of a queue, or of one message group, as linked lists threaded through the blocks.

A lane is two lists, ``fresh`` (never received) and ``back`` (claim ended), linked by the blocks' ``next`` column, so a
waiting message costs no object.  A message is in at most one list, and is removed in constant time at any position.  A
FIFO lane has no ``back`` list: messages received and not deleted are ``outstanding``, a short sorted list.
"""

from __future__ import annotations

from backend.engine.blocks import BACK, BLOCK_BITS, Block


class Lane:
    """One lane.  Heads and tails are message numbers; 0 is the end."""

    __slots__ = (
        "back_head",
        "back_tail",
        "claimed",
        "fresh_head",
        "fresh_tail",
        "index",
        "live",
        "name",
        "noisy",
        "outstanding",
        "sent_ms",
        "waiting",
        "work",
        "work_ms",
    )

    def __init__(self, index: int, name: str | None) -> None:
        self.index = index
        self.name = name
        self.fresh_head = self.fresh_tail = 0
        self.back_head = self.back_tail = 0
        self.live = 0
        """Number of live messages of the lane, in any state."""
        self.waiting = 0
        """Number of its messages in WAITING or BACK."""
        self.claimed = 0
        """Number of its messages in flight."""
        self.outstanding: list[int] | None = None
        self.noisy = False
        self.sent_ms = 0
        """Time at which a message last arrived in it."""
        self.work = 0.0
        """Decaying sum of recent processing time, in milliseconds, as of ``work_ms``."""
        self.work_ms = 0


class Links:
    """The list operations over the blocks of one queue."""

    __slots__ = ("blocks",)

    def __init__(self, blocks: dict[int, Block]) -> None:
        self.blocks = blocks

    def append_fresh(self, lane: Lane, number: int, block: Block) -> None:
        tail = lane.fresh_tail
        if tail:
            before = self.blocks[tail >> BLOCK_BITS]
            before.next[tail - before.base] = number
            block.previous[number - block.base] = tail
        else:
            lane.fresh_head = number
        lane.fresh_tail = number

    def append_block(self, lane: Lane, block: Block) -> None:
        """Append all messages of a block, which are already linked in order (:meth:`Block.link`)."""
        self.append_fresh(lane, block.base, block)
        lane.fresh_tail = block.base + len(block.states) - 1

    def append_back(self, lane: Lane, number: int, block: Block) -> None:
        tail = lane.back_tail
        if tail:
            before = self.blocks[tail >> BLOCK_BITS]
            before.next[tail - before.base] = number
            block.previous[number - block.base] = tail
        else:
            lane.back_head = number
        lane.back_tail = number

    def remove(self, lane: Lane, number: int, state: int) -> None:
        """Remove a message that is, or was just before, WAITING or BACK from its list, at any position."""
        blocks = self.blocks
        block = blocks[number >> BLOCK_BITS]
        index = number - block.base
        following, preceding = block.next[index], block.previous[index]
        if following:
            other = blocks[following >> BLOCK_BITS]
            other.previous[following - other.base] = preceding
            block.next[index] = 0
        elif state == BACK:
            lane.back_tail = preceding
        else:
            lane.fresh_tail = preceding
        if preceding:
            other = blocks[preceding >> BLOCK_BITS]
            other.next[preceding - other.base] = following
            block.previous[index] = 0
        elif state == BACK:
            lane.back_head = following
        else:
            lane.fresh_head = following

"""The state of a queue partition, and queries that change nothing.

:mod:`~backend.engine.fold` changes it.
"""

from __future__ import annotations

from bisect import bisect_right

from backend.api import AckLevel, Counters, MoveTask, PartitionSettings
from backend.engine.blocks import BLOCK_BITS, DEAD, WAITING, Block
from backend.engine.claims import Attempt, Claim
from backend.engine.lanes import Lane, Links
from backend.engine.order import FifoOrder, StandardOrder
from backend.engine.timers import NEVER, Timers
from backend.engine.tokens import TOKEN_MEMORY_BYTES, ImportedTokens, Tokens
from backend.engine.transfers import DELIVERY_BYTES, OUTGOING_BYTES, IncomingTransfers, Outgoing

FOLD_BYTES = 5_000
MESSAGE_BYTES = 41
CLAIM_BYTES = 170
"""Approximate memory of a fold without messages, of a message in its columns, and additionally of one in flight."""


class State:
    """The whole state of one partition."""

    __slots__ = (
        "_ages",
        "_free_lanes",
        "_next_lane",
        "ack_level",
        "at_most_once",
        "attempts",
        "attempts_order",
        "blocks",
        "byte_moments",
        "changed",
        "default_lane",
        "delayed",
        "dropped",
        "dropped_deliveries",
        "due",
        "emptied_ms",
        "fifo",
        "imported_tokens",
        "in_flight",
        "incoming",
        "lane_names",
        "lanes",
        "limited",
        "links",
        "moving",
        "next_number",
        "now",
        "order",
        "outgoing",
        "partition",
        "pending_deliveries",
        "pending_token_sources",
        "publications",
        "purge_id",
        "purged_below",
        "quarantined",
        "retention_ms",
        "retries",
        "retry_window_ms",
        "segments",
        "settings",
        "stored_bytes",
        "tasks",
        "timers",
        "token_window_ms",
        "tokens",
        "visible",
    )

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.settings: PartitionSettings | None = None
        self.fifo = False
        self.limited = False
        """True if the queue has a limit on its length, or the partition accepts no sends at all."""
        self.at_most_once = False
        self.ack_level = AckLevel.QUORUM
        self.retention_ms = 0
        self.token_window_ms = 0
        self.retry_window_ms = 0
        self.now = 0
        self.due = NEVER
        """Earliest time at which the passing of time changes the state."""
        self.next_number = 1
        self.purge_id = 0
        self.purged_below = 0
        """Messages with smaller numbers were purged; of these, only ones that were MOVING then are left."""
        self.dropped = False
        self.visible = 0
        self.delayed = 0
        self.moving = 0
        self.quarantined = 0
        self.stored_bytes = 0
        """Bytes of the payloads of all live messages, in any state."""
        self.byte_moments = 0
        """Sum of each change of ``stored_bytes`` multiplied by its time; see :meth:`stored_byte_ms`."""
        self.blocks: dict[int, Block] = {}
        self.links = Links(self.blocks)
        self.default_lane = Lane(0, None)
        self.lanes: dict[int, Lane] = {0: self.default_lane}
        self.lane_names: dict[str, Lane] = {}
        self.order: StandardOrder | FifoOrder = StandardOrder(self.links, self.default_lane)
        self.in_flight: dict[int, Claim] = {}
        self.timers = Timers()
        self.tokens = Tokens()
        """Deduplication ids of a FIFO queue."""
        self.retries = Tokens()
        """Retry tokens of calls, each with a digest."""
        self.imported_tokens: ImportedTokens | None = None
        """Tokens imported from other partitions; None: there never were any."""
        self.pending_token_sources: tuple[int, ...] = ()
        """Partitions that have not yet handed over the tokens that this one waits for."""
        self.emptied_ms = 0
        """Time at which the draining partition was found empty, if nothing has arrived since; 0: it was not."""
        self.attempts: dict[str, Attempt] = {}
        self.attempts_order: list[tuple[int, str]] = []
        """A heap by expiry."""
        self.outgoing: dict[int, Outgoing] = {}
        self.incoming: dict[int, IncomingTransfers] = {}
        self.publications: dict[int, int] = {}
        """By number of each stored publication: its deliveries that are not done."""
        self.pending_deliveries = 0
        """Their sum."""
        self.dropped_deliveries = 0
        """Deliveries that were given up, because their publication was older than the retention, or unreadable."""
        self.tasks: list[MoveTask] = []
        self.segments: dict[int, int] = {}
        """Number of live messages in each segment of the journal."""
        self.changed = True
        """True if the state has changed since the last checkpoint."""
        self._ages: list[tuple[int, int]] = []
        self._free_lanes: list[int] = []
        self._next_lane = 1

    def locate(self, number: int) -> tuple[Block, int] | None:
        """Return block and index of a live message."""
        block = self.blocks.get(number >> BLOCK_BITS)
        if block is None:
            return None
        index = number - block.base
        if index < 0 or index >= len(block.states) or block.states[index] == DEAD:
            return None
        return block, index

    @property
    def stored_messages(self) -> int:
        """Number of live messages, in any state."""
        return self.visible + self.delayed + self.moving + len(self.in_flight)

    def stored_byte_ms(self, until: int) -> int:
        """Return the integral of stored bytes over time, in byte-milliseconds, from :meth:`Fold.open` to ``until``.

        ``until`` must not be before the last change.  A byte stored from a to b counts b - a.  So the integral is the
        stored bytes times ``until``, less the sum of arrival times, plus the sum of removal times.
        """
        return self.stored_bytes * until - self.byte_moments

    def first_sent_ms(self) -> int:
        """Return the send time of the first live message by number; 0 if there is none."""
        for block in self.blocks.values():
            dead = len(block.states) - len(block.states.lstrip(b"\0"))
            return block.sent[dead]
        return 0

    def memory_bytes(self) -> int:
        """Return the approximate memory of the state in bytes."""
        # A block keeps its columns as long as any of its messages is live.
        places = sum(len(block.states) for block in self.blocks.values())
        claims = len(self.in_flight) + self.moving
        tokens = (
            len(self.tokens) + len(self.retries) + (0 if self.imported_tokens is None else len(self.imported_tokens))
        )
        used = FOLD_BYTES + places * MESSAGE_BYTES + claims * CLAIM_BYTES + tokens * TOKEN_MEMORY_BYTES
        if self.publications:
            used += self.pending_deliveries * DELIVERY_BYTES + len(self.outgoing) * OUTGOING_BYTES
        return used

    def counters(self) -> Counters:
        delayed = self._fifo_delayed() if isinstance(self.order, FifoOrder) else self.delayed
        hidden = delayed if isinstance(self.order, FifoOrder) else 0
        return Counters(self.visible - hidden, len(self.in_flight) + self.moving, delayed, self.stored_bytes)

    def _fifo_delayed(self) -> int:
        """Count FIFO messages that are not yet due: the youngest, because all have the same delay."""
        assert isinstance(self.order, FifoOrder)
        if not self.order.delay_ms:
            return 0
        latest = self.now - self.order.delay_ms
        count = 0
        for key in sorted(self.blocks, reverse=True):
            block = self.blocks[key]
            start = bisect_right(block.sent, latest)
            count += block.states.count(WAITING, start)
            if start:
                break
        return count

    @property
    def running_task(self) -> MoveTask | None:
        return next((task for task in self.tasks if task.status in ("RUNNING", "CANCELLING")), None)

    def _lane(self, block: Block, index: int) -> Lane:
        return self.lanes[block.lanes[index]] if block.lanes is not None else self.default_lane

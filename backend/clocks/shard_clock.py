"""The time of one shard: its owner's clock, and a lead that slews to zero.

Claims, delays, retention and deduplication windows end by this time.  It is never stepped, never goes back, never
stands still, and runs at most a tenth faster or slower than real time, whatever happens to its owner's clock, and
whichever node owns the shard next.  The lead is its difference from the owner's clock, positive or negative; most
shards have none, and use the owner's clock directly.

A lead results from a wrong clock: of a node that saw no other node, for example, or of most nodes. After the clocks are
corrected, a lead of an hour takes ten hours to vanish.  Meanwhile timeouts are up to a tenth longer or shorter, and the
timestamps of messages are off.
"""

from __future__ import annotations

from typing import NamedTuple

from backend.clocks.node_clock import SLEW_MAX, SLEWED_MS_MAX, SteadyClock


class ShardClock:
    """A clock that returns milliseconds since the epoch when called."""

    __slots__ = ("_at_ms", "_joined", "_node", "_time_ms")

    def __init__(self, node: SteadyClock, time_ms: float | None = None) -> None:
        """``time_ms``: the current time; None: the owner's clock."""
        self._node = node
        self._joined: float | None = node.stepped_ms
        """Sum of the steps of the owner's clock while both clocks are the same; None: there is a lead."""
        self._time_ms = 0.0
        """With a lead: the last time returned, in milliseconds."""
        self._at_ms = 0.0
        """Time at which it was returned, by :meth:`SteadyClock.elapsed_ms`."""
        if time_ms is not None and int(time_ms) != node():
            self._part(time_ms)

    def __call__(self) -> int:
        node = self._node
        if self._joined == node.stepped_ms:
            return int(node.exact_ms())
        return int(self._slewed(node))

    @property
    def lead_ms(self) -> float:
        """Milliseconds by which the shard is ahead of the owner's clock; negative: behind."""
        node = self._node
        return 0.0 if self._joined == node.stepped_ms else self._slewed(node) - node.exact_ms()

    def _part(self, time_ms: float) -> None:
        self._joined = None
        self._time_ms = time_ms
        self._at_ms = self._node.elapsed_ms()

    def _slewed(self, node: SteadyClock) -> float:
        now_ms = node.exact_ms()
        if self._joined is not None:  # the owner's clock was stepped since
            self._part(now_ms - node.stepped_ms + self._joined)
            return self._time_ms
        at_ms = node.elapsed_ms()
        passed_ms = max(0.0, at_ms - self._at_ms)
        before_ms = self._time_ms
        if before_ms + passed_ms > now_ms + SLEWED_MS_MAX:
            time_ms = before_ms + passed_ms  # slewing would take more than ten days
        else:
            slowest_ms, fastest_ms = before_ms + (1 - SLEW_MAX) * passed_ms, before_ms + (1 + SLEW_MAX) * passed_ms
            time_ms = min(max(now_ms, slowest_ms), fastest_ms)
            if slowest_ms <= now_ms <= fastest_ms and passed_ms:
                self._joined = node.stepped_ms
        self._time_ms, self._at_ms = time_ms, at_ms
        return time_ms


class Former(NamedTuple):
    """The last known time of a shard, according to the journal."""

    owner_log: int = 0
    """The log that owned it last, even if its writer never served it; 0: none did."""
    log_id: int = 0
    """The log with its last record, or else its checkpoint; 0: there is neither."""
    time_ms: int = 0
    """The shard's time at that point; 0: unknown."""
    clock_ms: int = 0
    """The clock of the log's writer at that point; 0: unknown."""

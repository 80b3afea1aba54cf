"""Bounds on the clock differences between a cluster's nodes, as their heartbeats prove them.  Pure.

A heartbeat carries the time at which it was written.  A reader sees it after an unknown delay: a Cassandra node that
has just started takes seconds to store a row and to answer a read.  So a heartbeat that was read proves only that the
node's clock has reached that time: the lower bound.  The upper bound follows from the next heartbeat: it was written
after the previous one was stored, and so after the start of the last read that did not find the previous one.
Differences within both bounds prove nothing, so clocks count as equal as long as they may be equal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, TypeVar

from metadata_service.models import Heartbeat

OBSERVATIONS: Final = 4
"""Number of a node's latest heartbeats that are used; so a corrected clock counts as correct after this many."""


class _Node:
    """A node's latest heartbeat, and the bounds from its last heartbeats."""

    def __init__(self, beat: Heartbeat) -> None:
        self.beat = beat
        self.absent_ms: int | None = None
        """Start of the last read that did not find this heartbeat, by the reader's clock; None: the first read found
        it.
        """
        self.lower_ms: deque[int] = deque(maxlen=OBSERVATIONS)
        self.upper_ms: deque[int] = deque(maxlen=OBSERVATIONS)


class ClockBounds:
    """Other nodes' clocks compared with this machine's."""

    def __init__(self) -> None:
        self._nodes: dict[int, _Node] = {}
        self._started_ms: int | None = None

    def add(self, beats: Iterable[Heartbeat], started_ms: int, ended_ms: int) -> None:
        """Add the heartbeats read between these times of this machine's clock."""
        known, self._nodes = self._nodes, {}
        for beat in beats:
            node = self._nodes[beat.log_id] = known.get(beat.log_id) or _Node(beat)
            if node.beat.count == beat.count:
                continue
            if node.absent_ms is not None:
                node.upper_ms.append(beat.time_ms - node.absent_ms)
            node.lower_ms.append(beat.time_ms - ended_ms)
            node.beat, node.absent_ms = beat, self._started_ms
        self._started_ms = started_ms

    def ahead_ms(self, others: Iterable[int], about_ms: float | None = None) -> int:
        """Return the smallest proven lead of the cluster's time over this machine's clock; negative: it is behind.

        The cluster's time is the median of all clocks.  ``others`` are the logs of the other live nodes.  ``about_ms``
        is the estimate that assumes heartbeats without delay
        (:meth:`backend.clocks.cluster_clocks.Clocks.ahead_ms`).
        """
        known = [self._nodes[log_id] for log_id in others if log_id in self._nodes]
        return median([0, *(_smallest_lead(node) for node in known)], about_ms)


def _smallest_lead(node: _Node) -> int:
    lower_ms, upper_ms = max(node.lower_ms, default=0), min(node.upper_ms, default=0)
    if node.lower_ms and lower_ms > 0:
        return 0 if node.upper_ms and upper_ms < 0 else lower_ms  # both bounds hold: a clock was set meanwhile
    return upper_ms if node.upper_ms and upper_ms < 0 else 0


Number = TypeVar("Number", int, float)


def median(values: list[Number], near: float | None = None) -> Number:
    """Return the median; of two middle values the one nearer to ``near``, or the lower one."""
    middle = sorted(values)[(len(values) - 1) // 2 : len(values) // 2 + 1]
    return middle[0] if near is None else min(middle, key=lambda value: abs(value - near))

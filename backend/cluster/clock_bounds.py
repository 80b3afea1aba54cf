"""Bounds on the clock differences between a cluster's nodes, as their heartbeats prove them.  Pure.

A heartbeat carries the time at which it was written.  A reader sees it after an unknown delay: a Cassandra node that
has just started takes seconds to store a row and to answer a read.  So one sighting proves only that the node's clock
has reached that time.  The other bound follows from the next heartbeat: it was written after the previous one was
stored, which was after the start of the last read that did not find that one.  Values within both bounds prove no
difference, so clocks count as equal as long as they may be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, TypeVar

from metadata_service.models import Heartbeat

SIGHTS: Final = 4
"""Number of a node's latest heartbeats that count; a corrected clock counts as correct after this many."""


class _Node:
    """A node's latest heartbeat, and the bounds from its last heartbeats."""

    def __init__(self, beat: Heartbeat) -> None:
        self.beat = beat
        self.absent_ms: int | None = None
        """Start of the last read that did not find this heartbeat, by the reader's clock; None: the first read found
        it.
        """
        self.least: deque[int] = deque(maxlen=SIGHTS)
        self.most: deque[int] = deque(maxlen=SIGHTS)


class ClockBounds:
    """Other nodes' clocks compared with this machine's."""

    def __init__(self) -> None:
        self._nodes: dict[int, _Node] = {}
        self._began_ms: int | None = None

    def add(self, beats: Iterable[Heartbeat], began_ms: int, ended_ms: int) -> None:
        """Add the result of a read of all heartbeats; began and ended are times of this machine's clock."""
        known, self._nodes = self._nodes, {}
        for beat in beats:
            node = self._nodes[beat.log_id] = known.get(beat.log_id) or _Node(beat)
            if node.beat.count == beat.count:
                continue
            if node.absent_ms is not None:
                node.most.append(beat.time_ms - node.absent_ms)
            node.least.append(beat.time_ms - ended_ms)
            node.beat, node.absent_ms = beat, self._began_ms
        self._began_ms = began_ms

    def ahead_ms(self, others: Iterable[int], about_ms: float | None = None) -> int:
        """Return the smallest proven lead of the cluster's time over this machine's clock; negative: it is behind.

        The cluster's time is the median of all clocks.  ``others`` are the logs of the other live nodes.  ``about_ms``
        is the estimate that assumes heartbeats without delay
        (:meth:`backend.cluster.failure_detector.Clocks.ahead_ms`).
        """
        known = [self._nodes[log_id] for log_id in others if log_id in self._nodes]
        return median([0, *(_least_apart(node) for node in known)], about_ms)


def _least_apart(node: _Node) -> int:
    least, most = max(node.least, default=0), min(node.most, default=0)
    if node.least and least > 0:
        return 0 if node.most and most < 0 else least  # both bounds hold: a clock was set meanwhile
    return most if node.most and most < 0 else 0


Number = TypeVar("Number", int, float)


def median(values: list[Number], near: float | None = None) -> Number:
    """Return the median; of two middle values the one nearer to ``near``, or the lower one."""
    middle = sorted(values)[(len(values) - 1) // 2 : len(values) // 2 + 1]
    return middle[0] if near is None else min(middle, key=lambda value: abs(value - near))

"""Bounds of how far the clocks of a cluster's nodes are apart, as their heartbeats prove it.  Pure.

A heartbeat has the time at which it was written down.  It is seen later, and how much later nobody knows: a Cassandra
that has just started takes seconds to store one and to answer a read.  So one sight says only that the node's clock has
come at least so far.  The other bound comes with the next heartbeat: that one was written down after the one before had
been stored, which was after the start of the last read that did not find it.  What both bounds allow is no proof of
anything; so clocks count as equal as long as they may be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, TypeVar

from metadata_service.models import Heartbeat

SIGHTS: Final = 4
"""Number of a node's latest heartbeats that count; a clock that was set right counts as right again after so many."""


class _Node:
    """A node's latest heartbeat, and the bounds that the latest ones gave."""

    def __init__(self, beat: Heartbeat) -> None:
        self.beat = beat
        self.absent_ms: int | None = None
        """Start of the last read that did not find this heartbeat, by the reader's clock; None: it was there at first.
        """
        self.least: deque[int] = deque(maxlen=SIGHTS)
        self.most: deque[int] = deque(maxlen=SIGHTS)


class ClockBounds:
    """The other nodes' clocks beside this machine's."""

    def __init__(self) -> None:
        self._nodes: dict[int, _Node] = {}
        self._began_ms: int | None = None

    def add(self, beats: Iterable[Heartbeat], began_ms: int, ended_ms: int) -> None:
        """Add what a read of all heartbeats has found that began and ended at these times of this machine's clock."""
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
        """The least that the cluster's time can be ahead of this machine's clock; negative: behind.

        The cluster's time is the median of all clocks; ``others`` are the other live nodes' logs, and ``about_ms`` is
        what the answer would be if heartbeats took no time (:meth:`backend.watch.Clocks.ahead_ms`).
        """
        known = [self._nodes[log_id] for log_id in others if log_id in self._nodes]
        return median([0, *(_least_apart(node) for node in known)], about_ms)


def _least_apart(node: _Node) -> int:
    least, most = max(node.least, default=0), min(node.most, default=0)
    if node.least and least > 0:
        return 0 if node.most and most < 0 else least  # both: a clock was set meanwhile
    return most if node.most and most < 0 else 0


Number = TypeVar("Number", int, float)


def median(values: list[Number], near: float | None = None) -> Number:
    """The median; of two in the middle the one nearer to ``near``, or else the lower one."""
    middle = sorted(values)[(len(values) - 1) // 2 : len(values) // 2 + 1]
    return middle[0] if near is None else min(middle, key=lambda value: abs(value - near))

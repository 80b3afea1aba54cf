"""Checks of the connections' deadlines, spread over time."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class WithDeadline(Protocol):
    """A connection that is closed when its deadline has passed."""

    deadline: float

    def sweep(self, now: float) -> None:
        """Close the connection if its deadline has passed."""


class DeadlineSweep:
    """Checks each of ``connections`` once in ``ticks`` ticks, an equal part at each of them.

    All at once would be a pause of some milliseconds with tens of thousands.
    """

    def __init__(self, connections: Collection[WithDeadline], ticks: int) -> None:
        self._connections = connections
        self._ticks = ticks
        self._left: list[WithDeadline] = []
        """Connections of this round that have not been checked."""
        self._part = 0

    def tick(self, counter: int, now: float) -> None:
        """Check the next part; a multiple of ``ticks`` begins a round."""
        if counter % self._ticks == 0:
            self._left = list(self._connections)
            self._part = -(-len(self._left) // self._ticks)
        part = self._left[-self._part :]
        del self._left[-self._part :]
        for connection in part:
            # compared here too, because a call costs more than all else of a check
            if now >= connection.deadline and connection in self._connections:
                connection.sweep(now)

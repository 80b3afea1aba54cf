"""Failure detection by heartbeats.  Pure: observations and times are passed in.

A heartbeat only decides when to try to fence a log: a wrong guess costs a takeover, never a message.  Only time in
which the watcher itself could read and write the metadata counts.  So after a metadata outage the nodes do not all
declare each other dead, and a watcher that was suspended starts again.
"""

from __future__ import annotations

from collections.abc import Iterable

from metadata_service.models import Heartbeat

DEAD_SECONDS = 4.25
"""Seconds.  More than four, because a heartbeat that takes three seconds to store arrives four after the previous
one."""
GAP_SECONDS = 1.5
"""Interval between two checks above which only the time covered by the watcher's own heartbeats counts: the watcher may
have been suspended.
"""
OWN_BEATS_MIN = 3
"""Number of heartbeats that the watcher itself has to store while another node's does not advance: if its own are slow,
the others' may be slow, too.
"""
BEAT_SECONDS = 1.0
"""Pause between the end of a heartbeat and the start of the next."""


class FailureDetector:
    """Failure detector: time since the last new heartbeat of each log."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._still: dict[int, float] = {}
        self._since: dict[int, int] = {}
        """By log: number of the watcher's own heartbeats when the log's last advanced."""
        self._own = 0
        self._alive: set[int] = set()
        self._checked_at: float | None = None
        self._first = True

    def record(self, beats: Iterable[Heartbeat], logs: Iterable[int], now: float, own: int) -> None:
        """Record the heartbeats of these logs.  ``now`` in seconds of a monotonic clock; ``own``: number of heartbeats
        that the watcher has stored.

        Call it only when the watcher's own last heartbeat was stored, and this read succeeded, without an error.
        """
        counts = {beat.log_id: beat.count for beat in beats}
        passed = 0.0 if self._checked_at is None else now - self._checked_at
        if passed > GAP_SECONDS:
            passed = min(passed, (own - self._own) * BEAT_SECONDS)
        self._own = own
        still = {}
        since = {}
        for log_id in logs:
            count = counts.get(log_id, 0)
            if self._counts.get(log_id, 0) != count:
                still[log_id], since[log_id] = 0.0, own
                if not self._first:
                    self._alive.add(log_id)
            else:
                still[log_id] = self._still.get(log_id, 0.0) + passed
                since[log_id] = self._since.get(log_id, own)
                if still[log_id] >= DEAD_SECONDS and own - since[log_id] >= OWN_BEATS_MIN:
                    self._alive.discard(log_id)
        self._still, self._since = still, since
        self._counts = {log_id: counts.get(log_id, 0) for log_id in still}
        self._checked_at = now
        self._first = False

    def blind(self) -> None:
        """Exclude the time since the last check, in which the watcher could not read, or its heartbeat was not
        stored."""
        self._checked_at = None

    def alive(self, log_id: int) -> bool:
        """Return whether the log's heartbeat was seen to advance, and the log has not been dead since."""
        return log_id in self._alive

    def dead(self, log_id: int) -> bool:
        """Return whether the log's writer counts as dead.  A log that is neither alive nor dead is not known yet."""
        return (
            self._still.get(log_id, 0.0) >= DEAD_SECONDS
            and self._own - self._since.get(log_id, self._own) >= OWN_BEATS_MIN
        )

    def still(self, log_id: int) -> float:
        """Return the observed seconds for which the log's heartbeat has not advanced."""
        return self._still.get(log_id, 0.0)

"""Whose heartbeat stands still.  Pure: it is told what was seen, and when.

A heartbeat only decides when to try to fence a log: a wrong guess costs a takeover, never a message.  Only time counts
in which the watcher itself could read and write the metadata; so after an outage of these not everyone takes everyone
for dead, and a watcher that was suspended begins anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from metadata_service.models import Heartbeat

DEAD_SECONDS = 4.25
"""A heartbeat that takes three seconds to be stored comes four after the one before: that is not enough."""
GAP_SECONDS = 1.5
"""A longer time between two checks counts only as far as the watcher's own heartbeats account for it: the watcher may
have been suspended."""
OWN_BEATS_MIN = 3
"""Heartbeats that the watcher itself has to store while another's stands still: where its own take long, those of the
others may, too."""
BEAT_SECONDS = 1.0
"""Between the end of a heartbeat and the start of the next."""


class Watch:
    """How long each log has been without a new heartbeat."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._still: dict[int, float] = {}
        self._since: dict[int, int] = {}
        """By log: the number of the watcher's own heartbeats when the log's was seen to move last."""
        self._own = 0
        self._alive: set[int] = set()
        self._looked_at: float | None = None
        self._first = True

    def look(self, beats: Iterable[Heartbeat], logs: Iterable[int], now: float, own: int) -> None:
        """Record the heartbeats of these logs.  ``now`` in seconds of a monotonic clock; ``own``: how many
        heartbeats of its own the watcher has stored.

        Only to be called when the watcher's own last heartbeat was stored, and this was read, without an error.
        """
        counts = {beat.log_id: beat.count for beat in beats}
        passed = 0.0 if self._looked_at is None else now - self._looked_at
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
        self._looked_at = now
        self._first = False

    def blind(self) -> None:
        """The watcher could not see, or was not seen: this time does not count."""
        self._looked_at = None

    def alive(self, log_id: int) -> bool:
        """Whether its heartbeat was seen to move, and it is not dead since."""
        return log_id in self._alive

    def dead(self, log_id: int) -> bool:
        """Whether its writer is to be taken for dead.  What is neither alive nor dead, is not known yet."""
        return (
            self._still.get(log_id, 0.0) >= DEAD_SECONDS
            and self._own - self._since.get(log_id, self._own) >= OWN_BEATS_MIN
        )

    def still(self, log_id: int) -> float:
        """For how many seconds its heartbeat has not moved, as far as that could be seen."""
        return self._still.get(log_id, 0.0)


CLOCK_OFF_MS = 1000
"""A clock that is further off than this is said to be, and not gone by."""
SEEN_LATE_MS = 1000
"""So old may be what heartbeats say of the others' clocks: they seem to be behind."""
SIGHTS = 4
"""Of the latest heartbeats of a node that one counts which was seen soonest."""


class Clocks:
    """How far this machine's clock is from those of the others.

    The cluster's time is the lower median of the live nodes' clocks, as their heartbeats say.  What is seen of them is
    as old as a heartbeat is on its way, a second at most.
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, deque[tuple[int, int | None]]]] = {}
        """By log: the latest count, and how far ahead the node's clock and its shards' time were in the last beats."""

    def look(self, beats: Iterable[Heartbeat], clock_ms: int) -> None:
        """What the heartbeats say now, and this machine's clock."""
        seen: dict[int, tuple[int, deque[tuple[int, int | None]]]] = {}
        for beat in beats:
            count, ahead = self._seen.get(beat.log_id, (None, deque[tuple[int, int | None]](maxlen=SIGHTS)))
            if count is not None and count != beat.count:
                of_shards = beat.shard_time_ms - clock_ms if beat.shard_time_ms else None
                ahead.append((beat.time_ms - clock_ms, of_shards))
            seen[beat.log_id] = (beat.count, ahead)
        self._seen = seen

    def ahead_ms(self, others: Iterable[int]) -> int:
        """How far the cluster's time is ahead of this machine's clock, ``others`` being the other live nodes' logs."""
        return _lower_median([0, *(max(clock for clock, _ in ahead) for ahead in self._known(others))])

    def start_ahead_ms(self, others: Iterable[int]) -> int:
        """How far ahead of this machine's clock the time is at which a node without shards is to be given some.

        That of the others' shards, the lower median of them.  Where none has shards, the cluster's time.
        """
        others = list(others)
        known = [
            max(times)
            for ahead in self._known(others)
            if (times := [time for _, time in ahead if time is not None]) and ahead[-1][1] is not None
        ]
        return _lower_median(known) if known else self.ahead_ms(others)

    def _known(self, others: Iterable[int]) -> list[deque[tuple[int, int | None]]]:
        return [self._seen[log_id][1] for log_id in others if log_id in self._seen and self._seen[log_id][1]]


def _lower_median(values: list[int]) -> int:
    return sorted(values)[(len(values) - 1) // 2]


def is_off(ahead_ms: float) -> bool:
    """Whether clocks that heartbeats say to be so far apart really are apart."""
    return not -CLOCK_OFF_MS - SEEN_LATE_MS <= ahead_ms <= CLOCK_OFF_MS

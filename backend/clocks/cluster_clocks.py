"""The times of the cluster's nodes and shards, according to heartbeats.  Pure: observations and times are passed in."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container, Iterable

from backend.clocks.clock_bounds import median
from backend.clocks.node_clock import SLEW_MAX
from backend.clocks.shard_clock import Former
from metadata_service.models import Heartbeat

CLOCK_OFF_MS = 1000
"""Difference of clocks above which it is reported, and the clock is not followed."""
SEEN_LATE_MS = 1000
"""Maximum age of observed clocks: they seem to be behind by up to this."""
ELAPSED_MS_MAX = 30_000
"""If a node's time was recorded up to this much earlier, the time base counts as unchanged, and the difference as
elapsed time.
"""
OBSERVATIONS = 4
"""Number of a node's last heartbeats from which the one with the lowest observed delay is used (as NTP does)."""


STEPS = 4
"""Number of the latest steps of a node's time that are remembered."""


class _Observations:
    """Heartbeats of one log, as observed."""

    def __init__(self) -> None:
        self.beat: Heartbeat | None = None
        """The latest heartbeat."""
        self.seen_ms: float | None = None
        """Moment at which it was first seen; None: the first check found it."""
        self.clocks: deque[float] = deque(maxlen=OBSERVATIONS)
        """For each heartbeat, the lead of the node's clock over the watcher's monotonic one when it was seen, in
        milliseconds.
        """
        self.times: deque[float] = deque(maxlen=OBSERVATIONS)
        """The same for the node's shard time base."""
        self.steps: deque[tuple[float, float]] = deque(maxlen=STEPS)
        """Steps of the node's time: the moment at which each was seen, and the lead before it."""

    def add(self, beat: Heartbeat, now_ms: float) -> None:
        before, self.beat = self.beat, beat
        if before is None or before.count == beat.count:
            return
        self.seen_ms = now_ms
        passed_ms = beat.time_ms - before.time_ms
        if abs(beat.shard_time_ms - before.shard_time_ms - passed_ms) > CLOCK_OFF_MS:
            # The time was stepped, or the clock was set.
            lead_before_ms = max(self.times, default=before.shard_time_ms + passed_ms - now_ms)
            self.steps.appendleft((now_ms, lead_before_ms))
            self.times.clear()
        self.clocks.append(beat.time_ms - now_ms)
        if beat.shard_time_ms:
            self.times.append(beat.shard_time_ms - now_ms)

    def lead_ms(self, shard: int) -> int | None:
        """Return the shard's lead, if the latest heartbeat names it."""
        return dict(self.beat.leads).get(shard) if self.beat is not None else None

    def there_ms(self, now_ms: float) -> float | None:
        """Return the node's current time base; None: unknown, because it was not seen to beat."""
        return now_ms + max(self.times) if self.times else None

    def before_steps_ms(self, then_ms: float, now_ms: float) -> list[float]:
        """Return the current times of the node without its last steps, the latest first.

        Only steps are included before which a record with the node's time ``then_ms`` may have been written.
        """
        times = ((seen_ms, now_ms + lead_before_ms) for seen_ms, lead_before_ms in self.steps)
        return [time_ms for seen_ms, time_ms in times if time_ms - then_ms >= now_ms - seen_ms - SEEN_LATE_MS]


def _slewed(lead_ms: float, passed_ms: float) -> float:
    """Return the remaining lead after ``passed_ms``."""
    return math.copysign(max(0.0, abs(lead_ms) - SLEW_MAX * max(0.0, passed_ms)), lead_ms)


class Clocks:
    """Times of the cluster's nodes, and of their shards, according to their heartbeats.

    The cluster's time is the median of the live nodes' clocks.  Of two middle values, as with two nodes, it is the one
    nearer to the time base of all these nodes, if they agree on one; otherwise the lower one, so that no timeout ends
    early.  Observed clocks are as old as a heartbeat's delay, a second at most.  All values are measured against a
    monotonic clock of the watcher.
    """

    def __init__(self) -> None:
        self._seen: dict[int, _Observations] = {}
        self._own_ms = 0.0

    def record(self, beats: Iterable[Heartbeat], clock_ms: float, now_ms: float, named: Container[int] = ()) -> None:
        """Record the current heartbeats, with this machine's clock and a monotonic one.

        ``named``: logs whose time may still be needed when they have no heartbeats any more.
        """
        self._own_ms = clock_ms - now_ms
        before = self._seen
        self._seen = {log_id: sights for log_id, sights in before.items() if log_id in named}
        for beat in beats:
            sights = self._seen[beat.log_id] = before.get(beat.log_id) or _Observations()
            sights.add(beat, now_ms)

    def ahead_ms(self, others: Iterable[int], base_lead_ms: float | None = None) -> float | None:
        """Return the milliseconds from this machine's clock to the cluster's time; ``others``: the other live nodes'
        logs.

        ``base_lead_ms``: lead of this node's time base over its clock; None: it has none yet.  Returns None if no other
        node's clock is known.
        """
        known = [self._seen[log_id] for log_id in others if log_id in self._seen and self._seen[log_id].clocks]
        if not known:
            return None
        near_ms = None if base_lead_ms is None else self._own_ms + base_lead_ms
        if near_ms is not None and any(not node.times or is_off(max(node.times) - near_ms) for node in known):
            near_ms = None  # the nodes do not agree on a time base
        return median([self._own_ms, *(max(node.clocks) for node in known)], near_ms) - self._own_ms

    def shard_time_ms(self, shard: int, former: Former, time_ms: float, now_ms: float) -> float:
        """Return the time at which a shard continues after its former owner; ``time_ms`` is this node's time.

        With little information, the result is too early rather than too late, so that no timeout ends early.
        """
        owner, writer = self._seen.get(former.owner_log), self._seen.get(former.log_id)
        reported_ms = owner.lead_ms(shard) if owner is not None else None
        if owner is not None and owner.beat is not None and reported_ms is not None:
            writer, lead_ms, then_ms = owner, reported_ms, owner.beat.shard_time_ms
        else:
            lead_ms, then_ms = former.time_ms - former.clock_ms, former.clock_ms
            # A row is written a moment after its records were made.  If the difference seems larger, either the disk
            # was slow or the shard was behind, unless a later heartbeat of the owner names no lead.
            beat = owner.beat if owner is not None and owner is writer else None
            written_late = beat is not None and beat.shard_time_ms > then_ms and -ELAPSED_MS_MAX <= lead_ms < 0
            if abs(lead_ms) <= CLOCK_OFF_MS or written_late:
                lead_ms = 0
        # Without heartbeats, no node has followed a clock other than its own.
        if not then_ms or not self._seen:
            return time_ms
        there_ms = writer.there_ms(now_ms) if writer is not None else None
        base_ms = time_ms if there_ms is None or not is_off(there_ms - time_ms) else there_ms
        # Its writer may have stepped its clock since it was seen, or since that record.
        before_ms = writer.before_steps_ms(then_ms, now_ms) if writer is not None else []
        for now_then_ms in (base_ms, time_ms, *before_ms):
            if -SEEN_LATE_MS <= now_then_ms - then_ms <= ELAPSED_MS_MAX:
                return now_then_ms + _slewed(lead_ms, now_then_ms - then_ms)
        if writer is not None and writer is owner and there_ms is not None:
            # Long ago: either nothing was written for a long time (then heartbeats would name a lead), or the node is
            # dead.
            return base_ms + (_slewed(reported_ms, base_ms - then_ms) if reported_ms is not None else 0)
        # Neither the elapsed time is known, nor whether the two nodes have the same time base.
        return max(time_ms + min(0.0, _slewed(lead_ms, time_ms - then_ms)), then_ms + lead_ms)


def is_off(ahead_ms: float) -> bool:
    """Return whether clocks really differ, given their difference according to heartbeats."""
    return not -CLOCK_OFF_MS - SEEN_LATE_MS <= ahead_ms <= CLOCK_OFF_MS


def correction_ms(ahead_ms: float) -> float:
    """Offset that a clock has to follow: 0 unless clocks really differ."""
    return ahead_ms if is_off(ahead_ms) else 0.0

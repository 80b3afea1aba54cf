"""Whose heartbeat stands still.  Pure: it is told what was seen, and when.

A heartbeat only decides when to try to fence a log: a wrong guess costs a takeover, never a message.  Only time counts
in which the watcher itself could read and write the metadata; so after an outage of these not everyone takes everyone
for dead, and a watcher that was suspended begins anew.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container, Iterable
from typing import TYPE_CHECKING

from backend.clock import SLEW_MOST
from backend.clock_bounds import median
from metadata_service.models import Heartbeat

if TYPE_CHECKING:
    from backend.replay import Former

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
SOON_MS = 30_000
"""A node's time that was said to be this much earlier, at the most, is taken for the same, and that to be how long ago
it was said."""
SIGHTS = 4
"""Of the latest heartbeats of a node that one counts which was seen soonest."""


STEPS = 4
"""Of the latest steps of a node's time so many are remembered."""


class _Sights:
    """Heartbeats of one log, as they were seen."""

    def __init__(self) -> None:
        self.beat: Heartbeat | None = None
        """The latest."""
        self.seen_ms: float | None = None
        """The moment at which it was first seen; None: it was there at the first look."""
        self.clocks: deque[float] = deque(maxlen=SIGHTS)
        """Milliseconds by which the node's clock was ahead of the watcher's monotonic one when each was seen."""
        self.times: deque[float] = deque(maxlen=SIGHTS)
        """The same of the time that the node goes by."""
        self.steps: deque[tuple[float, float]] = deque(maxlen=STEPS)
        """When the node was seen to have stepped its time, and the same of the time before."""

    def add(self, beat: Heartbeat, now_ms: float) -> None:
        before, self.beat = self.beat, beat
        if before is None or before.count == beat.count:
            return
        self.seen_ms = now_ms
        passed_ms = beat.time_ms - before.time_ms
        if abs(beat.shard_time_ms - before.shard_time_ms - passed_ms) > CLOCK_OFF_MS:
            # The time was stepped, or the clock was set.
            went_by_ms = max(self.times, default=before.shard_time_ms + passed_ms - now_ms)
            self.steps.appendleft((now_ms, went_by_ms))
            self.times.clear()
        self.clocks.append(beat.time_ms - now_ms)
        if beat.shard_time_ms:
            self.times.append(beat.shard_time_ms - now_ms)

    def lead_ms(self, shard: int) -> int | None:
        """The shard's lead, if the latest heartbeat names it."""
        return dict(self.beat.leads).get(shard) if self.beat is not None else None

    def there_ms(self, now_ms: float) -> float | None:
        """The time that the node goes by; None: not known, for it was not seen to beat."""
        return now_ms + max(self.times) if self.times else None

    def before_steps_ms(self, then_ms: float, now_ms: float) -> list[float]:
        """The times that it would be for the node without its last steps, as far as something that it wrote at
        ``then_ms`` may be of before them; the latest first."""
        times = ((seen_ms, now_ms + went_by_ms) for seen_ms, went_by_ms in self.steps)
        return [time_ms for seen_ms, time_ms in times if time_ms - then_ms >= now_ms - seen_ms - SEEN_LATE_MS]


def _slewed(lead_ms: float, passed_ms: float) -> float:
    """The rest of a lead after so long."""
    return math.copysign(max(0.0, abs(lead_ms) - SLEW_MOST * max(0.0, passed_ms)), lead_ms)


class Clocks:
    """The time of the cluster's nodes, and of their shards, by their heartbeats.

    The cluster's time is the median of the live nodes' clocks.  Where two are in the middle, as with two nodes, it is
    the one nearer to the time that all these nodes have gone by so far, if that is the same time; or else the lower
    one, by which nothing ends early.  What is seen of clocks is as old as a heartbeat is on its way, a second at most.
    Everything is measured by a monotonic clock of the watcher.
    """

    def __init__(self) -> None:
        self._seen: dict[int, _Sights] = {}
        self._own_ms = 0.0

    def record(self, beats: Iterable[Heartbeat], clock_ms: float, now_ms: float, named: Container[int] = ()) -> None:
        """Record the heartbeats as they are now, with this machine's clock and a monotonic one.

        ``named``: logs of which the time may still be asked for when they have no heartbeats any more.
        """
        self._own_ms = clock_ms - now_ms
        before = self._seen
        self._seen = {log_id: sights for log_id, sights in before.items() if log_id in named}
        for beat in beats:
            sights = self._seen[beat.log_id] = before.get(beat.log_id) or _Sights()
            sights.add(beat, now_ms)

    def ahead_ms(self, others: Iterable[int], goes_by_ms: float | None = None) -> float | None:
        """Milliseconds from this machine's clock to the cluster's time, ``others`` being the other live nodes' logs.

        ``goes_by_ms``: the time that this node goes by is so far ahead of it; None: it goes by none yet.  The result is
        None if of no other node is known what its clock says.
        """
        known = [self._seen[log_id] for log_id in others if log_id in self._seen and self._seen[log_id].clocks]
        if not known:
            return None
        near_ms = None if goes_by_ms is None else self._own_ms + goes_by_ms
        if near_ms is not None and any(not node.times or is_off(max(node.times) - near_ms) for node in known):
            near_ms = None  # the nodes do not agree on what time it was
        return median([self._own_ms, *(max(node.clocks) for node in known)], near_ms) - self._own_ms

    def shard_time_ms(self, shard: int, former: Former, time_ms: float, now_ms: float) -> float:
        """The time of a shard that goes on as its former owner has served it; ``time_ms`` is that of this node.

        Where little is known this is rather too early than too late, so that nothing ends early.
        """
        owner, writer = self._seen.get(former.owner_log), self._seen.get(former.log_id)
        said_ms = owner.lead_ms(shard) if owner is not None else None
        if owner is not None and owner.beat is not None and said_ms is not None:
            writer, lead_ms, then_ms = owner, said_ms, owner.beat.shard_time_ms
        else:
            lead_ms, then_ms = former.time_ms - former.clock_ms, former.clock_ms
            if -SOON_MS <= lead_ms <= CLOCK_OFF_MS:  # a row may be written a while after its records were made
                lead_ms = 0
        if not then_ms or not self._seen:  # without a heartbeat no node ever went by another clock than its own
            return time_ms
        there_ms = writer.there_ms(now_ms) if writer is not None else None
        base_ms = time_ms if there_ms is None or not is_off(there_ms - time_ms) else there_ms
        # Its writer may have stepped its clock since it was seen, or since it wrote that.
        before_ms = writer.before_steps_ms(then_ms, now_ms) if writer is not None else []
        for now_then_ms in (base_ms, time_ms, *before_ms):
            if -SEEN_LATE_MS <= now_then_ms - then_ms <= SOON_MS:
                return now_then_ms + _slewed(lead_ms, now_then_ms - then_ms)
        if writer is not None and writer is owner and there_ms is not None:
            # Long ago: either nothing was written for long, and then heartbeats would name a lead, or the node is dead.
            return base_ms + (_slewed(said_ms, base_ms - then_ms) if said_ms is not None else 0)
        # How long ago that was is not known, nor whether the two nodes go by the same time.
        return max(time_ms + min(0.0, _slewed(lead_ms, time_ms - then_ms)), then_ms + lead_ms)


def is_off(ahead_ms: float) -> bool:
    """Whether clocks that heartbeats say to be so far apart really are apart."""
    return not -CLOCK_OFF_MS - SEEN_LATE_MS <= ahead_ms <= CLOCK_OFF_MS

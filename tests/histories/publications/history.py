"""History of a topic's publications, and of what consumers received from the subscribed queues.

Times are those of one monotonic clock, in seconds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from tests.histories.history import Outcome

LAG_SECONDS = 2.0
"""Time after an answered Subscribe or Unsubscribe in which other frontends may still use the former subscriptions."""


@dataclass
class SubscribedTime:
    """A time for which a queue was subscribed."""

    asked: float
    answered: float = math.inf
    end_asked: float = math.inf
    end_answered: float = math.inf

    def certain(self, called: float, answered: float) -> bool:
        """Return whether the queue was subscribed during all of a call."""
        return self.answered + LAG_SECONDS <= called and answered <= self.end_asked

    def possible(self, called: float, answered: float) -> bool:
        """Return whether the queue may have been subscribed at some moment of a call."""
        return self.asked <= answered and called <= self.end_answered + LAG_SECONDS


@dataclass
class FanoutQueue:
    """A queue that is subscribed to a topic, all the time or sometimes."""

    name: str
    topic: str
    fifo: bool = False
    kinds: frozenset[str] | None = None
    """Kinds of publications that match the filter policy; None: all."""
    times: list[SubscribedTime] = field(default_factory=list)

    def matches(self, one: FanoutPublication) -> bool:
        return one.topic == self.topic and (self.kinds is None or one.kind in self.kinds)

    def must_have(self, one: FanoutPublication) -> bool:
        """Return whether an answered publication has to arrive here."""
        return self.matches(one) and any(time.certain(one.called, one.answered) for time in self.times)

    def may_have(self, one: FanoutPublication) -> bool:
        return self.matches(one) and any(time.possible(one.called, one.answered) for time in self.times)


@dataclass
class FanoutPublication:
    """One publication, with the times of all its calls together."""

    name: str
    topic: str
    kind: str
    called: float
    group: str | None = None
    number: int = 0
    """Position in its group: later ones have higher numbers."""
    answered: float = math.inf
    outcome: Outcome = Outcome.UNKNOWN


@dataclass(frozen=True)
class FanoutReceive:
    """One receive of a delivered message."""

    queue: str
    name: str
    message_id: str
    at: float


class FanoutHistory:
    """All calls of the clients of some topics."""

    def __init__(self, queues: list[FanoutQueue]) -> None:
        self.queues = {queue.name: queue for queue in queues}
        self.publications: dict[str, FanoutPublication] = {}
        self.receives: list[FanoutReceive] = []
        self.arrived: defaultdict[str, dict[str, float]] = defaultdict(dict)
        """By queue: the publications that were received, and when for the first time."""
        self.owed: dict[str, set[str]] = {}
        """By answered publication: the queues that have not received it and have to."""

    def publishing(self, one: FanoutPublication) -> None:
        """Record that a publication is about to be made for the first time."""
        self.publications[one.name] = one

    def answered(self, name: str, at: float) -> None:
        """Record that a publication was acknowledged."""
        one = self.publications[name]
        one.answered, one.outcome = at, Outcome.DONE
        owed = {queue.name for queue in self.queues.values() if queue.must_have(one)}
        if owed := {queue for queue in owed if name not in self.arrived[queue]}:
            self.owed[name] = owed

    def refused(self, name: str) -> None:
        """Record that a publication had certainly no effect."""
        self.publications[name].outcome = Outcome.REFUSED

    def received(self, one: FanoutReceive) -> None:
        self.receives.append(one)
        self.arrived[one.queue].setdefault(one.name, one.at)
        owed = self.owed.get(one.name)
        if owed is not None:
            owed.discard(one.queue)
            if not owed:
                del self.owed[one.name]

    # --- figures ------------------------------------------------------------------------------------------

    def longest_stall_seconds(self, since: float, until: float) -> float:
        """Return the longest time in which no publication to some topic was acknowledged."""
        longest = 0.0
        for topic in {queue.topic for queue in self.queues.values()}:
            answers = sorted(
                one.answered
                for one in self.publications.values()
                if one.topic == topic and since < one.answered < until
            )
            longest = max(longest, *(after - before for before, after in pairwise([since, *answers, until])))
        return longest

    def longest_delivery_seconds(self, since: float) -> float:
        """Return the longest time from an acknowledgement since then until all queues had received the publication."""
        return max(
            (
                self.arrived[queue.name][one.name] - one.answered
                for one in self.publications.values()
                if one.outcome is Outcome.DONE and one.answered > since
                for queue in self.queues.values()
                if one.name in self.arrived[queue.name] and queue.must_have(one)
            ),
            default=0.0,
        )

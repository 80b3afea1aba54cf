"""Records that producers sent to a topic, records that it has, and reads and commits of one consumer group.

Each record has a name of its own, and each producer sends to a partition one record after the other, repeating each
until it is acknowledged.  Times are seconds of one monotonic clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from tests.histories.history import Outcome


@dataclass(slots=True)
class SentRecord:
    name: str
    producer: str
    partition: int
    sent: float
    acked: float = math.inf
    offset: int = -1
    """Offset of the acknowledgement; -1: there is none, or it was not named, as when a later one was acknowledged."""

    @property
    def is_acked(self) -> bool:
        return not math.isinf(self.acked)

    def __str__(self) -> str:
        place = "" if self.offset < 0 else f" as {self.offset}"
        acked = f"acknowledged at {self.acked:.3f}{place}" if self.is_acked else "not acknowledged"
        return f"{self.name} of partition {self.partition}, sent at {self.sent:.3f}, {acked}"


class Assignment(NamedTuple):
    """A time in which a member of the group has a partition, from a rebalance until the next one."""

    member: str
    number: int
    """Number of the member's rebalance."""
    partition: int

    def __str__(self) -> str:
        return f"{self.member}'s assignment {self.number} of partition {self.partition}"


class AssignmentStart(NamedTuple):
    """The answer to a member that asked for the committed offset of a partition that it was assigned."""

    assignment: Assignment
    asked: float
    offset: int | None


class RecordRead(NamedTuple):
    assignment: Assignment
    offset: int
    name: str
    at: float


class ObservedCommit(NamedTuple):
    assignment: Assignment
    offset: int
    """Offset of the next record to read."""
    called: float
    answered: float
    """Infinity if the outcome is unknown."""
    outcome: Outcome

    def __str__(self) -> str:
        return f"commit of {self.offset} at {self.called:.3f} by {self.assignment}"


@dataclass
class TopicHistory:
    partitions: int
    sent: dict[str, SentRecord] = field(default_factory=dict)
    """By name, in the order in which each producer sent to each partition."""
    stored: dict[int, dict[int, str]] = field(default_factory=dict)
    """By partition: names by offset, as read at the end by a reader outside the group."""
    changed: list[str] = field(default_factory=list)
    """Records that such readers found differently at different times."""
    ends: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By partition: first and next offset, according to the service at the end."""
    committed: dict[int, int] = field(default_factory=dict)
    """By partition: the group's committed offset at the end."""
    starts: list[AssignmentStart] = field(default_factory=list)
    reads: list[RecordRead] = field(default_factory=list)
    commits: list[ObservedCommit] = field(default_factory=list)

    def store(self, partition: int, offset: int, name: str) -> None:
        """Note a record that a reader outside the group found."""
        known = self.stored.setdefault(partition, {}).setdefault(offset, name)
        if known != name:
            self.changed.append(f"{name} is at {partition}:{offset}, where {known} was read earlier")

    # --- waiting times ------------------------------------------------------------------------------------

    def longest_stall_seconds(self, since: float, until: float) -> float:
        """Return the longest time in which records waited and none of their partition was acknowledged."""
        waits: dict[int, list[tuple[float, float]]] = {}
        for one in self.sent.values():
            waits.setdefault(one.partition, []).append((one.sent, one.acked))
        return max((longest_wait(each, since, until) for each in waits.values()), default=0.0)

    def longest_gap_seconds(self, since: float, until: float) -> float:
        """Return the longest time in which a partition had unread records, and the group read none of it."""
        waits: dict[int, dict[int, tuple[float, float]]] = {}
        for read in self.reads:
            sent = self.sent.get(read.name)
            begin = read.at if sent is None else min(sent.acked, read.at)
            waits.setdefault(read.assignment.partition, {}).setdefault(read.offset, (begin, read.at))
        return max((longest_wait(each.values(), since, until) for each in waits.values()), default=0.0)

    def rebalances(self, since: float, until: float) -> int:
        """Return the number of assignments that members got."""
        return len({one.assignment[:2] for one in self.starts if since <= one.asked < until})


def longest_wait(waits: Iterable[tuple[float, float]], since: float, until: float) -> float:
    """Return the longest time in which something was waiting and nothing was done, from (begin, end) of each wait.

    It overlaps the time from ``since`` to ``until``; what is before does not count.
    """
    ordered = sorted(waits, key=lambda wait: wait[1])
    begins = list(accumulate((begin for begin, _ in reversed(ordered)), min))
    longest, last = 0.0, since
    for (_, end), earliest in zip(ordered, reversed(begins), strict=True):
        start = max(earliest, last)
        if start < until:
            longest = max(longest, (until if math.isinf(end) else end) - start)
        last = max(last, end)
    return longest

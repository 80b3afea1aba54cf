"""Clients' calls, their times, and their answers.

A history is a list of operations on single messages: a batch is one operation per entry, a receive one per
message received.  Times are seconds of one monotonic clock, shared by all clients of a history.

An operation takes effect at one moment between ``called`` and ``answered``.  One of unknown outcome (no answer,
or a 5xx) takes effect at one moment after ``called``, however late, or never.  A refused one (a 4xx) never
does.
"""

import enum
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


class Kind(enum.Enum):
    """Kind of an operation."""

    SEND = "send"
    RECEIVE = "receive"
    DELETE = "delete"
    CHANGE = "change visibility"


class Outcome(enum.Enum):
    """Known outcome of an operation."""

    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Operation:
    """The part of a call that concerns one message."""

    kind: Kind
    queue: str
    called: float
    answered: float = math.inf
    outcome: Outcome = Outcome.DONE
    key: str = ""
    """Name of the message given by its sender; empty for a receive of unknown outcome, which may have claimed any."""
    message_id: str = ""
    handle: str = ""
    """Receipt handle returned by a receive, or used by a delete or a change."""
    seconds: float = 0.0
    """Time for which the message is hidden: a send's delay, a receive's or a change's visibility timeout."""
    group: str = ""
    call: int = 0
    """Number of the call, the same for all its operations."""

    def __post_init__(self) -> None:
        assert self.called <= self.answered
        assert (self.answered == math.inf) == (self.outcome is Outcome.UNKNOWN)

    def __str__(self) -> str:
        until = "?" if self.outcome is Outcome.UNKNOWN else f"{self.answered:.3f}"
        marks = [self.group and f"group {self.group}", self.handle and f"handle …{self.handle[-8:]}"]
        more = "".join(f", {mark}" for mark in marks if mark)
        return (
            f"{self.called:.3f}–{until} {self.kind.value} {self.key or '?'} on {self.queue}: {self.outcome.value}{more}"
        )


@dataclass(frozen=True, slots=True)
class Rules:
    """Properties of a history's queues beyond the common ones."""

    moves: frozenset[tuple[str, str]] = frozenset()
    """Permitted moves, as (from, to), of messages whose claim has ended (dead letters) or not claimed (redrive)."""
    receives_max: tuple[tuple[str, int], ...] = ()
    """(queue, maxReceiveCount) of queues with a dead-letter queue."""
    unseen: tuple[tuple[float, float], ...] = ()
    """Periods in which an answered receive may also have claimed undelivered messages: on a queue with several
    partitions it is answered with the messages of one, when another one's answer is lost."""
    early_share: float = 0.0
    """Share of its length by which a visibility timeout may end early: shards follow clocks that differ slightly."""
    early_seconds: float = 0.05
    """Tolerance in seconds: the service counts in whole milliseconds, by its own clock."""

    def early(self, seconds: float) -> float:
        """Maximum time by which a message may be seen again before ``seconds`` after its claim."""
        return self.early_seconds + self.early_share * seconds

    def timeout(self, delivery: Operation) -> float:
        """Earliest end of a receive's visibility timeout."""
        return delivery.called + delivery.seconds - self.early(delivery.seconds)


class History:
    """Operations, with several indexes."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self.operations = sorted(operations, key=lambda operation: operation.called)
        of_key: defaultdict[str, list[Operation]] = defaultdict(list)
        lost_receives: defaultdict[str, list[Operation]] = defaultdict(list)
        for operation in self.operations:
            if operation.outcome is Outcome.REFUSED:
                continue
            if operation.key:
                of_key[operation.key].append(operation)
            elif operation.kind is Kind.RECEIVE:
                lost_receives[operation.queue].append(operation)
        self.of_key = dict(of_key)
        self.lost_receives = dict(lost_receives)
        """Receives of unknown outcome by queue.  Each may have claimed any message there."""

    def done(self, kind: Kind) -> list[Operation]:
        """Answered operations of a kind, in the order of their answers."""
        of_kind = [one for one in self.operations if one.kind is kind and one.outcome is Outcome.DONE]
        return sorted(of_kind, key=lambda operation: operation.answered)

    def hidden_until(self, delivery: Operation, rules: Rules) -> float:
        """Earliest time at which a received message became visible: by its timeout, or by a release with any handle."""
        given_back = [
            one.called + one.seconds
            for one in self.of_key[delivery.key]
            if one.kind is Kind.CHANGE and one.queue == delivery.queue and one.answered >= delivery.called
        ]
        return min([rules.timeout(delivery), *given_back])

"""What clients did, when, and what they were told.

A history is a list of operations on single messages: a batch is as many operations as it has entries, a receive as
many as it brought messages.  Times are seconds of one monotonic clock, which all clients of a history share.

An operation takes effect at one moment between ``called`` and ``answered``.  One of unknown outcome (no answer, or a
5xx) takes effect at one moment after ``called``, however late, or never.  A refused one (a 4xx) never does.
"""

from __future__ import annotations

import enum
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


class Kind(enum.Enum):
    """What was asked for."""

    SEND = "send"
    RECEIVE = "receive"
    DELETE = "delete"
    CHANGE = "change visibility"


class Outcome(enum.Enum):
    """What is known of it."""

    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Operation:
    """One message's part in one call."""

    kind: Kind
    queue: str
    called: float
    answered: float = math.inf
    outcome: Outcome = Outcome.DONE
    key: str = ""
    """The message, as its sender names it; empty for a receive of unknown outcome, which may have claimed any."""
    message_id: str = ""
    handle: str = ""
    """The receipt handle that a receive brought, or that a delete or a change was made with."""
    seconds: float = 0.0
    """For which the message is hidden from here on: a send's delay, a receive's or a change's visibility timeout."""
    group: str = ""
    call: int = 0
    """The same for all operations of one call."""

    def __post_init__(self) -> None:
        assert self.called <= self.answered
        assert (self.answered == math.inf) == (self.outcome is Outcome.UNKNOWN)

    def __str__(self) -> str:
        told = "?" if self.outcome is Outcome.UNKNOWN else f"{self.answered:.3f}"
        marks = [self.group and f"group {self.group}", self.handle and f"handle …{self.handle[-8:]}"]
        more = "".join(f", {mark}" for mark in marks if mark)
        return (
            f"{self.called:.3f}–{told} {self.kind.value} {self.key or '?'} on {self.queue}: {self.outcome.value}{more}"
        )


@dataclass(frozen=True, slots=True)
class Rules:
    """What the queues of a history promise beyond what all do."""

    moves: frozenset[tuple[str, str]] = frozenset()
    """(from, to): a message whose claim has ended may move there (dead letters), or at any time that it is not claimed
    (redrive)."""
    receives_most: tuple[tuple[str, int], ...] = ()
    """(queue, maxReceiveCount) of those with a dead-letter queue."""
    unseen: tuple[tuple[float, float], ...] = ()
    """From when to when a receive that was answered may also have claimed what nobody got: of a queue with several
    partitions it is answered with what one of them had, when another one's answer is lost."""
    early_share: float = 0.0
    """By which share of its length a visibility timeout may end early: shards follow clocks that differ, slowly."""
    early_seconds: float = 0.05
    """The service counts in whole milliseconds, by its own clock."""

    def early(self, seconds: float) -> float:
        """How much earlier than ``seconds`` after its claim a message may be seen again."""
        return self.early_seconds + self.early_share * seconds

    def timeout(self, delivery: Operation) -> float:
        """When the visibility timeout of a receive may be over at the earliest."""
        return delivery.called + delivery.seconds - self.early(delivery.seconds)


class History:
    """Operations, seen from several sides."""

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
        """By queue, receives of unknown outcome.  Each may have claimed any message there."""

    def done(self, kind: Kind) -> list[Operation]:
        """Those of a kind that were answered, in the order of their answers."""
        of_kind = [one for one in self.operations if one.kind is kind and one.outcome is Outcome.DONE]
        return sorted(of_kind, key=lambda operation: operation.answered)

    def hidden_until(self, delivery: Operation, rules: Rules) -> float:
        """Until when a received message was hidden at the least, by its timeout or until it was given back, with any of
        its handles."""
        given_back = [
            one.called + one.seconds
            for one in self.of_key[delivery.key]
            if one.kind is Kind.CHANGE and one.queue == delivery.queue and one.answered >= delivery.called
        ]
        return min([rules.timeout(delivery), *given_back])

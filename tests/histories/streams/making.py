"""Short notation of topics' histories for tests, a line for each fact.

::

    sent a1 @0 0-1 =5            producer a sent record a1 to partition 0 at 0 s; acknowledged at 1 s as offset 5
    sent a2 @0 0-1               the same, and the offset is not known; without an end it is not acknowledged
    stored @0 a1 - b1            records of partition 0 from offset 0 on; nothing is at offset 1
    ends @0 0-3                  first and next offset of partition 0
    assigned c1/2 @0 3 5         by the second assignment of member c1, at 3 s; offset 5 was committed (or none)
    read c1/2 @0 5 a1 4          it read a1 at offset 5, at 4 s
    commit c1/2 @0 6 5-6         it committed offset 6 from 5 to 6 s; without an end the outcome is unknown
    refused c1/2 @0 6 5-6        the commit was refused
    committed @0 6               the group's committed offset at the end
"""

from __future__ import annotations

import math
from typing import Any

from tests.histories.history import Outcome
from tests.histories.streams.history import (
    Assignment,
    AssignmentStart,
    ObservedCommit,
    RecordRead,
    SentRecord,
    TopicHistory,
)
from tests.tables import beside

CASES: dict[str, Any] = beside(__file__, "cases.yaml")


def made_topic(text: str) -> TopicHistory:
    """Return the history of these lines."""
    history = TopicHistory(0)
    for line in text.splitlines():
        if line.strip():
            _add(history, line.split())
    history.partitions = len(history.ends)
    return history


def _add(history: TopicHistory, words: list[str]) -> None:
    kind, first, *rest = words
    if kind == "sent":
        partition = int(rest[0][1:])
        sent, acked = _times(rest[1])
        offset = int(rest[2][1:]) if len(rest) > 2 else -1
        history.sent[first] = SentRecord(first, first.rstrip("0123456789"), partition, sent, acked, offset)
    elif kind == "stored":
        for offset, name in enumerate(rest):
            if name != "-":
                history.store(int(first[1:]), offset, name)
    elif kind == "ends":
        begin, _, end = rest[0].partition("-")
        history.ends[int(first[1:])] = (int(begin), int(end))
    elif kind == "committed":
        history.committed[int(first[1:])] = int(rest[0])
    else:
        member, _, number = first.partition("/")
        _add_of_group(history, kind, Assignment(member, int(number), int(rest[0][1:])), rest[1:])


def _add_of_group(history: TopicHistory, kind: str, assignment: Assignment, words: list[str]) -> None:
    if kind == "assigned":
        at, offset = words
        history.starts.append(AssignmentStart(assignment, float(at), None if offset == "none" else int(offset)))
    elif kind == "read":
        place, name, at = words
        history.reads.append(RecordRead(assignment, int(place), name, float(at)))
    else:
        place, times = words
        called, answered = _times(times)
        outcome = Outcome.REFUSED if kind == "refused" else Outcome.DONE
        if math.isinf(answered):
            outcome = Outcome.UNKNOWN
        history.commits.append(ObservedCommit(assignment, int(place), called, answered, outcome))


def _times(text: str) -> tuple[float, float]:
    begin, _, end = text.partition("-")
    return float(begin), float(end or math.inf)

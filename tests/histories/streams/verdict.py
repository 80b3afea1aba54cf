"""Checkers of a topic's history, after all records have an answer and the group has read all of them.

* *Places*: an acknowledged record is at its offset, once; nothing else is stored; offsets are dense from 0.
* *Order*: of each producer a partition has the records that were sent to it, in their order and without a gap.
* *Reads*: a member reads each record at its place, from the committed offset on and one after the other; the group
  reads all records.
* *Commits*: a member begins at the last committed offset or a later one that was to be committed; once another
  assignment of a partition has committed, an earlier one never does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from itertools import accumulate

from tests.histories.history import Outcome
from tests.histories.streams.history import Assignment, AssignmentStart, ObservedCommit, SentRecord, TopicHistory
from tests.histories.violations import Violations


def judge_topic(history: TopicHistory) -> Violations:
    verdict = Violations()
    _check_places(history, verdict)
    verdict.others += history.changed
    verdict.others += _order(history)
    verdict.others += _density(history)
    verdict.others += _reads(history)
    verdict.others += _commits(history)
    return verdict


# --- the topic ----------------------------------------------------------------------------------------------


def _check_places(history: TopicHistory, verdict: Violations) -> None:
    places: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for partition, records in history.stored.items():
        for offset, name in records.items():
            places[name].append((partition, offset))
    for name, found in places.items():
        one = history.sent.get(name)
        if one is None:
            verdict.others.append(f"{name} is stored at {found}, and was never sent")
        elif len(found) > 1:
            verdict.doubled.append(f"{one}, is stored at {found}")
        elif found[0][0] != one.partition or (one.offset >= 0 and found[0][1] != one.offset):
            verdict.others.append(f"{one}, is stored at {found}")
    verdict.lost += [f"{one}, is lost" for one in history.sent.values() if one.is_acked and one.name not in places]


def _order(history: TopicHistory) -> list[str]:
    sent: defaultdict[tuple[str, int], list[SentRecord]] = defaultdict(list)
    for one in history.sent.values():
        sent[one.producer, one.partition].append(one)
    stored: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    for partition, records in history.stored.items():
        for _, name in sorted(records.items()):
            if name in history.sent:
                stored[history.sent[name].producer, partition].append(name)
    broken = []
    for (producer, partition), names in stored.items():
        expected = [one.name for one in sent[producer, partition]]
        wrong = next((at for at, pair in enumerate(zip(names, expected, strict=False)) if pair[0] != pair[1]), None)
        if wrong is not None:
            broken.append(f"partition {partition} has {names[wrong]} where {expected[wrong]} of {producer} is expected")
    return broken


def _density(history: TopicHistory) -> list[str]:
    broken = []
    for partition, (first, after) in history.ends.items():
        offsets = history.stored.get(partition, {})
        if first != 0:
            broken.append(f"partition {partition} begins at {first}, and nothing was deleted")
        missing = [offset for offset in range(after) if offset not in offsets]
        if missing:
            broken.append(
                f"partition {partition} ends at {after}, and lacks {len(missing)} offsets from {missing[0]} on"
            )
        if beyond := [offset for offset in offsets if offset >= after]:
            broken.append(f"partition {partition} ends at {after}, and had {min(beyond)} to {max(beyond)}")
    return broken


# --- the group ----------------------------------------------------------------------------------------------


def _reads(history: TopicHistory) -> list[str]:
    broken = []
    starts = {one.assignment: one.offset or 0 for one in history.starts}
    seen: defaultdict[int, set[int]] = defaultdict(set)
    following: dict[Assignment, int] = {}
    for read in history.reads:
        partition = read.assignment.partition
        expected = following.get(read.assignment, starts.get(read.assignment, -1))
        if read.offset != expected:
            broken.append(f"{read.assignment} continues with {read.offset} where {expected} is expected")
        following[read.assignment] = read.offset + 1
        seen[partition].add(read.offset)
        known = history.stored.get(partition, {}).get(read.offset)
        if known != read.name:
            broken.append(f"{read.assignment} read {read.name} at {read.offset}, where {known} is stored")
    for partition, records in history.stored.items():
        if unread := sorted(records.keys() - seen[partition]):
            broken.append(f"the group has not read {len(unread)} records of partition {partition}, from {unread[0]} on")
    for partition, (_, after) in history.ends.items():
        committed = history.committed.get(partition, 0)
        if committed != after:
            broken.append(f"the group has committed {committed} of partition {partition}, which ends at {after}")
    return broken


def _commits(history: TopicHistory) -> list[str]:
    commits: defaultdict[int, list[ObservedCommit]] = defaultdict(list)
    for commit in history.commits:
        if commit.outcome is not Outcome.REFUSED:
            commits[commit.assignment.partition].append(commit)
    starts: defaultdict[int, list[AssignmentStart]] = defaultdict(list)
    for start in history.starts:
        starts[start.assignment.partition].append(start)
    broken = []
    for partition, of_partition in starts.items():
        broken += _wrong_starts(of_partition, commits[partition])
    for called in commits.values():
        broken += _late_commits([one for one in called if one.outcome is Outcome.DONE])
    return broken


def _wrong_starts(starts: list[AssignmentStart], commits: list[ObservedCommit]) -> list[str]:
    attempted = {one.offset for one in commits}
    done = sorted((one for one in commits if one.outcome is Outcome.DONE), key=lambda one: one.answered)
    answered = [one.answered for one in done]
    highest = list(accumulate((one.offset for one in done), max))
    broken = []
    for start in starts:
        before = bisect_left(answered, start.asked)
        committed = highest[before - 1] if before else None
        if start.offset is None and committed is None:
            continue
        if start.offset is None or (committed is not None and start.offset < committed):
            broken.append(f"{start.assignment} begins at {start.offset}, and {committed} was committed before")
        elif start.offset not in attempted:
            broken.append(f"{start.assignment} begins at {start.offset}, which nobody has committed")
    return broken


def _late_commits(commits: list[ObservedCommit]) -> list[str]:
    """Return commits of assignments after another one of the partition had committed in between."""
    broken = []
    answers = sorted(commits, key=lambda one: one.answered)
    started: dict[Assignment, float] = {}
    """Answer of each assignment's first commit."""
    superseded: dict[Assignment, ObservedCommit] = {}
    at = 0
    for commit in sorted(commits, key=lambda one: one.called):
        while at < len(answers) and answers[at].answered < commit.called:
            done = answers[at]
            over = [one for one, first in started.items() if one != done.assignment and first < done.called]
            for one in over:
                superseded[one] = done
                del started[one]
            if done.assignment not in superseded:
                started.setdefault(done.assignment, done.answered)
            at += 1
        if commit.assignment in superseded:
            broken.append(f"{commit} succeeded after {superseded[commit.assignment]}")
    return broken

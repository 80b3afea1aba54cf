"""Checker of the history of publications, after all that were acknowledged have had time to arrive.

* *Arrival*: an acknowledged publication was received from each queue that matched, and was subscribed all the time.
* *Once*: a queue has one message of a publication, however often that is received (SQS delivers at least once).
* *No other*: a queue has only what was published to its topic, matches its filter policy, and was published while the
  queue may have been subscribed.
* *Order*: the publications of a group are received from a FIFO queue, for the first time, in the order in which they
  were made.
"""

from __future__ import annotations

from tests.histories.history import Outcome
from tests.histories.publications.history import FanoutHistory
from tests.histories.violations import Violations


def judge_publications(history: FanoutHistory) -> Violations:
    verdict = Violations()
    for name, queues in history.owed.items():
        verdict.lost += [f"{name} was acknowledged, and has not arrived in {queue}" for queue in sorted(queues)]
    _check_receives(history, verdict)
    _check_order(history, verdict)
    return verdict


def _check_receives(history: FanoutHistory, verdict: Violations) -> None:
    messages: dict[tuple[str, str], str] = {}
    by_id: dict[str, tuple[str, str]] = {}
    for one in history.receives:
        place = one.queue, one.name
        if by_id.setdefault(one.message_id, place) != place:
            verdict.others.append(f"message {one.message_id} is {place} and {by_id[one.message_id]}")
        known = messages.setdefault(place, one.message_id)
        if known != one.message_id:
            verdict.doubled.append(f"{one.name} is in {one.queue} as {known} and as {one.message_id}")
            continue
        sent = history.publications.get(one.name)
        if sent is None or sent.called > one.at:
            verdict.others.append(f"{one.name} was received from {one.queue}, and was not published")
        elif sent.outcome is Outcome.REFUSED:
            verdict.others.append(f"{one.name} was received from {one.queue}, and its publish was refused")
        elif not history.queues[one.queue].may_have(sent):
            verdict.others.append(f"{one.name} was received from {one.queue}, which it was not to be delivered to")


def _check_order(history: FanoutHistory, verdict: Violations) -> None:
    """Compare first receives: several messages of a group may be received, and returned to the queue, together."""
    latest: dict[tuple[str, str], tuple[int, str]] = {}
    seen: set[tuple[str, str]] = set()
    for one in history.receives:
        sent = history.publications.get(one.name)
        is_first = (one.queue, one.name) not in seen
        seen.add((one.queue, one.name))
        if not is_first or sent is None or sent.group is None or not history.queues[one.queue].fifo:
            continue
        number, name = latest.get((one.queue, sent.group), (-1, ""))
        if sent.number < number:
            verdict.others.append(f"{one.name} was received from {one.queue} after {name} of the same group")
        else:
            latest[one.queue, sent.group] = sent.number, one.name

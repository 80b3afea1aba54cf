"""A message that moves (dead letters, redrive) is in exactly one queue, and moves for a reason.

- No delivery comes from one queue while a claim from another holds.
- An id that a redrive has replaced does not recur.
- A message moves to a dead-letter queue only after as many receives as its ``maxReceiveCount``, which receives
  of unknown outcome may include.
"""

import itertools
from collections.abc import Mapping

from tests.histories.history import History, Kind, Operation, Rules


def check(history: History, rules: Rules) -> list[str]:
    """Violations of conservation."""
    broken: list[str] = []
    limits = dict(rules.receives_max)
    for key, operations in history.of_key.items():
        deliveries = sorted(
            (one for one in operations if one.kind is Kind.RECEIVE), key=lambda operation: operation.answered
        )
        broken += _in_one_place(key, deliveries, history, rules)
        broken += _for_a_reason(key, deliveries, history, rules, limits)
    return broken


def _in_one_place(key: str, deliveries: list[Operation], history: History, rules: Rules) -> list[str]:
    broken = []
    for before, after in itertools.pairwise(deliveries):
        if before.queue == after.queue:
            continue
        if not rules.moves & {(before.queue, after.queue), (after.queue, before.queue)}:
            broken.append(f"{key} came from {before.queue} and from {after.queue}, and nothing moves there: {after}")
        elif after.answered < history.hidden_until(before, rules) and (
            before.answered < history.hidden_until(after, rules)
        ):
            broken.append(f"{key} was in two queues: {before}, then {after}")
    renamed = len({one.message_id for one in deliveries}) > 1
    for first, other, again in itertools.combinations(deliveries, 3) if renamed else ():
        if (
            first.message_id == again.message_id != other.message_id
            and first.answered <= other.called
            and other.answered <= again.called
        ):
            broken.append(f"{key}: its former id {again.message_id} came back: {again}")
            break
    return broken


def _for_a_reason(
    key: str, deliveries: list[Operation], history: History, rules: Rules, limits: Mapping[str, int]
) -> list[str]:
    broken = []
    sent_to = history.of_key[key][0].queue
    for before, after in itertools.pairwise([None, *deliveries]):
        assert after is not None
        source = sent_to if before is None else before.queue
        if source == after.queue or source not in limits or (source, after.queue) not in rules.moves:
            continue
        there = [one for one in deliveries if one.queue == after.queue and one.answered <= after.called]
        receives = [
            one
            for one in deliveries
            if one.queue == source
            and one.called <= after.answered
            and not any(one.answered <= stay.called for stay in there)
        ]
        unseen = sum(lost.called <= after.answered for lost in history.lost_receives.get(source, ()))
        since = history.of_key[key][0].called
        counted = not any(begin <= after.answered and since <= end for begin, end in rules.unseen)
        if counted and len(receives) + unseen < limits[source]:
            broken.append(
                f"{key} moved from {source} after {len(receives)} receives, and may after {limits[source]}: {after}"
            )
    return broken

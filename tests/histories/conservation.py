"""A message that moves (dead letters, redrive) is in exactly one queue, and moves for a reason.

- A message that was acknowledged and not deleted is in one of the queues at the end, once.
- No delivery comes from one queue while a claim from another holds.
- An id that a redrive has replaced does not come back.
- It goes to a dead-letter queue only after so many receives as its ``maxReceiveCount`` says; receives of unknown
  outcome may have been some of them.
- At the end the service counts as many messages as there are.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping

from tests.histories.history import History, Kind, Operation, Rules


def check(
    history: History,
    rules: Rules,
    left: Mapping[str, list[str]] | None = None,
    counted: Mapping[str, int] | None = None,
) -> list[str]:
    """What was not conserved.

    ``left``: keys that are in each queue at the end; ``counted``: how many the service says there are.
    """
    broken: list[str] = []
    places: dict[str, list[str]] = {}
    for queue, keys in (left or {}).items():
        for key in keys:
            places.setdefault(key, []).append(queue)
    broken += [f"{key} is in {' and in '.join(queues)}" for key, queues in places.items() if len(queues) > 1]
    for queue, count in (counted or {}).items():
        there = len((left or {}).get(queue, []))
        if count != there:
            broken.append(f"{queue}: {count} messages are counted, and {there} are there")
    limits = dict(rules.receives_most)
    for key, operations in history.of_key.items():
        deliveries = sorted(
            (one for one in operations if one.kind is Kind.RECEIVE), key=lambda operation: operation.answered
        )
        broken += _in_one_place(key, operations, deliveries, rules)
        broken += _for_a_reason(key, deliveries, history, rules, limits)
    return broken


def _in_one_place(key: str, operations: list[Operation], deliveries: list[Operation], rules: Rules) -> list[str]:
    broken = []
    for before, after in itertools.pairwise(deliveries):
        if before.queue == after.queue:
            continue
        if (before.queue, after.queue) not in rules.moves:
            broken.append(
                f"{key} came from {before.queue} and then from {after.queue}, and nothing moves there: {after}"
            )
            continue
        ends = [
            one.called + one.seconds
            for one in operations
            if one.kind is Kind.CHANGE and one.handle == before.handle and one.called <= after.answered
        ]
        until = min([before.called + before.seconds - rules.early(before.seconds), *ends])
        if after.answered < until:
            broken.append(f"{key} was in two queues: {before}, then {after}")
    ids = [one.message_id for one in deliveries]
    for at, message_id in enumerate(ids):
        if at and message_id != ids[at - 1] and message_id in ids[:at]:
            broken.append(f"{key}: its former id {message_id} came back: {deliveries[at]}")
    return broken


def _for_a_reason(
    key: str, deliveries: list[Operation], history: History, rules: Rules, limits: Mapping[str, int]
) -> list[str]:
    broken = []
    received: Counter[str] = Counter()
    for before, after in zip([None, *deliveries], deliveries, strict=False):
        came_from = before.queue if before is not None else history.of_key[key][0].queue
        if after.queue != came_from and came_from in limits and (came_from, after.queue) in rules.moves:
            unseen = sum(lost.called <= after.answered for lost in history.lost_receives[came_from])
            if received[came_from] + unseen < limits[came_from]:
                broken.append(
                    f"{key} moved from {came_from} after {received[came_from]} receives, and may after "
                    f"{limits[came_from]}: {after}"
                )
            received[came_from] = 0
        received[after.queue] += 1
    return broken

"""FIFO: the messages of a group are delivered in the order in which they were sent, one claim at a time.

The order of sends is known from outside only if one send was acknowledged before the other began; the entries
of one batch are in its order.  Repeats with a deduplication id change nothing: a message was sent at the latest
when its first acknowledged send was answered, and at the earliest when its first send began.

- *Order*: when a message is delivered, everything sent before it in its group is in the same answer, earlier in
  it, or its delete had begun by the time that the delivery was answered.
- *Exclusive*: while a message is out (received, its visibility timeout not over, no delete begun, not given
  back) no answer contains another one of its group.  Answers may be slow: two deliveries count as concurrent
  only if neither can have ended before the other was made.

A message that was seen in another queue (dead letters) left its group at an unknown time, and is ignored.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.histories.history import History, Kind, Operation, Outcome, Rules


@dataclass
class _Member:
    """A message of a group."""

    key: str
    started: tuple[float, int]
    """Start of its first send, and its position in the history."""
    sent: float = float("inf")
    """Time of the first acknowledgement of a send."""
    call: int = 0
    deletes: list[Operation] = field(default_factory=list)
    moved: bool = False


def check(history: History, rules: Rules) -> list[str]:
    """Violations of order or exclusiveness, a text for each."""
    groups: dict[tuple[str, str], dict[str, _Member]] = defaultdict(dict)
    answers: dict[tuple[str, str], dict[int, list[Operation]]] = defaultdict(lambda: defaultdict(list))
    for place, one in enumerate(history.operations):
        if not one.group or one.outcome is Outcome.REFUSED:
            continue
        name = (one.queue, one.group)
        if one.kind is Kind.SEND:
            member = groups[name].setdefault(one.key, _Member(one.key, (one.called, place), call=one.call))
            if one.outcome is Outcome.DONE:
                member.sent = min(member.sent, one.answered)
        elif one.kind is Kind.RECEIVE:
            answers[name][one.call].append(one)
    broken: list[str] = []
    for name, members in groups.items():
        for key, member in members.items():
            operations = history.of_key[key]
            member.deletes = [one for one in operations if one.kind is Kind.DELETE]
            member.moved = any(one.kind is Kind.RECEIVE and one.queue != name[0] for one in operations)
        deliveries = sorted(answers[name].values(), key=lambda answer: answer[0].answered)
        broken += _order(name, list(members.values()), deliveries)
        broken += _exclusive(name, members, deliveries, history, rules)
    return broken


def _order(name: tuple[str, str], members: list[_Member], deliveries: list[list[Operation]]) -> Iterable[str]:
    queue, group = name
    members.sort(key=lambda member: member.started)
    place = {member.key: at for at, member in enumerate(members)}
    first = 0
    """Members before this index are certainly gone by now."""
    for answer in deliveries:
        now = answer[0].answered
        while first < len(members) and _gone(members[first], now):
            first += 1
        in_answer: list[str] = []
        for one in answer:
            if one.key not in place:
                continue  # never sent: reported by another checker
            at = place[one.key]
            for member in members[first:at]:
                before = member.sent <= members[at].started[0] or member.call == members[at].call
                acknowledged = member.sent < float("inf")
                if before and acknowledged and member.key not in in_answer and not _gone(member, now):
                    yield f"{queue}, group {group}: {one.key} came before {member.key}, which was sent before it: {one}"
            in_answer.append(one.key)


def _exclusive(
    name: tuple[str, str],
    members: dict[str, _Member],
    deliveries: list[list[Operation]],
    history: History,
    rules: Rules,
) -> Iterable[str]:
    queue, group = name
    out: dict[str, tuple[Operation, float]] = {}
    """Messages that are out, by key: the delivery, and its earliest end."""
    for answer in deliveries:
        now, call = answer[0].answered, answer[0].call
        for key, (delivery, until) in list(out.items()):
            if now >= until or (key in members and _gone(members[key], now)):
                del out[key]
            elif delivery.call != call and history.hidden_until(answer[0], rules) > delivery.answered:
                yield f"{queue}, group {group}: {answer[0].key} came while {key} was out: {delivery}, then {answer[0]}"
        for one in answer:
            out[one.key] = (one, history.hidden_until(one, rules))


def _gone(member: _Member, now: float) -> bool:
    return member.moved or any(delete.called <= now for delete in member.deletes)

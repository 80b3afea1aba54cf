"""No acknowledged message is lost, none appears that was never sent, and each duplicate has its reason.

After Jepsen's total-queue checker (K. Kingsbury, jepsen.checker/total-queue): the queues have been drained, so
every acknowledged message must have been received, and its delete begun.

A message received a second time was *redelivered* if whatever hid it had ended by then, or *released* if its
client gave it back.  Any other second delivery is unexplained, and so is one under another id, unless a
redrive may have given it a new one, and one requested after a delete with the latest handle was
acknowledged.  A send that is repeated is acknowledged with the same id.  Answers may be slow: of two deliveries,
either may have been the first.
"""

from collections import Counter
from dataclasses import dataclass, field

from tests.histories.history import History, Kind, Operation, Outcome, Rules


@dataclass
class TotalQueue:
    """The fate of all messages."""

    attempted: int = 0
    acknowledged: int = 0
    received: int = 0
    """Messages received at least once."""
    lost: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    duplicates: Counter[str] = field(default_factory=Counter)
    """Deliveries after a message's first one, by reason."""
    unexplained: list[str] = field(default_factory=list)

    @property
    def broken(self) -> list[str]:
        """All violations."""
        return [*self.lost, *self.unexpected, *self.unexplained]


def check(history: History, rules: Rules) -> TotalQueue:
    """Check a history."""
    result = TotalQueue()
    dead_letters_of = dict(rules.receives_max)
    redriven_into = {queue for source, queue in rules.moves if source not in dead_letters_of}
    for key, operations in history.of_key.items():
        sends = [one for one in operations if one.kind is Kind.SEND]
        deliveries = sorted((one for one in operations if one.kind is Kind.RECEIVE), key=lambda one: one.answered)
        acknowledged = [one for one in sends if one.outcome is Outcome.DONE]
        result.attempted += bool(sends)
        result.acknowledged += bool(acknowledged)
        result.received += bool(deliveries)
        ended = deliveries and any(one.kind is Kind.DELETE for one in operations)
        if acknowledged and not ended:
            result.lost.append(
                f"{key} was acknowledged and is lost: {acknowledged[0]}, received {len(deliveries)} times"
            )
        if len(ids := {one.message_id for one in acknowledged}) > 1:
            result.unexplained.append(f"{key} was acknowledged as {' and as '.join(sorted(ids))}")
        if deliveries and not sends:
            result.unexpected.append(f"{key} came and was never sent: {deliveries[0]}")
        _explain(key, history, deliveries, rules, redriven_into, result)
    return result


def _explain(
    key: str, history: History, deliveries: list[Operation], rules: Rules, redriven_into: set[str], result: TotalQueue
) -> None:
    operations = history.of_key[key]
    ids = {one.message_id for one in operations if one.kind is Kind.SEND and one.outcome is Outcome.DONE}
    for before, again in zip([None, *deliveries], deliveries, strict=False):
        since = operations[0].called if before is None else before.called
        redriven = again.queue in redriven_into or any(
            since <= lost.called <= again.answered  # it may have been received there, where nobody saw it
            for queue in redriven_into
            for lost in history.lost_receives.get(queue, ())
        )
        if ids and again.message_id not in ids and not redriven:
            result.unexplained.append(f"{key} came as {again.message_id}, and was sent as {', '.join(ids)}: {again}")
        ids.add(again.message_id)
        if before is None:
            continue
        until = history.hidden_until(before, rules)
        deleted = [
            one
            for one in operations
            if one.kind is Kind.DELETE
            and one.handle == before.handle
            and one.outcome is Outcome.DONE
            and one.answered <= min(again.called, until)
        ]
        if deleted:
            result.unexplained.append(f"{key} came after its delete was acknowledged: {deleted[0]}, then {again}")
        elif again.answered < until and before.answered < history.hidden_until(again, rules):
            result.unexplained.append(f"{key} came again while it was hidden: {before}, then {again}")
        elif until < rules.timeout(before):
            result.duplicates["released"] += 1
        else:
            result.duplicates["redelivered after its visibility timeout"] += 1

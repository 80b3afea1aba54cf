"""A single message's visibility is linearizable: sent → visible → claimed by one at a time → deleted.

The object is one message over all queues that it may move through.  Its rules:

- it is received only when it was sent, is not deleted, and whatever hid it (a delay, the claim before) has
  ended;
- a delete is final, by whichever handle of the message it was made.  Only if messages leave the queue, and the
  claim has ended, may the message have been gone by then: the delete then has no effect, which SQS also answers
  with success. (A FIFO queue refuses a handle that is not the last claim's; a refused call has no effect.)
- a change of visibility acts on the message, by whichever handle it was made;
- it is received from another queue only if messages move there, and with its claim ended.

Repeated sends (FIFO deduplication, retry tokens) do not matter: they change nothing.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tests.histories.history import History, Kind, Operation, Rules
from tests.histories.wing_gong import Step, linearizable


class MessageState(NamedTuple):
    """A possible state of one message."""

    queue: str = ""
    """Queue in which it was last seen; empty before it was sent."""
    handle: str = ""
    """Handle of its last claim."""
    hidden_until: float = 0.0
    """Earliest time at which it can be seen again."""
    deleted: bool = False


def check(history: History, rules: Rules) -> list[str]:
    """Violations of linearizability, a text per message.  Raises :class:`~tests.histories.wing_gong.Undecided`."""
    broken = []
    step = _stepping(rules)
    for key, operations in history.of_key.items():
        order = linearizable(operations, MessageState(), step)
        if order is not None:
            lines = "\n".join(f"    {operation}" for operation in order)
            broken.append(f"{key}: its visibility is not linearizable; the last of these fits nowhere:\n{lines}")
    return broken


def _stepping(rules: Rules) -> Step[MessageState]:
    leaves = {queue for queue, _ in rules.moves}

    def step(message: MessageState, operation: Operation, not_before: float) -> Iterator[tuple[MessageState, float]]:
        match operation.kind:
            case Kind.SEND:
                if message.queue:
                    yield message, not_before
                else:
                    hidden_until = not_before + operation.seconds - rules.early(operation.seconds)
                    yield MessageState(operation.queue, "", hidden_until), not_before
            case Kind.RECEIVE:
                here = message.queue == operation.queue or (message.queue, operation.queue) in rules.moves
                if here and message.queue and not message.deleted:
                    moment = max(not_before, message.hidden_until)
                    hidden_until = moment + operation.seconds - rules.early(operation.seconds)
                    yield MessageState(operation.queue, operation.handle, hidden_until), moment
            case Kind.DELETE:
                if message.queue != operation.queue or message.deleted:
                    yield message, not_before
                else:
                    yield message._replace(deleted=True), not_before
                    if operation.queue in leaves:
                        # A handle of an earlier stay in this queue has no effect on a message that has
                        # returned.
                        last = message.handle == operation.handle
                        yield message, max(not_before, message.hidden_until) if last else not_before
            case Kind.CHANGE:
                if message.queue == operation.queue:
                    hidden_until = not_before + operation.seconds - rules.early(operation.seconds)
                    yield message._replace(hidden_until=hidden_until), not_before
                else:
                    yield message, not_before

    return step

"""Short notation of histories for tests: ``at(1, 2).send("a")`` is a send of message ``a`` from second 1 to
second 2."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from tests.histories.history import Kind, Operation, Outcome

_calls = itertools.count(1)
VISIBILITY_SECONDS = 10.0


@dataclass(frozen=True)
class At:
    """Times of a call and its answer; without an answer its outcome is unknown."""

    called: float
    answered: float
    queue: str = "q"
    group: str = ""

    def _one(self, kind: Kind, key: str, handle: str = "", seconds: float = 0.0, message_id: str = "") -> Operation:
        outcome = Outcome.UNKNOWN if self.answered == math.inf else Outcome.DONE
        return Operation(
            kind,
            self.queue,
            self.called,
            self.answered,
            outcome,
            key,
            message_id,
            handle,
            seconds,
            self.group,
            next(_calls),
        )

    def on(self, queue: str) -> At:
        return replace(self, queue=queue)

    def of(self, group: str) -> At:
        return replace(self, group=group)

    def send(self, key: str, delay: float = 0.0, message_id: str = "") -> Operation:
        return self._one(Kind.SEND, key, "", delay, message_id or f"id-{key}")

    def receive(
        self, key: str, handle: str = "h1", seconds: float = VISIBILITY_SECONDS, message_id: str = ""
    ) -> Operation:
        return self._one(Kind.RECEIVE, key, handle, seconds, message_id or f"id-{key}")

    def batch(self, *keys: str) -> list[Operation]:
        """One answer with several messages."""
        operations = [self.receive(key) for key in keys]
        return [replace(operation, call=operations[0].call) for operation in operations]

    def sends(self, *keys: str) -> list[Operation]:
        """One call with several messages."""
        operations = [self.send(key) for key in keys]
        return [replace(operation, call=operations[0].call) for operation in operations]

    def delete(self, key: str, handle: str = "h1") -> Operation:
        return self._one(Kind.DELETE, key, handle)

    def change(self, key: str, seconds: float, handle: str = "h1") -> Operation:
        return self._one(Kind.CHANGE, key, handle, seconds)


def at(called: float, answered: float = math.inf) -> At:
    return At(called, answered)


def lost_receive(called: float, queue: str = "q") -> Operation:
    """A receive whose answer was lost."""
    return Operation(Kind.RECEIVE, queue, called, outcome=Outcome.UNKNOWN)

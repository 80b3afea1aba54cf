"""Recorder of the clients' calls, as a history for the checkers of :mod:`tests.histories`."""

import itertools
import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.faults.tools.bodies import key_of
from tests.faults.tools.client import CallRefused, Client, Endpoint, InDoubt, Unreachable
from tests.histories.history import Kind, Operation, Outcome, Rules
from tests.histories.verdict import Verdict, judge

_KINDS = {
    "SendMessage": Kind.SEND,
    "SendMessageBatch": Kind.SEND,
    "ReceiveMessage": Kind.RECEIVE,
    "DeleteMessage": Kind.DELETE,
    "DeleteMessageBatch": Kind.DELETE,
    "ChangeMessageVisibility": Kind.CHANGE,
    "ChangeMessageVisibilityBatch": Kind.CHANGE,
}


class Recorder:
    """History of all clients that share it.  All queues have one visibility timeout, and no delay of their own."""

    def __init__(self, visibility_seconds: float) -> None:
        self.operations: list[Operation] = []
        self.errors: Counter[str] = Counter()
        self.calls = 0
        self._visibility_seconds = visibility_seconds
        self._handles: dict[str, tuple[str, str]] = {}
        """(key, group) of the message of each receipt handle."""
        self._numbers = itertools.count(1)
        self._sent_at: dict[str, list[float]] = {}

    def judge(self, rules: Rules) -> Verdict:
        """Judge the whole history; the queues are empty."""
        return judge(self.operations, rules)

    def longest_stall_seconds(self, since: float, until: float) -> float:
        """Return the longest time without an acknowledged send to some queue.  Sends were attempted all the time."""
        longest = 0.0
        for times in self._sent_at.values():
            within = [since, *(moment for moment in times if since < moment < until), until]
            longest = max(longest, max(after - before for before, after in itertools.pairwise(within)))
        return longest

    # --- one call -----------------------------------------------------------------------------------------

    def note(self, action: str, parameters: dict[str, Any], called: float, answer: dict[str, Any]) -> None:
        self.calls += 1
        kind = _KINDS.get(action)
        if kind is None:
            return
        answered = time.monotonic()
        call = next(self._numbers)
        if kind is Kind.RECEIVE:
            queue = _queue_of(parameters)
            for message in answer.get("Messages", ()):
                self._received(queue, parameters, message, called, answered, call)
            return
        batch = action.endswith("Batch")
        successful = {one["Id"]: one for one in answer.get("Successful", ())} if batch else {"": answer}
        failed = {one["Id"]: one for one in answer.get("Failed", ())}
        for name, operation in self._asked(kind, parameters, called, call):
            if name in successful:
                message_id = successful[name].get("MessageId", "")
                self.operations.append(
                    replace(operation, answered=answered, outcome=Outcome.DONE, message_id=message_id)
                )
                if kind is Kind.SEND:
                    self._sent_at.setdefault(operation.queue, []).append(answered)
            elif failed[name]["SenderFault"]:
                self.operations.append(replace(operation, answered=answered, outcome=Outcome.REFUSED))
            else:
                self.operations.append(operation)

    def note_failure(self, action: str, parameters: dict[str, Any], called: float, error: BaseException) -> None:
        """Record a call without an answer, or with an error."""
        self.calls += 1
        self.errors[_name_of(error)] += 1
        kind = _KINDS.get(action)
        if kind is None or isinstance(error, Unreachable):
            return
        call = next(self._numbers)
        if isinstance(error, CallRefused) and error.status < 500:
            answered = time.monotonic()
            self.operations += [
                replace(operation, answered=answered, outcome=Outcome.REFUSED)
                for _, operation in self._asked(kind, parameters, called, call)
            ]
        elif kind is Kind.RECEIVE:
            self.operations.append(Operation(kind, _queue_of(parameters), called, outcome=Outcome.UNKNOWN, call=call))
        else:
            self.operations += [operation for _, operation in self._asked(kind, parameters, called, call)]

    def _asked(
        self, kind: Kind, parameters: dict[str, Any], called: float, call: int
    ) -> Iterator[tuple[str, Operation]]:
        """For each message of a call: (its name in the batch, an operation of unknown outcome)."""
        queue = _queue_of(parameters)
        if kind is Kind.RECEIVE:
            return
        for entry in parameters.get("Entries", (parameters,)):
            handle = entry.get("ReceiptHandle", "")
            if kind is Kind.SEND:
                key, group = _key(entry["MessageBody"]), entry.get("MessageGroupId", "")
            else:
                key, group = self._handles[handle]
            seconds = float(entry.get("DelaySeconds", 0) if kind is Kind.SEND else entry.get("VisibilityTimeout", 0))
            yield (
                entry.get("Id", ""),
                Operation(kind, queue, called, math.inf, Outcome.UNKNOWN, key, "", handle, seconds, group, call),
            )

    def _received(
        self, queue: str, parameters: dict[str, Any], message: dict[str, Any], called: float, answered: float, call: int
    ) -> None:
        key = _key(message["Body"])
        group = message.get("Attributes", {}).get("MessageGroupId", "")
        handle = message["ReceiptHandle"]
        self._handles[handle] = key, group
        seconds = float(parameters.get("VisibilityTimeout", self._visibility_seconds))
        self.operations.append(
            Operation(
                Kind.RECEIVE,
                queue,
                called,
                answered,
                key=key,
                message_id=message["MessageId"],
                handle=handle,
                seconds=seconds,
                group=group,
                call=call,
            )
        )


class RecordingClient(Client):
    def __init__(self, server: Endpoint, recorder: Recorder, port: int | None = None) -> None:
        super().__init__(server, port)
        self._recorder = recorder

    async def call(self, action: str, **parameters: Any) -> dict[str, Any]:
        called = time.monotonic()
        try:
            answer = await super().call(action, **parameters)
        except BaseException as error:
            self._recorder.note_failure(action, parameters, called, error)
            raise
        self._recorder.note(action, parameters, called, answer)
        return answer


def _queue_of(parameters: dict[str, Any]) -> str:
    return str(parameters["QueueUrl"]).rpartition("/")[2]


def _key(body: str) -> str:
    """Return the key of a body; for a body that no client made, its beginning, which was never sent."""
    return key_of(body) or f"strange {body[:40]!r}"


def _name_of(error: BaseException) -> str:
    match error:
        case CallRefused():
            return f"{error.status} {error.code}"
        case InDoubt():
            return "connection lost"
        case Unreachable():
            return "no connection"
        case TimeoutError():
            return "no answer"
    return "cancelled"

"""The service that queues are moved into: making queues, and sends that are repeated until they are answered."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from frontend.sqs import attributes
from frontend.sqs.arn import QueueArn, parse
from holdfast.client import NOT_FOUND, UNREACHABLE, Client, CommandFailed
from holdfast.moving.definition import BOUND, Definition, Way, differences
from holdfast.moving.messages import BATCH_BYTES_MOST, BATCH_MOST, Message

PATIENCE_SECONDS = 45.0
"""How long a call is repeated: less than the 60 s for which the service knows a repeated send again."""
_PAUSE_FIRST_SECONDS = 0.1
_PAUSE_MOST_SECONDS = 5.0

Existing = Literal["stop", "keep", "update"]
"""What is done about a queue that is there and is another than is asked for."""

_T = TypeVar("_T")


class EntryRefused(Exception):
    """The service does not take one message of a batch; the others are stored."""

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(reason)
        self.place = place


class Planned(NamedTuple):
    """What is to be done about a queue."""

    wanted: Definition
    """As it was where it comes from."""
    there: Definition | None
    """As it is here; None: it is to be made."""
    differences: list[str]
    """Empty: it is there, just so."""

    @property
    def half_made(self) -> bool:
        """Whether the queue that is there lacks nothing but ties to others: these are set when all queues are made."""
        if self.there is None or not self.differences:
            return False
        wanted = Way(self.wanted.arn, self.there.arn).mapped(self.wanted)
        has = {
            name: value
            for name, value in wanted.attributes.items()
            if name not in BOUND or name in self.there.attributes
        }
        return not differences(dataclasses.replace(wanted, attributes=has), self.there)

    def result(self, existing: Existing) -> Definition:
        """The queue that messages will be sent to."""
        return self.wanted if self.there is None or existing == "update" else self.there


def persistently(
    call: Callable[[], _T],
    *,
    patience_seconds: float = PATIENCE_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> _T:
    """What the call returns, which is repeated while the service cannot be reached or asks to come again.

    Raises :class:`CommandFailed` for what else is wrong, or when patience is at its end.
    """
    end, pause = clock() + patience_seconds, _PAUSE_FIRST_SECONDS
    while True:
        try:
            return call()
        except CommandFailed as error:
            if error.code != UNREACHABLE or clock() + pause > end:
                raise
        sleep(pause)
        pause = min(2 * pause, _PAUSE_MOST_SECONDS)


class Target:
    """The account whose key signs."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def endpoint(self) -> str:
        return self._client.endpoint

    # --- queues -------------------------------------------------------------------------------------------

    def find(self, name: str, account: str | None = None) -> Definition | None:
        """The queue as it is; None: there is none.  Raises :class:`CommandFailed`."""
        try:
            shown = persistently(lambda: self._client.call("GET", "queues", name, query={"account": account}))
        except CommandFailed as error:
            if error.code == NOT_FOUND:
                return None
            raise
        return _definition(name, shown)

    def plan(self, wanted: Definition) -> Planned:
        """Raises :class:`CommandFailed`."""
        there = self.find(wanted.name)
        if there is None:
            return Planned(wanted, None, [])
        return Planned(wanted, there, differences(Way(wanted.arn, there.arn).mapped(wanted), there))

    def make(self, planned: Sequence[Planned], existing: Existing) -> None:
        """Make and change queues so that they are as planned: first all of them, then what ties them to others.

        What was made by a try that was cut off is found, and goes on.  Raises :class:`CommandFailed`.
        """
        made: list[tuple[Definition, Definition]] = []
        for one in planned:
            if one.there is None:
                made.append((one.wanted, self._create(one.wanted)))
            elif one.differences and existing == "update":
                mapped = Way(one.wanted.arn, one.there.arn).mapped(one.wanted)
                self._update(mapped, one.there)
                made.append((one.wanted, one.there))
        for name in BOUND:
            for wanted, there in made:
                value = Way(wanted.arn, there.arn).mapped(wanted).attributes.get(name, "")
                if value != there.attributes.get(name, ""):
                    self._set(wanted.name, {name: value})

    def _create(self, wanted: Definition) -> Definition:
        plain = {name: value for name, value in wanted.attributes.items() if name not in BOUND}
        tags = dict(wanted.tags)
        persistently(lambda: self._client.sqs("CreateQueue", QueueName=wanted.name, Attributes=plain, tags=tags))
        there = self.find(wanted.name)
        if there is None:
            raise CommandFailed(f"the queue {wanted.name} was made, and deleted by somebody else")
        return there

    def _update(self, wanted: Definition, there: Definition) -> None:
        """All but what ties it to others."""
        asked = attributes.OWN | attributes.effective(wanted.attributes)
        found = attributes.OWN | attributes.effective(there.attributes)
        changed = {
            name: asked.get(name, "")
            for name in attributes.SETTABLE
            if name not in BOUND and asked.get(name, "") != found.get(name, "")
        }
        if changed:
            self._set(wanted.name, changed)
        gone = sorted(there.tags.keys() - wanted.tags.keys())
        if gone:
            persistently(lambda: self._client.sqs("UntagQueue", QueueUrl=wanted.name, TagKeys=gone))
        if wanted.tags:
            persistently(lambda: self._client.sqs("TagQueue", QueueUrl=wanted.name, Tags=dict(wanted.tags)))

    def _set(self, name: str, values: Mapping[str, str]) -> None:
        try:
            persistently(lambda: self._client.sqs("SetQueueAttributes", QueueUrl=name, Attributes=dict(values)))
        except CommandFailed as error:
            raise CommandFailed(f"{', '.join(values)} of queue {name}: {error}", error.code) from None

    # --- messages -----------------------------------------------------------------------------------------

    def send_one(self, name: str, message: Message, token: str) -> None:
        """Store a message of a standard queue.  Who repeats it with its token within 60 s does not store it twice.

        Raises :class:`CommandFailed`.
        """
        entry = message.entry("0", fifo=False)
        del entry["Id"]
        persistently(lambda: self._client.sqs("SendMessage", QueueUrl=name, token=token, **entry))

    def send(self, name: str, messages: Sequence[Message], token: str, *, fifo: bool) -> None:
        """Store the messages of a batch.  Who repeats it with its token within 60 s stores none of them twice.

        Raises :class:`EntryRefused`, and :class:`CommandFailed`.
        """
        entries = [message.entry(str(place), fifo=fifo) for place, message in enumerate(messages)]

        def send() -> None:
            answer = self._client.sqs("SendMessageBatch", QueueUrl=name, Entries=entries, token=token)
            failed = answer.get("Failed", [])
            for one in failed:
                if one["SenderFault"]:
                    raise EntryRefused(int(one["Id"]), one["Message"])
            if failed:
                raise CommandFailed(failed[0]["Message"], UNREACHABLE)

        persistently(send)


def batches(messages: Iterator[tuple[_T, int]]) -> Iterator[list[_T]]:
    """Things put together as one batch may have them, in their order; each comes with its bytes."""
    batch: list[_T] = []
    total = 0
    for one, size in messages:
        if batch and (len(batch) == BATCH_MOST or total + size > BATCH_BYTES_MOST):
            yield batch
            batch, total = [], 0
        batch.append(one)
        total += size
    if batch:
        yield batch


def _definition(name: str, shown: Mapping[str, Any]) -> Definition:
    where = parse(shown["arn"])
    assert where is not None
    return Definition(name, where, settable(shown["attributes"]), shown["tags"])


def settable(values: Mapping[str, str]) -> dict[str, str]:
    """What of a queue's attributes can be set."""
    return {name: value for name, value in values.items() if name in attributes.SETTABLE}


def place_of(text: str) -> QueueArn:
    """Raises :class:`ValueError`."""
    found = parse(text)
    if found is None:
        raise ValueError(f"{text!r} is not the ARN of a queue")
    return found

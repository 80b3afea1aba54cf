"""The service that queues are moved into: creation of queues, and sends that are retried until answered."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from frontend.queues import attributes
from holdfast.commandline.client import NOT_FOUND, UNREACHABLE, CommandFailed, RestClient, persistently
from holdfast.migrate.definition import BOUND, ArnMapping, Definition, differences
from holdfast.migrate.messages import BATCH_BYTES_MAX, BATCH_MAX, MessageContent
from metadata_service.arn import QueueArn, parse

_T = TypeVar("_T")

Existing = Literal["stop", "keep", "update"]
"""Treatment of an existing queue that differs from the requested one."""


class EntryRefused(Exception):
    """The service refuses one message of a batch; the others are stored."""

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(reason)
        self.place = place


class Planned(NamedTuple):
    """The planned action for a queue."""

    wanted: Definition
    """Requested definition, as at the source."""
    there: Definition | None
    """Existing definition; None: the queue is to be created."""
    differences: list[str]
    """Differences of the existing queue; empty: none."""

    @property
    def half_made(self) -> bool:
        """True if the existing queue lacks only references to other queues, which are set last."""
        if self.there is None or not self.differences:
            return False
        wanted = ArnMapping(self.wanted.arn, self.there.arn).mapped(self.wanted)
        has = {
            name: value
            for name, value in wanted.attributes.items()
            if name not in BOUND or name in self.there.attributes
        }
        return not differences(dataclasses.replace(wanted, attributes=has), self.there)

    def result(self, existing: Existing) -> Definition:
        """Definition of the queue that messages will be sent to."""
        return self.wanted if self.there is None or existing == "update" else self.there


class TargetService:
    """The account of the signing key."""

    def __init__(self, client: RestClient) -> None:
        self._client = client

    @property
    def endpoint(self) -> str:
        return self._client.endpoint

    # --- queues -------------------------------------------------------------------------------------------

    def find(self, name: str, account: str | None = None) -> Definition | None:
        """Read a queue; None: it does not exist.  Raises :class:`CommandFailed`."""
        try:
            shown = persistently(lambda: self._client.call("GET", "queues", name, query={"account": account}))
        except CommandFailed as error:
            if error.code == NOT_FOUND:
                return None
            raise
        return _definition(name, shown)

    def plan(self, wanted: Definition) -> Planned:
        """Plan a queue.  Raises :class:`CommandFailed`."""
        there = self.find(wanted.name)
        if there is None:
            return Planned(wanted, None, [])
        return Planned(wanted, there, differences(ArnMapping(wanted.arn, there.arn).mapped(wanted), there))

    def make(self, planned: Sequence[Planned], existing: Existing) -> None:
        """Create and change queues as planned: first all of them, then their references to others.

        Queues created by an interrupted try are found, and completed.  Raises :class:`CommandFailed`.
        """
        made: list[tuple[Definition, Definition]] = []
        for one in planned:
            if one.there is None:
                made.append((one.wanted, self._create(one.wanted)))
            elif one.differences and existing == "update":
                mapped = ArnMapping(one.wanted.arn, one.there.arn).mapped(one.wanted)
                self._update(mapped, one.there)
                made.append((one.wanted, one.there))
        for name in BOUND:
            for wanted, there in made:
                value = ArnMapping(wanted.arn, there.arn).mapped(wanted).attributes.get(name, "")
                if value != there.attributes.get(name, ""):
                    self._set(wanted.name, {name: value})

    def _create(self, wanted: Definition) -> Definition:
        plain = {name: value for name, value in wanted.attributes.items() if name not in BOUND}
        tags = dict(wanted.tags)
        persistently(lambda: self._client.sqs("CreateQueue", QueueName=wanted.name, Attributes=plain, tags=tags))
        there = self.find(wanted.name)
        if there is None:
            raise CommandFailed(f"the queue {wanted.name} was created, and deleted by another user")
        return there

    def _update(self, wanted: Definition, there: Definition) -> None:
        """Change everything except references to other queues."""
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

    def send_one(self, name: str, message: MessageContent, token: str) -> None:
        """Store a message of a standard queue.  A repetition with its token within 60 s does not store it
        twice.

        Raises :class:`CommandFailed`.
        """
        entry = message.entry("0", fifo=False)
        del entry["Id"]
        persistently(lambda: self._client.sqs("SendMessage", QueueUrl=name, token=token, **entry))

    def send(self, name: str, messages: Sequence[MessageContent], token: str, *, fifo: bool) -> None:
        """Store the messages of a batch.  A repetition with its token within 60 s stores none of them twice.

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
    """Group items into batches of limited number and size, in order; each item comes with its bytes."""
    batch: list[_T] = []
    total = 0
    for one, size in messages:
        if batch and (len(batch) == BATCH_MAX or total + size > BATCH_BYTES_MAX):
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
    """The attributes that can be set."""
    return {name: value for name, value in values.items() if name in attributes.SETTABLE}


def place_of(text: str) -> QueueArn:
    """Parse the ARN of a queue.  Raises :class:`ValueError`."""
    found = parse(text)
    if found is None:
        raise ValueError(f"{text!r} is not the ARN of a queue")
    return found

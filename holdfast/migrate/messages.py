"""A message to be sent to a Holdfast, and its entry in SendMessageBatch."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any, NamedTuple

from frontend.sqs.protocol import limits, validation
from frontend.sqs.protocol.errors import SqsError


class Unsendable(Exception):
    """The service would refuse the message; the text says why."""


class MessageContent(NamedTuple):
    """The parts of a message that can be sent."""

    body: str
    attributes: dict[str, tuple[str, str | bytes]]
    """Type and value of attributes by name."""
    group: str | None
    deduplication_id: str | None
    trace_header: str | None
    delay_seconds: int | None
    """Delay; None: the queue's own."""

    def check(self, *, fifo: bool, delay_max: int, bytes_max: int) -> int:
        """Validate the message for a queue of this kind; returns its size in bytes that counts towards limits.

        Raises :class:`Unsendable`.
        """
        try:
            size = self._checked_size(fifo, delay_max)
        except SqsError as error:
            raise Unsendable(error.message.rstrip(".")) from None
        except UnicodeEncodeError:
            raise Unsendable("a text contains half of a surrogate pair") from None
        if size > bytes_max:
            raise Unsendable(f"it has {size} bytes, and the queue accepts at most {bytes_max}")
        return size

    def _checked_size(self, fifo: bool, delay_max: int) -> int:
        if not self.body:
            raise Unsendable("its body is empty")
        body = self.body.encode()
        validation.check_body(body)
        validation.delay_seconds(self.delay_seconds, delay_max, fifo)
        if self.group is not None:
            validation.group_id(self.group)
        elif fifo:
            raise Unsendable("it has no message group, and the queue is a FIFO queue")
        if self.deduplication_id is not None:
            validation.deduplication_id(self.deduplication_id)
        elif fifo:
            raise Unsendable("it has no deduplication id, and the queue is a FIFO queue")
        if self.trace_header is not None:
            validation.trace_header(_described({validation.TRACE_HEADER: ("String", self.trace_header)}, binary=True))
        return len(body) + validation.size_of(validation.message_attributes(_described(self.attributes, binary=True)))

    def entry(self, id_: str, *, fifo: bool) -> dict[str, Any]:
        """Entry of a SendMessageBatch in JSON."""
        entry: dict[str, Any] = {"Id": id_, "MessageBody": self.body}
        if self.attributes:
            entry["MessageAttributes"] = _described(self.attributes, binary=False)
        if self.trace_header is not None:
            trace = {validation.TRACE_HEADER: ("String", self.trace_header)}
            entry["MessageSystemAttributes"] = _described(trace, binary=False)
        if self.group is not None:
            entry["MessageGroupId"] = self.group
        if fifo:
            entry["MessageDeduplicationId"] = self.deduplication_id
        elif self.delay_seconds is not None:
            entry["DelaySeconds"] = self.delay_seconds
        return entry


def _described(attributes: Mapping[str, tuple[str, str | bytes]], *, binary: bool) -> dict[str, dict[str, Any]]:
    """Attributes in SQS's format; ``binary``: bytes unchanged, not in base64."""
    return {
        name: {"DataType": type_, "BinaryValue": value if binary else b64encode(value).decode()}
        if isinstance(value, bytes)
        else {"DataType": type_, "StringValue": value}
        for name, (type_, value) in attributes.items()
    }


BATCH_MAX = limits.BATCH_ENTRIES_MAX
BATCH_BYTES_MAX = limits.MESSAGE_BYTES_MAX

"""File format of an exported queue: JSON lines.

The first line is the queue, the last one the end; between them is one line per message, in the order in which
they were stored.  A file without an end line is incomplete.  Unknown members are refused, so that misspelt ones
are noticed; another set of members needs another version.
"""

from __future__ import annotations

import hashlib
import math
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from holdfast.commandline.client import CommandFailed
from holdfast.migrate.messages import MessageContent

VERSION = 1
LINE_BYTES_MAX = 8 << 20
"""Maximum length of a line: a body of 1 MiB with each character escaped, and its attributes."""


class QueueDefinitionLine(msgspec.Struct, tag="queue", tag_field="type", forbid_unknown_fields=True):
    """The first line."""

    version: int
    name: str
    arn: str
    """ARN of the exported queue, as in its policies."""
    attributes: dict[str, str]
    """Attributes that can be set, with their defaults."""
    tags: dict[str, str]
    dead_letter_queue: str | None
    """Name of the dead-letter queue, for readers; RedrivePolicy is authoritative."""
    exported: str
    """Time of the export."""


class Value(msgspec.Struct, forbid_unknown_fields=True):
    """Value of a message attribute; a Binary value is in base64."""

    type: str
    value: str


class MessageLine(msgspec.Struct, tag="message", tag_field="type", forbid_unknown_fields=True, kw_only=True):
    """A message.  Times are in seconds since the epoch.  Members that a send cannot set are informative."""

    body: str
    attributes: dict[str, Value] = {}
    group: str | None = None
    deduplication_id: str | None = None
    trace_header: str | None = None
    state: str = "visible"
    due: float | None = None
    id: str | None = None
    sent: float | None = None
    receives: int | None = None
    first_received: float | None = None
    sequence_number: str | None = None
    sender: str | None = None
    origin: str | None = None


class UnreadableLine(msgspec.Struct, tag="unreadable", tag_field="type", forbid_unknown_fields=True):
    """Placeholder for a message that the service could not read."""

    id: str


class EndLine(msgspec.Struct, tag="end", tag_field="type", forbid_unknown_fields=True):
    """The last line."""

    messages: int
    unreadable: int


Line = QueueDefinitionLine | MessageLine | UnreadableLine | EndLine
encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Line).decode


class BadLine(Exception):
    """A malformed line; the text says what is wrong."""


class NumberedLine(NamedTuple):
    """A line of a file."""

    number: int
    """Line number, from 1."""
    end: int
    """Position of the next line in bytes."""
    line: Line | BadLine


class FileSummary(NamedTuple):
    """Summary of a file."""

    queue: QueueDefinitionLine
    digest: str
    """Digest of the whole file."""
    messages: int
    unreadable: int
    first: int
    """Position of the line after the queue's."""


def read(file: BinaryIO, number: int, digest: hashlib._Hash | None = None) -> Iterator[NumberedLine]:
    """Read lines from the current position; the first one has this number."""
    position = file.tell()
    while text := file.readline(LINE_BYTES_MAX + 1):
        position += len(text)
        if digest is not None:
            digest.update(text)
        yield NumberedLine(number, position, _line(text))
        if len(text) > LINE_BYTES_MAX:
            return
        number += 1


def _line(text: bytes) -> Line | BadLine:
    if len(text) > LINE_BYTES_MAX:
        return BadLine(f"it is longer than {LINE_BYTES_MAX >> 20} MiB")
    if not text.endswith(b"\n"):
        return BadLine("it is incomplete: a line ends with a line feed")
    try:
        line: Line = _decode(text)
    except msgspec.DecodeError as error:
        return BadLine(str(error))
    except RecursionError:
        return BadLine("it is nested too deeply")
    return line


def message_of(line: MessageLine, now: float, *, fifo: bool) -> MessageContent:
    """Message to send for a line.  ``now``: time to compute the remaining delay from.  Raises :class:`BadLine`."""
    attributes: dict[str, tuple[str, str | bytes]] = {}
    for name, value in line.attributes.items():
        content: str | bytes = value.value
        if value.type.startswith("Binary"):
            try:
                content = b64decode(value.value, validate=True)
            except ValueError:
                raise BadLine(f"the value of the attribute {name!r} is not base64") from None
        attributes[name] = (value.type, content)
    delay = 0
    if line.state == "delayed" and line.due is not None:
        delay = max(0, math.ceil(min(line.due - now, 1e9)))
    # The queue's own delay has already elapsed at the source.
    return MessageContent(
        line.body, attributes, line.group, line.deduplication_id, line.trace_header, None if fifo else delay
    )


def opened(path: Path) -> BinaryIO:
    """Open a file.  Raises :class:`CommandFailed`."""
    try:
        return path.open("rb")
    except OSError as error:
        raise CommandFailed(f"the file {path} cannot be read: {error.strerror}") from None

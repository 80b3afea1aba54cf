"""``holdfast import file``: queues from files written by ``holdfast export``.

First every line of every file is read and checked, and existing queues are compared with the requested ones;
nothing is changed before.  Then queues are created, and messages sent, in order and in batches.

Guarantees
----------
- Every message of the file is stored, in the file's order within each message group of a FIFO queue.
- Repeating an interrupted import continues it: ``FILE.progress`` records its progress.  At most one batch of
  ten messages is then in doubt, and sent again with the same token.  The service recognizes it for 60 s
  (``send_retry_window_seconds``), messages of a FIFO queue for five minutes by their deduplication ids.  Later,
  the messages of this batch may be duplicated, and the batch is reported.
- Message ids, times, receive counts and senders are new.  Delayed messages wait for the rest of their delay.
  Messages that were in flight are visible.

Two messages of a FIFO queue may have the same deduplication id, if they were sent more than five minutes apart.
Sent within five minutes the second one would be dropped as a duplicate, so it gets an id of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.commandline.base import Parsed, print_result
from holdfast.commandline.client import USAGE, CommandFailed
from holdfast.commandline.progress import Progress
from holdfast.migrate import file_format
from holdfast.migrate.definition import Definition, portable
from holdfast.migrate.file_format import (
    BadLine,
    EndLine,
    MessageLine,
    NumberedLine,
    QueueDefinitionLine,
    UnreadableLine,
)
from holdfast.migrate.messages import MessageContent, Unsendable
from holdfast.migrate.plans import describe_plan, lines_of
from holdfast.migrate.progress_file import ProgressFile
from holdfast.migrate.target import EntryRefused, TargetService, batches, place_of, settable

if TYPE_CHECKING:
    from typing import BinaryIO

    from holdfast.commandline.client import RestClient

PROBLEMS_SHOWN = 20
_RETRY_WINDOW_SECONDS = 60
_FIFO_WINDOW_SECONDS = 300
_FILTER_BITS = 27
"""Bits of a deduplication id's hash: the filter that finds repeated ids takes 16 MiB."""


class _Header(msgspec.Struct, frozen=True):
    """Header of a progress file: identifies the import."""

    digest: str
    endpoint: str
    queue: str
    skip_in_flight: bool


class _Sending(msgspec.Struct, tag="sending"):
    """Start of sending a batch."""

    number: int
    """Line number of its first message."""
    now: float
    """Time that the messages' delays are relative to."""


class _Sent(msgspec.Struct, tag="sent"):
    """Everything before this line is stored."""

    number: int
    offset: int
    messages: int
    """Number of messages stored so far."""


@dataclass
class _File:
    """A checked file."""

    path: Path
    queue: QueueDefinitionLine
    wanted: Definition
    left: tuple[str, ...]
    digest: str = ""
    first: int = 0
    """Position of the second line."""
    messages: int = 0
    in_flight: int = 0
    unreadable: int = 0
    by_group: bool = False
    """True if the queue deduplicates per message group."""
    twins: dict[bytes, int] = field(default_factory=dict)
    """First line of each deduplication id that may be repeated."""

    @property
    def fifo(self) -> bool:
        return self.wanted.fifo

    def key_of(self, line: MessageLine) -> bytes:
        """Key of deduplication for a message."""
        scope = line.group or "" if self.by_group else ""
        return blake2b(f"{scope}\0{line.deduplication_id}".encode(errors="replace"), digest_size=16).digest()


def import_files(client: RestClient, parsed: Parsed) -> None:
    """Run the command.  Raises :class:`CommandFailed`."""
    if parsed.progress is not None and len(parsed.files) > 1:
        raise CommandFailed(
            "--progress is for one file; without it each file has its own progress file beside it", USAGE
        )
    target, progress = TargetService(client), Progress()
    files = [_opened(path) for path in parsed.files]
    names = [one.queue.name for one in files]
    if len(set(names)) < len(names):
        raise CommandFailed("two of the files are of the same queue")
    planned = [target.plan(one.wanted) for one in files]
    for one, plan in zip(files, planned, strict=True):
        progress.step(f"Reading {one.path}")
        one.by_group = plan.result(parsed.existing).attributes.get("DeduplicationScope") == "messageGroup"
        _check(one, plan.result(parsed.existing), progress, parsed)
    progress.done()
    notes = [[*one.left, *_notes(one)] for one in files]
    document, refusal = describe_plan(target, planned, notes, parsed.existing)
    document["messages"] = {one.queue.name: one.messages for one in files}
    if parsed.dry_run or refusal:
        for one in files:
            document["queues"][one.queue.name]["messages"] = one.messages
        print_result(parsed, document, lambda: lines_of(document))
        if refusal:
            raise CommandFailed(refusal)
        return
    sent = dict.fromkeys(names, 0)
    with ExitStack() as stack:
        senders = [] if parsed.definition_only else [_Sender(stack, target, one, parsed, progress) for one in files]
        target.make(planned, parsed.existing)
        for sender, name in zip(senders, names, strict=False):
            sent[name] = sender.send()
    progress.done()
    print_result(
        parsed,
        {"queues": {name: {"messages": count} for name, count in sent.items()}},
        lambda: "\n".join(f"{count} messages are in queue {name}." for name, count in sent.items()),
    )


# --- reading -----------------------------------------------------------------------------------------------


def _opened(path: Path) -> _File:
    """Read the file's first line.  Raises :class:`CommandFailed`."""
    with file_format.opened(path) as file:
        first = next(file_format.read(file, 1), None)
    if first is None:
        raise CommandFailed(f"{path} is empty")
    line = first.line
    if isinstance(line, BadLine):
        raise CommandFailed(f"{path}, line 1: {line}")
    if not isinstance(line, QueueDefinitionLine):
        raise CommandFailed(f"{path}, line 1: it has to be the definition of the queue, as holdfast export writes it")
    if line.version != file_format.VERSION:
        raise CommandFailed(f"{path} has format version {line.version}, and this program reads {file_format.VERSION}")
    try:
        where = place_of(line.arn)
    except ValueError as error:
        raise CommandFailed(f"{path}, line 1: {error}") from None
    strange = sorted(line.attributes.keys() - settable(line.attributes).keys())
    if strange:
        raise CommandFailed(f"{path}, line 1: the attributes {', '.join(strange)} cannot be set")
    found = portable(Definition(line.name, where, line.attributes, line.tags))
    return _File(path, line, found.definition, found.left, first=first.end)


def _check(one: _File, queue: Definition, progress: Progress, parsed: Parsed) -> None:
    """Check every line.  Raises :class:`CommandFailed`, which describes the first bad lines."""
    problems: list[str] = []
    more = 0
    digest = sha256()
    filter_ = _Filter() if one.fifo else None
    end: EndLine | None = None
    now = time.time()
    number = 0
    with file_format.opened(one.path) as file:
        for number, _, line in file_format.read(file, 1, digest):
            try:
                if end is not None:
                    raise BadLine("it is after the end line")
                if isinstance(line, EndLine):
                    end = line
                else:
                    _check_line(one, number, line, queue, now, parsed)
                if filter_ is not None and isinstance(line, MessageLine):
                    filter_.add(one.key_of(line))
            except (BadLine, Unsendable) as error:
                more += len(problems) == PROBLEMS_SHOWN
                problems += [f"{one.path}, line {number}: {error}"][: PROBLEMS_SHOWN - len(problems)]
            if not number % 10_000:
                progress.within(f"{number:,} lines")
    counted = (one.messages, one.unreadable)
    if not problems and end is None:
        problems.append(
            f"{one.path}, line {number}: the end line is missing, so the file is incomplete; export the queue again"
        )
    elif not problems and end is not None and (end.messages, end.unreadable) != counted:
        problems.append(
            f"{one.path}, line {number}: the end line counts {end.messages} messages and {end.unreadable} "
            f"unreadable ones, but the file has {counted[0]} and {counted[1]}"
        )
    if problems:
        progress.done()
        further = [f"and {more} more lines"] if more else []
        raise CommandFailed("\n  ".join([f"{one.path} is not imported, and nothing was changed:", *problems, *further]))
    if parsed.skip_in_flight:
        one.messages -= one.in_flight
    one.digest = digest.hexdigest()
    if filter_ is not None and filter_.several:
        one.twins = _firsts(one, filter_.several)


def _check_line(
    one: _File, number: int, line: file_format.Line | BadLine, queue: Definition, now: float, parsed: Parsed
) -> None:
    """Check a line.  Raises :class:`BadLine` and :class:`Unsendable`."""
    match line:
        case BadLine():
            raise line
        case QueueDefinitionLine():
            if number > 1:
                raise BadLine("only the first line can be a queue")
        case UnreadableLine():
            one.unreadable += 1
        case MessageLine():
            one.messages += 1
            one.in_flight += line.state in ("in_flight", "moving")
            message = file_format.message_of(line, now, fifo=one.fifo)
            message.check(fifo=one.fifo, delay_max=queue.delay_max, bytes_max=queue.bytes_max)


class _Filter:
    """Finds keys that may be repeated, in bounded memory."""

    def __init__(self) -> None:
        self._bits = bytearray(1 << (_FILTER_BITS - 3))
        self.several: set[bytes] = set()

    def add(self, key: bytes) -> None:
        place = int.from_bytes(key[:4], "big") >> (32 - _FILTER_BITS)
        mask = 1 << (place & 7)
        if self._bits[place >> 3] & mask:
            self.several.add(key)
        self._bits[place >> 3] |= mask


def _firsts(one: _File, keys: set[bytes]) -> dict[bytes, int]:
    """First line of each of these keys."""
    found: dict[bytes, int] = {}
    with file_format.opened(one.path) as file:
        for number, _, line in file_format.read(file, 1):
            if isinstance(line, MessageLine) and (key := one.key_of(line)) in keys:
                found.setdefault(key, number)
    return found


def _notes(one: _File) -> list[str]:
    """Notes for the user on the file's messages."""
    notes = []
    if one.unreadable:
        notes.append(f"{one.unreadable} messages could not be read at the export, and are not in the file")
    if one.in_flight:
        notes.append(f"{one.in_flight} messages were in flight at the export: their receivers may have processed them")
    return notes


# --- sending -----------------------------------------------------------------------------------------------


class _Sender:
    """Sends the messages of one file."""

    def __init__(self, stack: ExitStack, target: TargetService, one: _File, parsed: Parsed, progress: Progress) -> None:
        """Open the progress file.  Raises :class:`CommandFailed`."""
        self._target = target
        self._file = one
        self._skip = bool(parsed.skip_in_flight)
        self._progress = progress
        header = _Header(one.digest, target.endpoint, one.queue.name, self._skip)
        path = parsed.progress or one.path.with_name(f"{one.path.name}.progress")
        self._journal = stack.enter_context(ProgressFile.opened(path, header, _Header, _Sending | _Sent))
        name = f"{one.digest}\0{one.queue.name}\0{self._skip}"
        self._token = f"import:{blake2b(name.encode(), digest_size=20).hexdigest()}"

    def send(self) -> int:
        """Send the messages; returns their number, including those of earlier tries.

        Raises :class:`CommandFailed`.
        """
        one, journal = self._file, self._journal
        with file_format.opened(one.path) as file:
            done, doubtful = _Sent(2, one.first, 0), None
            for entry in journal.entries:
                if isinstance(entry, _Sent):
                    done, doubtful = entry, None
                else:
                    doubtful = entry
            if journal.entries:
                self._progress.step(f"Continuing at line {done.number} of {one.path}")
            if doubtful is not None:
                self._log_doubt(doubtful)
            file.seek(done.offset)
            self._progress.step(f"Sending to queue {one.queue.name}")
            sent = done.messages
            for batch in batches(self._messages(file, done.number)):
                sent += len(batch)
                self._send(batch, doubtful, sent)
                doubtful = None
                self._progress.within(f"{sent:,} of {one.messages:,} messages")
        return sent

    def _messages(self, file: BinaryIO, number: int) -> Iterator[tuple[NumberedLine, int]]:
        """Lines with messages to send, each with its size in bytes."""
        for read in file_format.read(file, number):
            line = read.line
            if isinstance(line, BadLine):
                raise self._changed(read, line)
            if isinstance(line, MessageLine) and not (self._skip and line.state in ("in_flight", "moving")):
                try:
                    message = self._message(read, line, time.time())
                    yield read, message.check(fifo=self._file.fifo, delay_max=1 << 31, bytes_max=1 << 31)
                except (BadLine, Unsendable) as error:
                    raise self._changed(read, error) from None

    def _message(self, read: NumberedLine, line: MessageLine, now: float) -> MessageContent:
        one = self._file
        message = file_format.message_of(line, now, fifo=one.fifo)
        if one.twins and one.twins.get(one.key_of(line), read.number) != read.number:
            own = sha256(f"{line.deduplication_id}\0{read.number}".encode()).hexdigest()
            message = message._replace(deduplication_id=own)
        return message

    def _changed(self, read: NumberedLine, error: Exception) -> CommandFailed:
        return CommandFailed(f"{self._file.path} was changed while it was read: line {read.number}: {error}")

    def _send(self, batch: Sequence[NumberedLine], again: _Sending | None, sent: int) -> None:
        """Send a batch; ``again``: it may have been sent before, and is sent unchanged so that its token matches."""
        one, journal, first, last = self._file, self._journal, batch[0].number, batch[-1]
        now = time.time() if again is None else again.now
        if again is None:
            journal.write(_Sending(first, now))
        messages = [self._message(read, read.line, now) for read in batch if isinstance(read.line, MessageLine)]
        try:
            self._target.send(one.queue.name, messages, f"{self._token}:{first}", fifo=one.fifo)
        except EntryRefused as error:
            line = batch[error.place].number
            raise CommandFailed(
                f"line {line} of {one.path} is refused: {error}; other messages of lines {first} to "
                f"{last.number} are stored"
            ) from None
        except CommandFailed as error:
            raise CommandFailed(
                f"lines {first} to {last.number} of {one.path} are not sent, or their state is unknown: "
                f"{error}; earlier messages are stored, and the same command continues from here",
                error.code,
            ) from None
        journal.write(_Sent(last.number + 1, last.end, sent))

    def _log_doubt(self, doubtful: _Sending) -> None:
        window = _FIFO_WINDOW_SECONDS if self._file.fifo else _RETRY_WINDOW_SECONDS
        ago = time.time() - doubtful.now
        if ago > window:
            self._progress.step(
                f"The batch from line {doubtful.number} on was being sent when the import was interrupted, {ago:.0f} s "
                "ago: up to 10 messages from there on may be in the queue twice"
            )

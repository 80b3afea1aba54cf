"""Backup of a data folder, while the service runs or not.

**The moment.**  The metadata's file is locked for some milliseconds.  During that a moment is found at which
none of the logs grew (:mod:`backend.journal.local.tail`): the metadata and the logs up to their ends are together the
state that a kill of all processes would have left at that moment, and from which a start recovers.  Everything
else that the metadata refer to, closed segments and checkpoints, never changes.  So the files can be copied
without haste, because a pin set at the same moment protects them from deletion by the service.

Why no message is lost or duplicated: a recovery after a kill would keep the same, and that is the journal's
purpose.  A message that moves between queues is in the logs in its state at that one moment; a queue created
later has no records in any log up to there; and of a queue deleted later, both records and metadata are there.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from backend.journal.local.extents import FOLDER as EXTENTS
from backend.journal.local.journal import folder_of
from backend.journal.local.segments import segment_name
from backend.journal.local.tail import LogTail, stand_still
from backend.recovery.checkpointer import pins_of
from holdfast import __version__
from holdfast.backup import manifest as manifests
from holdfast.backup.kept import BackupResult, CannotBackUp, Report, finish, now_ms, quietly, store, written_to
from holdfast.backup.manifest import Manifest
from holdfast.backup.signature import ManifestSigner
from holdfast.backup.target import CHUNK_BYTES, BackupTarget
from metadata_service.models import BackupPin, LogEntry, ShardEntry
from metadata_service.sqlite.copy import MetadataFile
from metadata_service.topics import is_hidden

PIN_SECONDS: Final = 600.0
"""Time after which the pin of a killed backup is void."""
PUT_OFF_SECONDS: Final = 30.0
TRIES: Final = 64
"""Number of attempts to find a moment without log growth, while the metadata are locked."""
ROUNDS: Final = 100
"""Number of rounds of such attempts, with a pause between two in which metadata can be changed."""
ROUND_PAUSE_SECONDS: Final = 0.05
SCRATCH: Final = ".backup-"
"""Prefix of temporary folders in the data folder, for the copy of the metadata."""


class _Part(NamedTuple):
    """A file to be copied, up to a size: data behind it were written after the moment."""

    path: str
    size_bytes: int


class _Moment(NamedTuple):
    moment_ms: int
    parts: list[_Part]
    folders: list[str]
    missing: list[str]


def take(
    data: Path,
    target: BackupTarget,
    *,
    keep: int | None = None,
    signer: ManifestSigner | None = None,
    report: Report = lambda text: None,
) -> BackupResult:
    """Take a backup of the data folder.  ``keep``: number of backups to keep in the target; older ones are
    removed.

    An interrupted run leaves the target's backups unchanged, and the next one uses what it has copied.  Raises
    :class:`CannotBackUp`, :class:`~holdfast.backup.target.TargetUnusable`,
    :class:`~metadata_service.store.StoreError`.
    """
    name, started_at = manifests.new_name(), now_ms()
    with ExitStack() as stack:
        stack.enter_context(written_to(target, name))
        metadata = MetadataFile(data / "metadata.sqlite")
        stack.callback(metadata.close)
        pin = BackupPin(name, 0, ())
        stack.callback(quietly, lambda: metadata.unpin(lambda one: one.name == name))
        moment, pin = _moment(data / "journal", metadata, pin, report)
        masters = metadata.master_ids()
        queues = sum(not is_hidden(queue.name) for queue in metadata.queues())
        topics = len(metadata.streams())
        copies = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=SCRATCH, dir=data)))
        copy = copies / "metadata.sqlite"
        metadata.copy_to(copy)
        metadata.forget()
        pinned = _Pinned(metadata, pin)
        wanted = [(data / part.path, part) for part in moment.parts]
        wanted.append((copy, _Part("metadata.sqlite", copy.stat().st_size)))
        total, done, written = sum(part.size_bytes for _, part in wanted), 0, 0
        files = []
        for source, part in wanted:
            report(f"{done >> 20} of {total >> 20} MiB, {part.path}")
            file, new_bytes = store(target, part.path, partial(_chunks, source, part, pinned.keep), str(source))
            files.append(file)
            done += part.size_bytes
            written += new_bytes
        pinned.check()
        manifest = Manifest(
            name=name,
            version=__version__,
            schema=metadata.schema,
            started_ms=started_at,
            moment_ms=moment.moment_ms,
            ended_ms=now_ms(),
            queues=queues,
            topics=topics,
            master_keys=tuple(masters),
            folders=tuple(moment.folders),
            files=tuple(files),
            missing=tuple(moment.missing),
        )
        removed, left = finish(target, manifest, keep, signer)
    return BackupResult(manifest, written, removed, left)


class _Pinned:
    """Renews the pin while files are copied."""

    def __init__(self, metadata: MetadataFile, pin: BackupPin) -> None:
        self._metadata = metadata
        self._pin = pin
        self._reported_at = time.monotonic()

    def keep(self) -> None:
        if time.monotonic() - self._reported_at > PUT_OFF_SECONDS:
            self.check()

    def check(self) -> None:
        self._pin = BackupPin(self._pin.name, _until_ms(), self._pin.logs)
        self._reported_at = time.monotonic()
        if not self._metadata.put_off(self._pin):
            raise CannotBackUp(
                "the pin that protects the copied data was removed meanwhile: was the data folder restored, or "
                "`holdfast doctor --mend` run?  Take the backup again"
            )


def _moment(journal: Path, metadata: MetadataFile, pin: BackupPin, report: Report) -> tuple[_Moment, BackupPin]:
    """Find the moment, and pin the files it needs."""
    tails: dict[str, LogTail] = {}
    try:
        for tries in range(ROUNDS):
            if tries:
                report("all logs grew at every attempt: trying again")
                time.sleep(ROUND_PAUSE_SECONDS)
            try:
                # Reading the rows of the last segments takes longer, so it is done before the metadata are locked.
                metadata.forget()
                _follow(journal, metadata.logs(), tails)
                with metadata.held():
                    logs, shards = metadata.logs(), metadata.shards()
                    _follow(journal, logs, tails)
                    if not stand_still(list(tails.values()), TRIES):
                        continue
                    moment = _at_this_moment(journal, logs, shards, tails)
                    pin = BackupPin(pin.name, _until_ms(), _last_of(journal, logs))
                    metadata.pin(pin)
            except FileNotFoundError:
                continue  # a segment was deleted between two reads, before the lock
            return moment, pin
    except OSError as error:
        raise CannotBackUp(f"the journal cannot be read: {error}") from error
    finally:
        for tail in tails.values():
            tail.close()
    raise CannotBackUp(
        "no moment was found at which no log grew: many backends are under heavy load.  Nothing was changed; "
        "try again under less load"
    )


def _follow(journal: Path, logs: list[LogEntry], tails: dict[str, LogTail]) -> None:
    """Follow exactly the logs that may still be written."""
    wanted = {folder_of(entry): entry for entry in logs if entry.state != "sealed"}
    for folder in set(tails) - set(wanted):
        tails.pop(folder).close()
    for folder, entry in wanted.items():
        if folder not in tails:
            segments = _numbers(journal / folder, "", ".log")
            if not segments:
                continue  # it has not started
            used = [number for number in segments if _is_used(journal / folder / segment_name(number))]
            tails[folder] = LogTail(str(journal / folder), entry.log_id, max(used, default=segments[0]))
    for tail in tails.values():
        tail.catch_up()


def _is_used(segment: Path) -> bool:
    with open(segment, "rb", buffering=0) as file:
        return any(file.read(8))


def _numbers(folder: Path, before: str, behind: str) -> list[int]:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    middles = (name[len(before) : -len(behind)] for name in names if name.startswith(before) and name.endswith(behind))
    return sorted(int(middle) for middle in middles if middle.isdigit())


def _chunk_files(folder: Path) -> list[int]:
    return _numbers(folder, "ckpt-", ".bin")


def _last_of(journal: Path, logs: list[LogEntry]) -> tuple[tuple[int, int, int], ...]:
    """For each log with files, the number of its last segment and of its last checkpoint file."""
    last = []
    for entry in logs:
        folder = journal / folder_of(entry)
        numbers = (max(_numbers(folder, "", ".log"), default=0), max(_chunk_files(folder), default=0))
        if any(numbers):
            last.append((entry.log_id, *numbers))
    return tuple(last)


def _at_this_moment(
    journal: Path, logs: list[LogEntry], shards: list[ShardEntry], tails: dict[str, LogTail]
) -> _Moment:
    """Files that a recovery would read, with their lengths."""
    pins = pins_of(0, None, {entry.log_id: entry for entry in logs}, shards)
    needed = {file for entry in shards for file in entry.files or ()}
    pointed = {segment for entry in shards for segment in entry.segments()}
    unknown = any(entry.files_unknown for entry in shards)
    parts, folders = [], ["journal"]
    for entry in logs:
        folder = folder_of(entry)
        if not (journal / folder).is_dir():
            continue
        folders.append(f"journal/{folder}")
        tail = tails.get(folder)
        for number in _numbers(journal / folder, "", ".log"):
            if not pins.why(entry.log_id, number):
                continue
            path = f"journal/{folder}/{segment_name(number)}"
            size = os.stat(journal.parent / path).st_size
            pointed.discard((entry.log_id, number))
            if tail is not None and number >= tail.segment:
                if number > tail.segment or not tail.offset:
                    continue  # preallocated
                size = min(size, tail.offset)
            parts.append(_Part(path, size))
        for number in _chunk_files(journal / folder):
            if unknown or (entry.log_id, number) in needed:
                path = f"journal/{folder}/ckpt-{number:08d}.bin"
                parts.append(_Part(path, os.stat(journal.parent / path).st_size))
                needed.discard((entry.log_id, number))
    # Bytes behind the length that the logs have for an extent do not count, and extents that they do not name are
    # deleted by the next start.
    if (journal / EXTENTS).is_dir():
        folders.append(f"journal/{EXTENTS}")
        extents = sorted((journal / EXTENTS).iterdir())
        parts += [_Part(f"journal/{EXTENTS}/{path.name}", path.stat().st_size) for path in extents]
    names = {entry.log_id: folder_of(entry) for entry in logs}
    missing = [f"journal/{names.get(log_id, log_id)}/{segment_name(number)}" for log_id, number in sorted(pointed)]
    missing += [f"journal/{names.get(log_id, log_id)}/ckpt-{number:08d}.bin" for log_id, number in sorted(needed)]
    return _Moment(now_ms(), parts, folders, missing)


def _chunks(source: Path, part: _Part, keep: Callable[[], None]) -> Iterator[bytes]:
    """Content of the file up to the size, without data written behind it."""
    left = part.size_bytes
    try:
        with open(source, "rb", buffering=0) as file:
            while left:
                keep()
                chunk = file.read(min(CHUNK_BYTES, left))
                if not chunk:
                    raise CannotBackUp(
                        f"{source} is shorter than it was: the service needed the space, or was restarted.  {_AGAIN}"
                    )
                # A segment that the service needed no longer may have become another one, of the same length.
                if not os.path.samestat(os.fstat(file.fileno()), os.stat(source)):
                    raise FileNotFoundError
                left -= len(chunk)
                yield chunk
    except FileNotFoundError:
        raise CannotBackUp(
            f"{source} was deleted before it was copied: the service needed the space, or the backup was "
            f"stopped for {PIN_SECONDS / 60:.0f} minutes.  {_AGAIN}"
        ) from None
    except OSError as error:
        raise CannotBackUp(f"{source} cannot be read: {error.strerror}") from error


_AGAIN: Final = "Take the backup again; files that were copied are not copied twice"


def _until_ms() -> int:
    return now_ms() + int(PIN_SECONDS * 1000)

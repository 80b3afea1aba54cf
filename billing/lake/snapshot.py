"""Snapshots in the lake: files that a run writes, and a pointer that names those that are current.

A run writes new files, and then publishes them by replacing the pointer, a small JSON file, atomically.  So a reader
sees all files of one run or none of them, and a run that is killed or repeated leaves at most files that no pointer
names.  :func:`remove_unnamed` removes these, and the files of replaced runs.  A reader whose files are removed reads
those of the new pointer (:func:`read_named`).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from billing.lake.lake import Lake, LakeUnavailable

_STARTED: Final = "%Y%m%dT%H%M%S"
_RUN: Final = re.compile(r"\d{8}T\d{6}-[0-9a-f]{8}\Z", re.ASCII)


class Outrun(Exception):
    """Another run has published meanwhile; nothing was changed."""


class Pointer(Protocol):
    """Content of a pointer: a struct that msgspec encodes."""

    @property
    def run(self) -> str:
        """Name of the run."""


P = TypeVar("P", bound=Pointer)
Named = TypeVar("Named")
Read = TypeVar("Read")


class Snapshot(Generic[P]):
    """The pointer at a path of the lake.  All methods raise :class:`~billing.lake.lake.LakeUnavailable`."""

    def __init__(
        self, lake: Lake, path: str, content: type[P], *, published: str, repair: str, indented: bool = False
    ) -> None:
        """Set up access.

        ``published`` and ``repair``: parts of error texts, such as "2026-11 was rated" and "rate it again".
        """
        self._lake = lake
        self._path = path
        self._content = content
        self._published = published
        self._repair = repair
        self._indented = indented

    def current(self) -> P | None:
        """Return the pointer; None: nothing is published."""
        data = self._lake.read_bytes(self._path)
        try:
            return None if data is None else msgspec.json.decode(data, type=self._content)
        except msgspec.DecodeError as error:
            raise LakeUnavailable(f"{self._path} in the lake is damaged, {self._repair}: {error}") from error

    def publish(self, pointer: P, over: P | None, files: Sequence[str] = ()) -> None:
        """Replace the pointer; it is durable afterwards.

        ``over``: the pointer when the run started, whose run must still be current.  ``files``: files that are made
        durable first, as :meth:`billing.lake.lake.Lake.sync` does.  Raises :class:`Outrun`.
        """
        there = self.current()
        if there is not None and (over is None or there.run != over.run):
            raise Outrun(f"{self._published} meanwhile by the run {there.run}; {self._repair}")
        self._lake.sync(files)
        self._lake.write_bytes(self._path, self._encoded(pointer))

    def create(self, pointer: P) -> None:
        """Publish the only run.  Raises :class:`FileExistsError`, as :meth:`billing.lake.lake.Lake.write_new` does."""
        self._lake.write_new(self._path, self._encoded(pointer))

    def _encoded(self, pointer: P) -> bytes:
        data = msgspec.json.encode(pointer)
        return msgspec.json.format(data, indent=1) if self._indented else data


def new_run(now: datetime) -> str:
    """Name of a run that starts now.  Names sort by start."""
    return f"{_written(now)}-{secrets.token_hex(4)}"


def started_at(run: str) -> datetime:
    """Return the start of a run, in UTC, from its name."""
    return datetime.strptime(run.partition("-")[0], _STARTED).replace(tzinfo=UTC)


def read_named(pointers: Callable[[], Named], read: Callable[[Named], Read], missing: str) -> Read:
    """Read files that pointers name; again if they were replaced, and the files removed, meanwhile.

    ``read`` raises :class:`FileNotFoundError` for a missing file.  If the pointers still name it, raises
    :class:`~billing.lake.lake.LakeUnavailable` with the text ``missing``.
    """
    named = pointers()
    while True:
        try:
            return read(named)
        except FileNotFoundError as error:
            before, named = named, pointers()
            if named == before:
                raise LakeUnavailable(f"{missing} ({error})") from error


def remove_unnamed(lake: Lake, folder: str, named: Collection[str], *, started_before: datetime | None = None) -> int:
    """Remove the files below a folder that are not among ``named``; returns their number.

    ``started_before``: only files in folders of runs that started before this time.
    """
    removed = 0
    for file in lake.files(folder, hidden=True):
        run = file.path.removeprefix(f"{folder}/").partition("/")[0]
        old = started_before is None or (_RUN.match(run) and run < _written(started_before))
        if old and file.path not in named:
            lake.remove(file.path)
            removed += 1
    return removed


def _written(time: datetime) -> str:
    return time.astimezone(UTC).strftime(_STARTED)

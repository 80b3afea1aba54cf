"""Progress of draining one queue: the messages that are stored here and not deleted at the source yet.

A line is written before messages are sent, one when they are stored here, and one when they are deleted at the
source. So after a kill, at any moment, a message that is received again

- is only deleted at the source, if it is known to be stored here;
- is only deleted again, if it was deleted already: a standard queue may return a message once more after that;
- is *in doubt*, if it was being sent: it is sent again, with the same token or deduplication id;
- is sent, if nothing is known of it.

Deduplication ids
-----------------
Two messages of a FIFO queue may have the same deduplication id, if they were sent more than five minutes apart.
Drained within five minutes the second one would be dropped as a duplicate, so it gets an id of its own, and
keeps it when it is sent again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import msgspec

from holdfast.migrate.progress_file import ProgressFile
from holdfast.migrate.source import Arrived

FORGOTTEN_SECONDS = 600
"""Time for which a deduplication id is remembered: twice as long as by the service."""
DELETED_MAX = 100_000
"""Number of messages deleted at the source that are remembered."""
_REWRITTEN_BYTES = 8 << 20


class Header(msgspec.Struct, frozen=True):
    """Header of the file: source and target of the draining."""

    source: str
    arn: str
    target: str


class _Sending(msgspec.Struct, tag="sending"):
    ids: list[str]
    used: list[str]
    """Deduplication ids used here; empty for a standard queue."""
    keys: list[str]
    """Deduplication keys at the source."""
    at: float


class _Sent(msgspec.Struct, tag="sent"):
    ids: list[str]


class _Deleted(msgspec.Struct, tag="deleted"):
    ids: list[str]


class _Tried(NamedTuple):
    """A message that is or was being sent."""

    used: str
    key: str
    at: float


class ResumeLog:
    """Progress file of one queue's draining.  Thread-safe."""

    def __init__(self, path: Path, header: Header, clock: Callable[[], float] = time.time) -> None:
        """Open the file.  Raises :class:`~holdfast.migrate.progress_file.Unusable`."""
        self._header = header
        self._clock = clock
        self._lock = threading.Lock()
        self._tried: dict[str, _Tried] = {}
        self._stored: set[str] = set()
        self._claimed: set[str] = set()
        """Messages that a worker of this process is sending."""
        self._deleted: dict[str, None] = {}
        """The latest messages deleted at the source, the oldest first.  A standard queue may return one again."""
        self._owners: dict[str, tuple[str, float]] = {}
        """Latest message of each deduplication key with its time, the oldest first."""
        self._journal = ProgressFile.opened(path, header, Header, _Sending | _Sent | _Deleted)
        for entry in self._journal.entries:
            if isinstance(entry, _Sending):
                self._note(entry)
            elif isinstance(entry, _Sent):
                self._stored.update(entry.ids)
            else:
                self._forget(entry.ids)
        self._journal.entries = []

    def in_doubt(self) -> list[float]:
        """Sending times of the messages not known to be stored."""
        return [tried.at for id_, tried in self._tried.items() if id_ not in self._stored]

    def is_stored(self, id_: str) -> bool:
        """True if the message is known to be stored here, also if it was deleted at the source since."""
        with self._lock:
            return self._is_stored(id_)

    def claim(self, id_: str) -> bool:
        """Return True if the caller has to send the message: it is not stored here, and no other worker has claimed it.

        A standard queue may return a message to two workers at a time.  The claim ends with :meth:`sent`.
        """
        with self._lock:
            if id_ in self._claimed or self._is_stored(id_):
                return False
            self._claimed.add(id_)
            return True

    def _is_stored(self, id_: str) -> bool:
        return id_ in self._stored or id_ in self._deleted

    def sending(self, messages: Sequence[Arrived], *, by_group: bool) -> list[Arrived]:
        """Record that messages are being sent; returns them as they are to be sent."""
        with self._lock:
            now = self._clock()
            self._forget_owners(now)
            made, used, keys = [], [], []
            for one in messages:
                id_ = one.message.deduplication_id
                key = ""
                if id_ is not None:
                    key = f"{one.message.group}\0{id_}" if by_group else id_
                    id_ = self._id_for(one, id_, key)
                    self._owners.setdefault(key, (one.id, now))
                    used.append(id_)
                    keys.append(key)
                made.append(one._replace(message=one.message._replace(deduplication_id=id_)))
            entry = _Sending([one.id for one in messages], used, keys, now)
            self._note(entry)
            self._write(entry)
            return made

    def _id_for(self, one: Arrived, id_: str, key: str) -> str:
        tried = self._tried.get(one.id)
        if tried is not None:
            return tried.used
        owner = self._owners.get(key)
        if owner is None or owner[0] == one.id:
            return id_
        return sha256(f"{id_}\0{one.id}".encode()).hexdigest()

    def sent(self, messages: Sequence[Arrived]) -> None:
        """Record that messages are stored here."""
        with self._lock:
            ids = [one.id for one in messages]
            self._stored.update(ids)
            self._claimed.difference_update(ids)
            self._write(_Sent(ids))

    def deleted(self, messages: Sequence[Arrived]) -> None:
        """Record that messages are deleted at the source, and will not be received again."""
        with self._lock:
            ids = [one.id for one in messages]
            self._forget(ids)
            self._write(_Deleted(ids))

    def close(self) -> None:
        with self._lock:
            self._journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _note(self, entry: _Sending) -> None:
        used, keys = entry.used or [""] * len(entry.ids), entry.keys or [""] * len(entry.ids)
        for id_, one, key in zip(entry.ids, used, keys, strict=True):
            self._tried.setdefault(id_, _Tried(one, key, entry.at))
            if key:
                self._owners.setdefault(key, (id_, entry.at))

    def _forget(self, ids: Sequence[str]) -> None:
        for id_ in ids:
            self._tried.pop(id_, None)
            self._stored.discard(id_)
            self._deleted[id_] = None
        while len(self._deleted) > DELETED_MAX:
            del self._deleted[next(iter(self._deleted))]

    def _forget_owners(self, now: float) -> None:
        for key, (_, at) in list(self._owners.items()):
            if now - at < FORGOTTEN_SECONDS:
                return
            del self._owners[key]

    def _write(self, entry: msgspec.Struct) -> None:
        self._journal.write(entry)
        if self._journal.written_bytes < _REWRITTEN_BYTES:
            return
        entries: list[msgspec.Struct] = [
            _Sending([id_], [tried.used] if tried.key else [], [tried.key] if tried.key else [], tried.at)
            for id_, tried in self._tried.items()
        ]
        for key, (id_, at) in self._owners.items():
            if id_ not in self._tried:
                entries += [_Sending([id_], [""], [key], at), _Deleted([id_])]
        if self._stored:
            entries.append(_Sent(sorted(self._stored)))
        self._journal.replace(self._header, entries)

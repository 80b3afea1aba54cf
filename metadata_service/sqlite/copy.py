"""Copies of the metadata's SQLite file while a service uses it: a snapshot of one moment, and the changes to a
copy before a service starts with it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from auth.encryption.data_keys import DataKey
from auth.encryption.named_keys import NamedKey
from metadata_service.models import BackupPin, ClusterEntry, LogEntry, Queue, ShardEntry
from metadata_service.opening import CannotOpen
from metadata_service.sqlite.schema import (
    NAMED_KEYS_SINCE,
    SCHEMA,
    STREAMS_SINCE,
    stored_version,
    text,
    update_single,
)
from metadata_service.store import StoreUnavailable
from metadata_service.streams import PRODUCER_COUNTER, Stream

BUSY_SECONDS: Final = 10.0
LOST_EPOCHS: Final = 1 << 12
"""Number by which shards' epochs are raised in a restored copy.  It exceeds any number of restarts and
hand-overs between a backup and its restore, so that message numbers of that time, which clients may still have,
are not reused."""
LOST_IDS: Final = 1 << 16
"""Number by which counters of queue, stream, partition and data key ids are raised, for the same reason."""
LOST_PRODUCER_IDS: Final = 1 << 40
"""Number by which the counter of producer ids is raised: a frontend allocates many at once, and none may have been
given to a producer before."""


class MetadataFile:
    """The metadata file of a service, which may be running."""

    def __init__(self, path: Path) -> None:
        """Open the file without changing its schema.  Raises :class:`~metadata_service.opening.CannotOpen`, also if the
        file belongs to another user, because that user would lose access."""
        owner = _owner(path)
        if owner != os.geteuid():
            raise CannotOpen(
                f"the metadata file {path} belongs to the user with the id {owner}: run the command as this user"
            )
        stored = stored_version(path)
        SCHEMA.check(stored, f"the metadata file {path}")
        self.schema = stored.version
        self._path = path
        self._writer, self._reader = _connect(path), _connect(path)

    def close(self) -> None:
        for connection in (self._writer, self._reader):
            connection.close()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Block all other writers, and fix the snapshot that this object's readers see: also afterwards, until
        :meth:`forget` or the next call.

        Writers wait for some seconds at most.  Raises :class:`~metadata_service.store.StoreUnavailable`.
        """
        self.forget()
        with _typed_errors(self._path):
            self._writer.execute("BEGIN IMMEDIATE")
        try:
            with _typed_errors(self._path):
                self._reader.execute("BEGIN")
                self._reader.execute("SELECT version FROM schema_version").fetchone()
            yield
        except BaseException:
            self._writer.execute("ROLLBACK")
            raise
        with _typed_errors(self._path):
            self._writer.execute("COMMIT")

    def forget(self) -> None:
        """End the snapshot: readers see the current data."""
        if self._reader.in_transaction:
            self._reader.execute("ROLLBACK")

    # --- readers ---

    def logs(self) -> list[LogEntry]:
        rows = self._reader.execute("SELECT record FROM logs ORDER BY log_id").fetchall()
        return [msgspec.json.decode(record, type=LogEntry) for (record,) in rows]

    def shards(self) -> list[ShardEntry]:
        rows = self._reader.execute("SELECT record FROM shards ORDER BY shard").fetchall()
        return [msgspec.json.decode(record, type=ShardEntry) for (record,) in rows]

    def queues(self) -> list[Queue]:
        rows = self._reader.execute("SELECT record FROM queues ORDER BY account, name").fetchall()
        return [msgspec.json.decode(record, type=Queue) for (record,) in rows]

    def streams(self) -> list[Stream]:
        if self.schema < STREAMS_SINCE:
            return []
        rows = self._reader.execute("SELECT record FROM streams ORDER BY account, name").fetchall()
        return [msgspec.json.decode(record, type=Stream) for (record,) in rows]

    def master_ids(self) -> list[str]:
        """Ids of the master keys that wrap data keys."""
        rows = self._reader.execute("SELECT record FROM data_keys").fetchall()
        keys = [msgspec.json.decode(record, type=DataKey) for (record,) in rows]
        if self.schema >= NAMED_KEYS_SINCE:
            for (record,) in self._reader.execute("SELECT record FROM named_keys").fetchall():
                keys += msgspec.json.decode(record, type=NamedKey).versions
        return sorted({key.master_id for key in keys if key.wrapped})

    def pins(self) -> tuple[BackupPin, ...]:
        return _cluster(self._reader).pins

    def faults(self) -> str:
        """Damage found by SQLite, in its words; empty if there is none.  Raises
        :class:`~metadata_service.store.StoreUnavailable`."""
        with _typed_errors(self._path):
            found = [line for (line,) in self._reader.execute("PRAGMA quick_check(5)")]
        return "" if found == ["ok"] else "; ".join(found)

    def copy_to(self, path: Path) -> None:
        """Copy the whole file, as readers see it.  Raises :class:`~metadata_service.store.StoreUnavailable`."""
        with _typed_errors(self._path):
            copy = sqlite3.connect(path, isolation_level=None)
            try:
                self._reader.backup(copy)
            finally:
                copy.close()

    # --- pins of backups ---

    def pin(self, pin: BackupPin) -> None:
        """Set or renew a pin.  Only within :meth:`held`; valid from its end on."""
        others = tuple(one for one in _cluster(self._writer).pins if one.name != pin.name)
        self._set_pins((*others, pin))

    def put_off(self, pin: BackupPin) -> bool:
        """Extend a pin; False: it does not exist any more."""
        with _typed_errors(self._path):
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                pins = _cluster(self._writer).pins
                found = any(one.name == pin.name for one in pins)
                if found:
                    self._set_pins(tuple(pin if one.name == pin.name else one for one in pins))
            finally:
                self._writer.execute("COMMIT")
        return found

    def unpin(self, gone: Callable[[BackupPin], bool]) -> int:
        """Remove the pins selected by ``gone``; returns their number."""
        with _typed_errors(self._path):
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                pins = _cluster(self._writer).pins
                kept = tuple(one for one in pins if not gone(one))
                if kept != pins:
                    self._set_pins(kept)
            finally:
                self._writer.execute("COMMIT")
        return len(pins) - len(kept)

    def _set_pins(self, pins: tuple[BackupPin, ...]) -> None:
        update_single(
            self._writer, "cluster", msgspec.structs.replace(_cluster(self._writer), pins=pins), "the cluster's entry"
        )


def prepare_restored(path: Path) -> None:
    """Prepare a copy to be the metadata of a service restored from a backup.

    Everything after the backup is lost, but clients may still have ids and receipt handles of that time: none
    of these is reused.  Liveness records and unfinished work are removed.  Raises
    :class:`~metadata_service.opening.CannotOpen`.
    """
    SCHEMA.check(stored_version(path), "what is in the backup")
    db = _connect(path)
    try:
        (found,) = db.execute("PRAGMA integrity_check").fetchone()
        if found != "ok":
            raise CannotOpen(f"the metadata in the backup are damaged: {found}")
        db.execute("BEGIN IMMEDIATE")
        for number, record in db.execute("SELECT shard, record FROM shards").fetchall():
            entry = msgspec.json.decode(record, type=ShardEntry)
            later = msgspec.structs.replace(entry, epoch=entry.epoch + LOST_EPOCHS)
            db.execute("UPDATE shards SET record = ? WHERE shard = ?", (text(later), number))
        for (name,) in db.execute("SELECT name FROM counters WHERE name <> 'log'").fetchall():
            db.execute("UPDATE counters SET next = next + ? WHERE name = ?", (lost_ids(name), name))
        cluster = _cluster(db)
        if cluster.version:
            update_single(db, "cluster", msgspec.structs.replace(cluster, manager=0, pins=()), "the cluster's entry")
        db.execute("DELETE FROM heartbeats")
        db.execute("COMMIT")
    except sqlite3.Error as error:
        raise CannotOpen(f"the metadata in the backup cannot be used: {error}") from error
    finally:
        db.close()


def lost_ids(counter: str) -> int:
    """Number by which a counter is raised in a restored copy."""
    return LOST_PRODUCER_IDS if counter == PRODUCER_COUNTER else LOST_IDS


def _cluster(db: sqlite3.Connection) -> ClusterEntry:
    row = db.execute("SELECT record FROM cluster WHERE id = 1").fetchone()
    return ClusterEntry() if row is None else msgspec.json.decode(row[0], type=ClusterEntry)


def _owner(path: Path) -> int:
    try:
        return path.stat().st_uid
    except OSError as error:
        raise CannotOpen(f"the metadata file {path} cannot be read: {error.strerror}") from error


def _connect(path: Path) -> sqlite3.Connection:
    try:
        return sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=BUSY_SECONDS
        )
    except sqlite3.Error as error:
        raise CannotOpen(f"the metadata file {path} cannot be opened: {error}") from error


@contextmanager
def _typed_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise StoreUnavailable(f"the metadata file {path} cannot be used now: {error}") from error

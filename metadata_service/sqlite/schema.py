"""Tables of the metadata's SQLite file, and their migration.

:mod:`metadata_service.schema` has the rules of versions.  The file's version is in the table
``schema_version``, and the oldest version whose programs can use it in its header (``PRAGMA user_version``; 0
means the file's version).  All steps of a start, or of a rollback, are one transaction.

A row holds its record as JSON, beside the columns that are looked up or compared: adding a field with a default
needs no step.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from metadata_service.models import ClusterEntry, ManagerEntry
from metadata_service.opening import CannotOpen
from metadata_service.schema import CannotRollBack, Schema, SchemaState, Step, would_lose
from metadata_service.store import ConditionFailed, StoreUnavailable

_Single = TypeVar("_Single", ClusterEntry, ManagerEntry)


def _statements(text: str) -> tuple[str, ...]:
    return tuple(statement.strip() for statement in text.split(";") if statement.strip())


SCHEMA = Schema(
    Step(
        _statements("""
CREATE TABLE schema_version (version INTEGER NOT NULL);
CREATE TABLE counters (name TEXT PRIMARY KEY, next INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE queues (
    queue_id INTEGER PRIMARY KEY, account TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL,
    dead_letter_arn TEXT, record TEXT NOT NULL);
CREATE UNIQUE INDEX queues_by_name ON queues (account, name);
CREATE INDEX queues_by_dead_letter_arn ON queues (account, dead_letter_arn, name) WHERE dead_letter_arn IS NOT NULL;
CREATE TABLE held_names (
    account TEXT NOT NULL, name TEXT NOT NULL, deleted_ms INTEGER NOT NULL, PRIMARY KEY (account, name));
CREATE INDEX held_names_by_time ON held_names (deleted_ms);
CREATE TABLE logs (
    log_id INTEGER PRIMARY KEY, node TEXT NOT NULL, incarnation INTEGER NOT NULL, version INTEGER NOT NULL,
    record TEXT NOT NULL);
CREATE UNIQUE INDEX logs_by_node ON logs (node, incarnation);
CREATE TABLE shards (shard INTEGER PRIMARY KEY, version INTEGER NOT NULL, record TEXT NOT NULL);
CREATE TABLE tenants (account TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE access_keys (access_key_id TEXT PRIMARY KEY, account TEXT NOT NULL, record TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX access_keys_by_account ON access_keys (account, access_key_id);
""")
    ),
    Step(
        _statements("""
CREATE TABLE data_keys (
    key_id INTEGER PRIMARY KEY, account TEXT NOT NULL, master_id TEXT NOT NULL, seals INTEGER NOT NULL DEFAULT 0,
    record TEXT NOT NULL);
CREATE INDEX data_keys_by_account ON data_keys (account, key_id);
""")
    ),
    Step(
        _statements("""
CREATE TABLE api_keys (key_id TEXT PRIMARY KEY, account TEXT NOT NULL, record TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX api_keys_by_account ON api_keys (account, key_id);
CREATE TABLE key_uses (key_id TEXT PRIMARY KEY, used_s INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE roles (account TEXT NOT NULL, name TEXT NOT NULL, record TEXT NOT NULL, PRIMARY KEY (account, name))
    WITHOUT ROWID;
CREATE TABLE service_keys (
    key_id TEXT PRIMARY KEY, purpose TEXT NOT NULL, created_s INTEGER NOT NULL, record TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX service_keys_by_purpose ON service_keys (purpose, created_s, key_id);
""")
    ),
    Step(
        _statements("""
CREATE TABLE queue_changes (change INTEGER PRIMARY KEY, account TEXT NOT NULL, name TEXT NOT NULL);
""")
    ),
    Step(
        _statements("""
CREATE TABLE heartbeats (
    node TEXT PRIMARY KEY, incarnation INTEGER NOT NULL, count INTEGER NOT NULL, record TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE cluster (id INTEGER PRIMARY KEY, version INTEGER NOT NULL, record TEXT NOT NULL);
""")
    ),
    Step(
        _statements("""
CREATE TABLE backend_clusters (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, version INTEGER NOT NULL, record TEXT NOT NULL);
CREATE TABLE cluster_reports (
    cluster INTEGER PRIMARY KEY, term INTEGER NOT NULL, count INTEGER NOT NULL, record TEXT NOT NULL);
CREATE TABLE manager (id INTEGER PRIMARY KEY, version INTEGER NOT NULL, record TEXT NOT NULL);
""")
    ),
    Step(
        _statements("""
CREATE TABLE alarms (account TEXT NOT NULL, name TEXT NOT NULL, record TEXT NOT NULL, PRIMARY KEY (account, name))
    WITHOUT ROWID;
CREATE TABLE alarm_keeper (id INTEGER PRIMARY KEY, version INTEGER NOT NULL, record TEXT NOT NULL);
"""),
        back=("DROP TABLE alarm_keeper", "DROP TABLE alarms"),
        lost=("SELECT 1 FROM alarms",),
    ),
    Step(
        _statements("""
CREATE TABLE named_keys (account TEXT NOT NULL, name TEXT NOT NULL, record TEXT NOT NULL, PRIMARY KEY (account, name))
    WITHOUT ROWID;
"""),
        back=("DROP TABLE named_keys",),
        lost=("SELECT 1 FROM named_keys",),
    ),
    Step(
        _statements("""
CREATE TABLE document_jobs (account TEXT PRIMARY KEY, version INTEGER NOT NULL, record TEXT NOT NULL) WITHOUT ROWID;
"""),
        back=("DROP TABLE document_jobs",),
    ),
    Step(
        _statements("""
CREATE TABLE streams (
    stream_id INTEGER PRIMARY KEY, account TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL,
    partitions INTEGER NOT NULL, record TEXT NOT NULL);
CREATE UNIQUE INDEX streams_by_name ON streams (account, name);
CREATE INDEX streams_by_partitions ON streams (account, partitions);
CREATE TABLE group_clusters (account TEXT PRIMARY KEY, cluster INTEGER NOT NULL) WITHOUT ROWID;
"""),
        back=("DROP TABLE group_clusters", "DROP TABLE streams"),
        lost=("SELECT 1 FROM streams", "SELECT 1 FROM group_clusters"),
    ),
    Step(
        _statements("""
CREATE TABLE topics (
    topic_id INTEGER PRIMARY KEY, account TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL,
    record TEXT NOT NULL);
CREATE UNIQUE INDEX topics_by_name ON topics (account, name);
CREATE TABLE subscriptions (
    topic_id INTEGER NOT NULL, subscription_id BLOB NOT NULL, owner TEXT NOT NULL, protocol TEXT NOT NULL,
    endpoint TEXT NOT NULL, record TEXT NOT NULL, PRIMARY KEY (topic_id, subscription_id)) WITHOUT ROWID;
CREATE UNIQUE INDEX subscriptions_by_endpoint ON subscriptions (topic_id, protocol, endpoint);
CREATE INDEX subscriptions_by_owner ON subscriptions (owner, subscription_id);
"""),
        back=("DROP TABLE subscriptions", "DROP TABLE topics"),
        lost=("SELECT 1 FROM topics",),
    ),
    Step(
        _statements("""
CREATE INDEX queues_by_push ON queues (account, name) WHERE instr(record, '"HoldfastPushUrl":') > 0;
CREATE TABLE pushers (id INTEGER PRIMARY KEY, version INTEGER NOT NULL, record TEXT NOT NULL);
"""),
        back=("DROP TABLE pushers", "DROP INDEX queues_by_push"),
    ),
    first=6,
)
"""Schema of all Holdfast versions up to this program's."""

NAMED_KEYS_SINCE = 8
"""First version with the table ``named_keys``."""
STREAMS_SINCE = 10
"""First version with the table ``streams``."""
TOPICS_SINCE = 11
"""First version with the table ``topics``."""

BUSY_SECONDS = 5.0
"""Time for which a connection waits for another writer."""

_encode = msgspec.json.Encoder().encode


def open_database(path: Path) -> sqlite3.Connection:
    """Open a connection to the file, migrated to this version's schema.  Raises :class:`CannotOpen`."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        os.chmod(path, 0o600)  # SQLite gives its other files the same mode
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=BUSY_SECONDS)
    except (OSError, sqlite3.Error) as error:
        raise CannotOpen(f"the metadata file {path} cannot be opened: {error}") from error
    try:
        _keep_safely(db, path)
        _prepare(db, path)
    except sqlite3.Error as error:
        db.close()
        raise CannotOpen(f"the metadata file {path} cannot be used: {error}") from error
    except CannotOpen:
        db.close()
        raise
    return db


def _keep_safely(db: sqlite3.Connection, path: Path) -> None:
    (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
    db.execute("PRAGMA synchronous = FULL")
    (synchronous,) = db.execute("PRAGMA synchronous").fetchone()
    if mode != "wal" or synchronous != 2:
        raise CannotOpen(
            f"the metadata file {path} cannot be stored safely here: SQLite uses journal mode {mode} and "
            f"synchronous level {synchronous} instead of wal and 2"
        )
    db.execute("PRAGMA secure_delete = ON")  # overwrites deleted data with zeros


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    db.execute("PRAGMA cache_size = -4096")  # KiB
    db.execute("PRAGMA journal_size_limit = 16777216")
    db.execute("BEGIN IMMEDIATE")
    stored = _stored(db)
    SCHEMA.check(stored, f"the metadata file {path}")
    for version, step in SCHEMA.missing(stored):
        for statement in step.forward:
            db.execute(statement)
        _note(db, SCHEMA.stored(version))
    db.execute("COMMIT")


def _stored(db: sqlite3.Connection) -> SchemaState:
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'schema_version'").fetchone() is None:
        return SchemaState(0, 0)
    (version,) = db.execute("SELECT version FROM schema_version").fetchone()
    (oldest,) = db.execute("PRAGMA user_version").fetchone()
    return SchemaState(version, oldest or version)


def _note(db: sqlite3.Connection, stored: SchemaState) -> None:
    db.execute("DELETE FROM schema_version")
    db.execute("INSERT INTO schema_version (version) VALUES (?)", (stored.version,))
    db.execute(f"PRAGMA user_version = {stored.oldest:d}")


def stored_version(path: Path) -> SchemaState:
    """Read the schema version of a file of any version, which may be in use.  Raises :class:`CannotOpen`."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)) as db:
            return _stored(db)
    except sqlite3.Error as error:
        raise CannotOpen(f"the metadata file {path} cannot be read: {error}") from error


def roll_back(path: Path, to: int | None = None) -> SchemaState:
    """Undo the last step that this program knows, or all beyond the version ``to``, in a file that is not in
    use.

    Atomic.  Raises :class:`~metadata_service.schema.CannotRollBack` and :class:`CannotOpen`.
    """
    where = f"the metadata file {path}"
    try:
        with closing(sqlite3.connect(path, isolation_level=None, timeout=BUSY_SECONDS)) as db:
            _keep_safely(db, path)
            db.execute("BEGIN IMMEDIATE")
            stored = _stored(db)
            for version, step in SCHEMA.way_back(stored, to, where):
                assert step.back is not None
                for query in step.lost:
                    if db.execute(query).fetchone() is not None:
                        raise would_lose(where, query)
                for statement in step.back:
                    db.execute(statement)
                stored = SCHEMA.stored(version)
                _note(db, stored)
            db.execute("COMMIT")
            return stored
    except sqlite3.Error as error:
        raise CannotRollBack(f"{where} cannot be rolled back: {error}; it is unchanged") from error


def text(record: msgspec.Struct) -> str:
    """Encode a record as the text of a row."""
    return _encode(record).decode()


def next_id(db: sqlite3.Connection, counter: str, count: int = 1) -> int:
    """Return the first of the next ``count`` numbers of a counter, from 1; numbers are never reused."""
    db.execute("INSERT OR IGNORE INTO counters (name, next) VALUES (?, 1)", (counter,))
    (number,) = db.execute("SELECT next FROM counters WHERE name = ?", (counter,)).fetchone()
    db.execute("UPDATE counters SET next = ? WHERE name = ?", (number + count, counter))
    return int(number)


def update_single(
    db: sqlite3.Connection, table: Literal["cluster", "manager", "alarm_keeper", "pushers"], entry: _Single, what: str
) -> _Single:
    """Store the only entry of a table if the stored one has ``entry.version`` (0: if there is none yet).

    Returns it with the new version.  Raises :class:`ConditionFailed`, with ``what`` as the name of the entry.
    """
    newer = msgspec.structs.replace(entry, version=entry.version + 1)
    if entry.version == 0:
        query = f"INSERT OR IGNORE INTO {table} (id, version, record) VALUES (1, ?, ?)"
        changed = db.execute(query, (newer.version, text(newer))).rowcount
    else:
        query = f"UPDATE {table} SET version = ?, record = ? WHERE id = 1 AND version = ?"
        changed = db.execute(query, (newer.version, text(newer), entry.version)).rowcount
    if not changed:
        raise ConditionFailed(f"{what} no longer has version {entry.version}")
    return newer


def empty_log(db: sqlite3.Connection) -> None:
    """Move the write-ahead log, which holds older versions of pages, into the file and truncate it."""
    (busy, _, _) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if busy:
        raise StoreUnavailable("another process reads the metadata, whose log can therefore not be emptied: try again")

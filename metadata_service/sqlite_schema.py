"""The SQLite file of the metadata: its tables, and how an older file gets those that came later.

A step that was released is never changed; what comes later is a step of its own, added at the end.  A row holds its
record as JSON, beside the columns that are looked up or compared, so a record that gains a field with a default
needs no step.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from metadata_service.models import ClusterEntry, ManagerEntry
from metadata_service.opening import CannotOpen
from metadata_service.store import ConditionFailed

_Single = TypeVar("_Single", ClusterEntry, ManagerEntry)

_SCHEMA = """
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
"""
"""Version 1.  Every file begins with it, and takes the steps from there."""
_STEPS = (
    """
CREATE TABLE data_keys (
    key_id INTEGER PRIMARY KEY, account TEXT NOT NULL, master_id TEXT NOT NULL, seals INTEGER NOT NULL DEFAULT 0,
    record TEXT NOT NULL);
CREATE INDEX data_keys_by_account ON data_keys (account, key_id);
""",
    """
CREATE TABLE api_keys (key_id TEXT PRIMARY KEY, account TEXT NOT NULL, record TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX api_keys_by_account ON api_keys (account, key_id);
CREATE TABLE key_uses (key_id TEXT PRIMARY KEY, used_s INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE roles (account TEXT NOT NULL, name TEXT NOT NULL, record TEXT NOT NULL, PRIMARY KEY (account, name))
    WITHOUT ROWID;
CREATE TABLE service_keys (
    key_id TEXT PRIMARY KEY, purpose TEXT NOT NULL, created_s INTEGER NOT NULL, record TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX service_keys_by_purpose ON service_keys (purpose, created_s, key_id);
""",
    """
CREATE TABLE queue_changes (change INTEGER PRIMARY KEY, account TEXT NOT NULL, name TEXT NOT NULL);
""",
    """
CREATE TABLE heartbeats (
    node TEXT PRIMARY KEY, incarnation INTEGER NOT NULL, count INTEGER NOT NULL, record TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE cluster (id INTEGER PRIMARY KEY, version INTEGER NOT NULL, record TEXT NOT NULL);
""",
    """
CREATE TABLE backend_clusters (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, version INTEGER NOT NULL, record TEXT NOT NULL);
CREATE TABLE cluster_reports (
    cluster INTEGER PRIMARY KEY, term INTEGER NOT NULL, count INTEGER NOT NULL, record TEXT NOT NULL);
CREATE TABLE manager (id INTEGER PRIMARY KEY, version INTEGER NOT NULL, record TEXT NOT NULL);
""",
)
"""What leads from each version to the next."""
SCHEMA_VERSION = 1 + len(_STEPS)

_encode = msgspec.json.Encoder().encode


def open_database(path: Path) -> sqlite3.Connection:
    """A connection to the file, with this version's schema.  Raises :class:`CannotOpen`."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        os.chmod(path, 0o600)  # SQLite gives its other files the mode of this one
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5)
    except (OSError, sqlite3.Error) as error:
        raise CannotOpen(f"the metadata file {path} cannot be opened: {error}") from error
    try:
        _prepare(db, path)
    except sqlite3.Error as error:
        db.close()
        raise CannotOpen(f"the metadata file {path} cannot be used: {error}") from error
    except CannotOpen:
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
    db.execute("PRAGMA synchronous = FULL")
    (synchronous,) = db.execute("PRAGMA synchronous").fetchone()
    if mode != "wal" or synchronous != 2:
        raise CannotOpen(
            f"the metadata file {path} cannot be kept safely here: "
            f"SQLite uses journal mode {mode} and synchronous level {synchronous} instead of wal and 2"
        )
    db.execute("PRAGMA cache_size = -4096")  # KiB
    db.execute("PRAGMA journal_size_limit = 16777216")
    db.execute("PRAGMA secure_delete = ON")  # what is deleted or overwritten is overwritten with zeros
    db.execute("BEGIN IMMEDIATE")
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'schema_version'").fetchone() is None:
        for statement in _SCHEMA.split(";"):
            db.execute(statement)
        db.execute("INSERT INTO schema_version (version) VALUES (1)")
    (version,) = db.execute("SELECT version FROM schema_version").fetchone()
    for number, step in enumerate(_STEPS[version - 1 :], version + 1):
        for statement in step.split(";"):
            db.execute(statement)
        db.execute("UPDATE schema_version SET version = ?", (number,))
    db.execute("COMMIT")
    if version > SCHEMA_VERSION:
        raise CannotOpen(
            f"the metadata file {path} was written by a newer Holdfast: "
            f"its schema version is {version}, this one knows versions up to {SCHEMA_VERSION}"
        )


def text(record: msgspec.Struct) -> str:
    """The record as a row holds it."""
    return _encode(record).decode()


def next_id(db: sqlite3.Connection, counter: str, count: int = 1) -> int:
    """The first of the next ``count`` numbers of a counter, from 1; never given out again."""
    db.execute("INSERT OR IGNORE INTO counters (name, next) VALUES (?, 1)", (counter,))
    (number,) = db.execute("SELECT next FROM counters WHERE name = ?", (counter,)).fetchone()
    db.execute("UPDATE counters SET next = ? WHERE name = ?", (number + count, counter))
    return int(number)


def update_single(db: sqlite3.Connection, table: Literal["cluster", "manager"], entry: _Single, what: str) -> _Single:
    """Store the only entry of a table if the stored one has ``entry.version`` (0: if there is none yet).

    Returns it with the new version.  Raises :class:`ConditionFailed`, which says ``what`` the entry is.
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

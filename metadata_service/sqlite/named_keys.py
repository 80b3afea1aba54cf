"""Named data keys in the SQLite file: the :class:`~auth.encryption.named_keys.NamedKeyStore` part of the store."""

from __future__ import annotations

import sqlite3

import msgspec

from auth.encryption.named_keys import NamedKey
from metadata_service.named_keys import destroyed, updated
from metadata_service.sqlite.credentials import check_tenant
from metadata_service.sqlite.schema import empty_log, text
from metadata_service.sqlite.thread import Worker
from metadata_service.store import ConditionFailed

_decode = msgspec.json.Decoder(NamedKey).decode


class SQLiteNamedKeys:
    """Named-key calls of the store, on the file of ``worker``."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def create_named_key(self, key: NamedKey) -> NamedKey:
        def create(db: sqlite3.Connection) -> NamedKey:
            check_tenant(db, key.account)
            if _find(db, key.account, key.name) is not None:
                raise ConditionFailed(f"there is a data key {key.name} of account {key.account} already")
            made = msgspec.structs.replace(key, version=1)
            query = "INSERT INTO named_keys (account, name, record) VALUES (?, ?, ?)"
            db.execute(query, (made.account, made.name, text(made)))
            return made

        return await self._worker.write(create)

    async def get_named_key(self, account: str, name: str) -> NamedKey | None:
        return await self._worker.read(lambda db: _find(db, account, name))

    async def named_keys(self, account: str | None = None) -> list[NamedKey]:
        def read(db: sqlite3.Connection) -> list[NamedKey]:
            if account is None:
                rows = db.execute("SELECT record FROM named_keys ORDER BY account, name")
            else:
                rows = db.execute("SELECT record FROM named_keys WHERE account = ? ORDER BY name", (account,))
            return [_decode(record) for (record,) in rows]

        return await self._worker.read(read)

    async def update_named_key(self, key: NamedKey) -> NamedKey:
        def update(db: sqlite3.Connection) -> NamedKey:
            newer = updated(_find(db, key.account, key.name), key)
            _store(db, newer)
            return newer

        return await self._worker.write(update)

    async def destroy_named_key(self, account: str, name: str, destroyed_s: int) -> NamedKey | None:
        def destroy(db: sqlite3.Connection) -> NamedKey | None:
            stored = _find(db, account, name)
            if stored is None:
                return None
            newer = destroyed(stored, destroyed_s)
            if newer is not stored:
                _store(db, newer)
            return newer

        record = await self._worker.write(destroy)
        if record is not None:
            await self._worker.alone(empty_log)
        return record


def _find(db: sqlite3.Connection, account: str, name: str) -> NamedKey | None:
    row = db.execute("SELECT record FROM named_keys WHERE account = ? AND name = ?", (account, name)).fetchone()
    return None if row is None else _decode(row[0])


def _store(db: sqlite3.Connection, key: NamedKey) -> None:
    query = "UPDATE named_keys SET record = ? WHERE account = ? AND name = ?"
    db.execute(query, (text(key), key.account, key.name))

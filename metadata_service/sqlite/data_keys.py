"""Data keys in the SQLite file: :class:`~auth.encryption.data_keys.DataKeyStore`."""

from __future__ import annotations

import sqlite3

import msgspec

from auth.encryption.data_keys import DataKey
from metadata_service.sqlite.schema import empty_log, next_id, text
from metadata_service.sqlite.thread import Worker

_decode_data_key = msgspec.json.Decoder(DataKey).decode


class SQLiteDataKeys:
    """Data keys in the file of ``worker``."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def new_data_key_id(self) -> int:
        return await self._worker.write(lambda db: next_id(db, "data_key"))

    async def add_data_key(self, key: DataKey) -> None:
        def add(db: sqlite3.Connection) -> None:
            query = "INSERT INTO data_keys (key_id, account, master_id, record) VALUES (?, ?, ?, ?)"
            db.execute(query, (key.key_id, key.account, key.master_id, text(key)))

        await self._worker.write(add)

    async def data_keys(self, account: str | None = None) -> list[DataKey]:
        def read(db: sqlite3.Connection) -> list[DataKey]:
            if account is None:
                rows = db.execute("SELECT record FROM data_keys ORDER BY key_id")
            else:
                rows = db.execute("SELECT record FROM data_keys WHERE account = ? ORDER BY key_id", (account,))
            return [_decode_data_key(record) for (record,) in rows]

        return await self._worker.read(read)

    async def rewrap_data_key(self, key: DataKey, master_before: str) -> bool:
        def rewrap(db: sqlite3.Connection) -> bool:
            query = "UPDATE data_keys SET master_id = ?, record = ? WHERE key_id = ? AND master_id = ?"
            return db.execute(query, (key.master_id, text(key), key.key_id, master_before)).rowcount == 1

        return await self._worker.write(rewrap)

    async def reserve_seals(self, key_id: int, seals: int, most: int) -> bool:
        def reserve(db: sqlite3.Connection) -> bool:
            query = "UPDATE data_keys SET seals = seals + ? WHERE key_id = ? AND seals + ? <= ?"
            return db.execute(query, (seals, key_id, seals, most)).rowcount == 1

        return await self._worker.write(reserve)

    async def destroy_data_keys(self, account: str) -> int:
        def destroy(db: sqlite3.Connection) -> int:
            named = db.execute("DELETE FROM named_keys WHERE account = ?", (account,)).rowcount
            return named + db.execute("DELETE FROM data_keys WHERE account = ?", (account,)).rowcount

        destroyed = await self._worker.write(destroy)
        await self._worker.alone(empty_log)
        return destroyed

"""Alarms in the SQLite file: the :class:`~metadata_service.alarms.AlarmStore` part of the store."""

from __future__ import annotations

import sqlite3

import msgspec

from metadata_service.alarm_status import next_status
from metadata_service.alarms import Alarm, AlarmStatus, WatchedAlarm
from metadata_service.models import ManagerEntry
from metadata_service.sqlite.credentials import check_tenant
from metadata_service.sqlite.schema import text, update_single
from metadata_service.sqlite.thread import Worker

_decode = msgspec.json.Decoder(WatchedAlarm).decode
_decode_keeper = msgspec.json.Decoder(ManagerEntry).decode


class SQLiteAlarms:
    """Alarm calls of the store, on the file of ``worker``."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def put_alarm(self, alarm: Alarm) -> None:
        def put(db: sqlite3.Connection) -> None:
            check_tenant(db, alarm.account)
            query = "INSERT OR REPLACE INTO alarms (account, name, record) VALUES (?, ?, ?)"
            db.execute(query, (alarm.account, alarm.name, text(WatchedAlarm(alarm))))

        await self._worker.write(put)

    async def get_alarm(self, account: str, name: str) -> WatchedAlarm | None:
        return await self._worker.read(lambda db: _find(db, account, name))

    async def delete_alarm(self, account: str, name: str) -> bool:
        query = "DELETE FROM alarms WHERE account = ? AND name = ?"
        return await self._worker.write(lambda db: db.execute(query, (account, name)).rowcount > 0)

    async def list_alarms(self, account: str) -> list[WatchedAlarm]:
        query = "SELECT record FROM alarms WHERE account = ? ORDER BY name"
        return await self._worker.read(lambda db: [_decode(record) for (record,) in db.execute(query, (account,))])

    async def update_alarm_status(self, alarm: Alarm, status: AlarmStatus) -> AlarmStatus:
        def update(db: sqlite3.Connection) -> AlarmStatus:
            newer = next_status(_find(db, alarm.account, alarm.name), alarm, status)
            query = "UPDATE alarms SET record = ? WHERE account = ? AND name = ?"
            db.execute(query, (text(WatchedAlarm(alarm, newer)), alarm.account, alarm.name))
            return newer

        return await self._worker.write(update)

    async def alarm_accounts(self) -> list[str]:
        query = "SELECT DISTINCT account FROM alarms ORDER BY account"
        return await self._worker.read(lambda db: [account for (account,) in db.execute(query)])

    async def alarm_keeper(self) -> ManagerEntry:
        def read(db: sqlite3.Connection) -> ManagerEntry:
            row = db.execute("SELECT record FROM alarm_keeper WHERE id = 1").fetchone()
            return ManagerEntry() if row is None else _decode_keeper(row[0])

        return await self._worker.read(read)

    async def update_alarm_keeper(self, entry: ManagerEntry) -> ManagerEntry:
        what = "the alarm keeper's entry"
        return await self._worker.write(lambda db: update_single(db, "alarm_keeper", entry, what))


def _find(db: sqlite3.Connection, account: str, name: str) -> WatchedAlarm | None:
    row = db.execute("SELECT record FROM alarms WHERE account = ? AND name = ?", (account, name)).fetchone()
    return None if row is None else _decode(row[0])

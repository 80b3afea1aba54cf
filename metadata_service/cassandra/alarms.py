"""Alarms in Cassandra: the :class:`~metadata_service.alarms.AlarmStore` part of the store.

Alarms are rows in the space of their tenant, like its roles.  Marks list the accounts with alarms.  Marks are
never removed, so an account that once had alarms may be read in vain.
"""

from __future__ import annotations

import msgspec

from metadata_service.alarm_status import next_status
from metadata_service.alarms import Alarm, AlarmStatus, WatchedAlarm
from metadata_service.cassandra.credentials import check_tenant, tenant_space, text
from metadata_service.cassandra.driver.records import Records, VersionedRecord, Writes
from metadata_service.cassandra.entries import update_single
from metadata_service.models import ManagerEntry

ALARM_ACCOUNTS = "alarm_accounts"
"""Marks of the accounts that have, or had, alarms."""
_KEEPER = "alarm_keeper"

_decode = msgspec.json.Decoder(WatchedAlarm).decode
_decode_keeper = msgspec.json.Decoder(ManagerEntry).decode


class CassandraAlarms:
    """Alarm calls of the store, kept in ``records``."""

    def __init__(self, records: Records) -> None:
        self._records = records

    async def put_alarm(self, alarm: Alarm) -> None:
        row = _alarm(alarm.name)

        def put(rows: dict[str, VersionedRecord]) -> tuple[Writes, None]:
            check_tenant(alarm.account, rows)
            # The tenant's row is rewritten unchanged, so that a concurrent deletion of the tenant conflicts.
            return {"tenant": rows["tenant"].record, row: text(WatchedAlarm(alarm))}, None

        await self._records.mark(ALARM_ACCOUNTS, alarm.account)
        await self._records.transact(tenant_space(alarm.account), ["tenant", row], put)

    async def get_alarm(self, account: str, name: str) -> WatchedAlarm | None:
        record = await self._records.get(tenant_space(account), _alarm(name))
        return None if record is None else _decode(record)

    async def delete_alarm(self, account: str, name: str) -> bool:
        row = _alarm(name)

        def delete(rows: dict[str, VersionedRecord]) -> tuple[Writes, bool]:
            return ({row: None}, True) if row in rows else ({}, False)

        return await self._records.transact(tenant_space(account), [row], delete)

    async def list_alarms(self, account: str) -> list[WatchedAlarm]:
        return [_decode(record) for _, record in await self._records.all(tenant_space(account), _alarm(""))]

    async def update_alarm_status(self, alarm: Alarm, status: AlarmStatus) -> AlarmStatus:
        row = _alarm(alarm.name)

        def update(rows: dict[str, VersionedRecord]) -> tuple[Writes, AlarmStatus]:
            newer = next_status(_decode(rows[row].record) if row in rows else None, alarm, status)
            return {row: text(WatchedAlarm(alarm, newer))}, newer

        return await self._records.transact(tenant_space(alarm.account), [row], update)

    async def alarm_accounts(self) -> list[str]:
        return [account async for account, _ in self._records.all_marks(ALARM_ACCOUNTS)]

    async def alarm_keeper(self) -> ManagerEntry:
        record = await self._records.get(_KEEPER, "keeper")
        return ManagerEntry() if record is None else _decode_keeper(record)

    async def update_alarm_keeper(self, entry: ManagerEntry) -> ManagerEntry:
        what = "the alarm keeper's entry"
        return await update_single(self._records, _KEEPER, "keeper", entry, _decode_keeper, what)


def _alarm(name: str) -> str:
    return f"alarm/{name}"

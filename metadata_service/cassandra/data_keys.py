"""Data keys in Cassandra: :class:`~auth.encryption.data_keys.DataKeyStore`."""

from __future__ import annotations

from functools import partial

import msgspec

from auth.encryption.data_keys import DataKey
from metadata_service.cassandra.credentials import text
from metadata_service.cassandra.driver.records import GONE, Records, VersionedRecord, Writes, gather
from metadata_service.cassandra.named_keys import ENCRYPTING_ACCOUNTS, CassandraNamedKeys
from metadata_service.store import ConditionFailed

_decode_data_key = msgspec.json.Decoder(DataKey).decode


class CassandraDataKeys:
    """Data keys in ``records``, destroyed together with the ``named_keys`` of their account."""

    def __init__(self, records: Records, named_keys: CassandraNamedKeys) -> None:
        self._records = records
        self._named_keys = named_keys

    async def new_data_key_id(self) -> int:
        return await self._records.next_id("data_key")

    async def add_data_key(self, key: DataKey) -> None:
        def count(rows: dict[str, VersionedRecord]) -> tuple[Writes, None]:
            return ({} if rows else {"seals": "0"}), None

        def add(rows: dict[str, VersionedRecord]) -> tuple[Writes, None]:
            if rows:
                raise ConditionFailed(f"there is a data key {key.key_id} of account {key.account} already")
            return {_data_key(key.key_id): text(key)}, None

        await self._records.mark(ENCRYPTING_ACCOUNTS, key.account)
        await self._records.transact(_counter(key.key_id), ["seals"], count)
        await self._records.transact(_data_keys(key.account), [_data_key(key.key_id)], add)

    async def data_keys(self, account: str | None = None) -> list[DataKey]:
        if account is None:
            accounts = [account async for account, _ in self._records.all_marks(ENCRYPTING_ACCOUNTS)]
            some = await gather(partial(self.data_keys, account) for account in accounts)
            return sorted((key for keys in some for key in keys), key=lambda key: key.key_id)
        return [_decode_data_key(record) for _, record in await self._records.all(_data_keys(account))]

    async def rewrap_data_key(self, key: DataKey, master_before: str) -> bool:
        row = _data_key(key.key_id)

        def rewrap(rows: dict[str, VersionedRecord]) -> tuple[Writes, bool]:
            if row not in rows or _decode_data_key(rows[row].record).master_id != master_before:
                return {}, False
            return {row: text(key)}, True

        return await self._records.transact(_data_keys(key.account), [row], rewrap)

    async def reserve_seals(self, key_id: int, seals: int, most: int) -> bool:
        def reserve(rows: dict[str, VersionedRecord]) -> tuple[Writes, bool]:
            if not rows or (total := int(rows["seals"].record) + seals) > most:
                return {}, False
            return {"seals": str(total)}, True

        return await self._records.transact(_counter(key_id), ["seals"], reserve)

    async def destroy_data_keys(self, account: str) -> int:
        """Destroy the keys.  Unlike the interface promises, Cassandra cannot remove them from its files on request:
        deleted and overwritten rows stay in the files of a node until these are compacted after the table's grace
        period."""
        space = _data_keys(account)

        def destroy(rows: dict[str, VersionedRecord]) -> tuple[Writes, list[int]]:
            return dict.fromkeys(rows, GONE), [_decode_data_key(row.record).key_id for row in rows.values()]

        named = await self._named_keys.delete_all(account)
        keys = [key for key, _ in await self._records.all(space, serial=True)]
        if not keys:
            return named
        destroyed = await self._records.transact(space, keys, destroy)
        for key_id in destroyed:
            await self._records.transact(_counter(key_id), ["seals"], lambda rows: (dict.fromkeys(rows, GONE), None))
        return named + len(destroyed)


# --- spaces and keys -----------------------------------------------------------------------------


def _data_keys(account: str) -> str:
    return f"data_keys/{account}"


def _data_key(key_id: int) -> str:
    return f"{key_id:010d}"


def _counter(key_id: int) -> str:
    return f"seals/{key_id}"

"""Named data keys in Cassandra: the :class:`~auth.encryption.named_keys.NamedKeyStore` part of the store.

They are rows in the space of their tenant, like its roles and alarms.  Their accounts are among those marked as
having data keys.
"""

from __future__ import annotations

from functools import partial

import msgspec

from auth.encryption.named_keys import NamedKey
from metadata_service.cassandra.credentials import check_tenant, tenant_space, text
from metadata_service.cassandra.driver.records import Records, VersionedRecord, Writes, gather
from metadata_service.named_keys import destroyed, updated
from metadata_service.store import ConditionFailed

ENCRYPTING_ACCOUNTS = "data_keys"
"""Marks of the accounts that have, or had, data keys."""
NAMED_KEY = "named_key/"
"""Prefix of the keys of rows."""

_decode = msgspec.json.Decoder(NamedKey).decode


class CassandraNamedKeys:
    """Named-key calls of the store, kept in ``records``."""

    def __init__(self, records: Records) -> None:
        self._records = records

    async def create_named_key(self, key: NamedKey) -> NamedKey:
        row, made = NAMED_KEY + key.name, msgspec.structs.replace(key, version=1)

        def create(rows: dict[str, VersionedRecord]) -> tuple[Writes, None]:
            check_tenant(key.account, rows)
            if row in rows:
                raise ConditionFailed(f"there is a data key {key.name} of account {key.account} already")
            # The tenant's row is rewritten unchanged, so that a concurrent deletion of the tenant conflicts.
            return {"tenant": rows["tenant"].record, row: text(made)}, None

        await self._records.mark(ENCRYPTING_ACCOUNTS, key.account)
        await self._records.transact(tenant_space(key.account), ["tenant", row], create)
        return made

    async def get_named_key(self, account: str, name: str) -> NamedKey | None:
        record = await self._records.get(tenant_space(account), NAMED_KEY + name)
        return None if record is None else _decode(record)

    async def named_keys(self, account: str | None = None) -> list[NamedKey]:
        if account is None:
            accounts = sorted([account async for account, _ in self._records.all_marks(ENCRYPTING_ACCOUNTS)])
            some = await gather(partial(self.named_keys, account) for account in accounts)
            return [key for keys in some for key in keys]
        return [_decode(record) for _, record in await self._records.all(tenant_space(account), NAMED_KEY)]

    async def update_named_key(self, key: NamedKey) -> NamedKey:
        row = NAMED_KEY + key.name

        def update(rows: dict[str, VersionedRecord]) -> tuple[Writes, NamedKey]:
            newer = updated(_decode(rows[row].record) if row in rows else None, key)
            return {row: text(newer)}, newer

        return await self._records.transact(tenant_space(key.account), [row], update)

    async def destroy_named_key(self, account: str, name: str, destroyed_s: int) -> NamedKey | None:
        """Destroy a key.  Cassandra's files keep the overwritten row until they are compacted."""
        row = NAMED_KEY + name

        def destroy(rows: dict[str, VersionedRecord]) -> tuple[Writes, NamedKey | None]:
            if row not in rows:
                return {}, None
            stored = _decode(rows[row].record)
            newer = destroyed(stored, destroyed_s)
            return ({} if newer is stored else {row: text(newer)}), newer

        return await self._records.transact(tenant_space(account), [row], destroy)

    async def delete_all(self, account: str) -> int:
        """Delete all named keys of a tenant, and return their number."""

        def delete(rows: dict[str, VersionedRecord]) -> tuple[Writes, int]:
            return dict.fromkeys(rows), len(rows)

        keys = [key for key, _ in await self._records.all(tenant_space(account), NAMED_KEY, serial=True)]
        return await self._records.transact(tenant_space(account), keys, delete) if keys else 0

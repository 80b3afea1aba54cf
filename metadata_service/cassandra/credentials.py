"""Tenants, keys and roles in Cassandra: the :class:`auth.store.CredentialStore` part of the store.

A tenant's record, its roles and the ids of its keys are one space; each key's record is a space of its own,
because it is looked up by id.  A key's id is listed before its record is written and until after it is removed,
so the tenant's administrator sees every credential that works.  Records of keys are emptied and not deleted,
because they are written by separate transactions (:mod:`metadata_service.cassandra.driver.records`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Literal, TypeVar
from zlib import crc32

import msgspec

from auth.credentials import AccessKey, ApiKey, ServiceKey, Tenant, TenantRole
from metadata_service.cassandra.driver.records import GONE, PAGE, Records, VersionedRecord, Writes, after, gather
from metadata_service.store import ConditionFailed

K = TypeVar("K", AccessKey, ApiKey)
V = TypeVar("V", Tenant, AccessKey, ApiKey, TenantRole)

ACCOUNTS = "accounts"
"""Marks of all accounts that have, or had, a tenant."""
_SERVICE_KEYS = "service_keys"
_USE_SPACES = 64

_encode = msgspec.json.Encoder().encode


def text(record: Any) -> str:
    """Encode a record as the text of a row."""
    return _encode(record).decode()


class CassandraCredentials:
    """Credential calls of the store, kept in ``records``."""

    def __init__(self, records: Records) -> None:
        self._records = records

    # --- tenants ---

    async def get_tenant(self, account: str) -> Tenant | None:
        return await self._get(Tenant, tenant_space(account), "tenant")

    async def put_tenant(self, tenant: Tenant) -> None:
        await self._records.mark(ACCOUNTS, tenant.account)
        await self._put(tenant_space(tenant.account), "tenant", tenant)

    async def create_tenant(self, tenant: Tenant) -> None:
        def create(rows: dict[str, VersionedRecord]) -> tuple[Writes, None]:
            if rows:
                raise ConditionFailed(f"there is a tenant {tenant.account} already")
            return {"tenant": text(tenant)}, None

        await self._records.mark(ACCOUNTS, tenant.account)
        await self._records.transact(tenant_space(tenant.account), ["tenant"], create)

    async def update_tenant(self, tenant: Tenant) -> Tenant:
        return await self._update(tenant_space(tenant.account), "tenant", tenant)

    async def list_tenants(self, *, after: str = "", limit: int) -> list[Tenant]:
        found: list[Tenant] = []
        while limit > len(found):  # an account may be listed although its creation did not finish
            accounts = await self._accounts(after, limit - len(found))
            tenants = await gather(partial(self.get_tenant, account) for account in accounts)
            found += [tenant for tenant in tenants if tenant is not None]
            if len(accounts) < limit - len(found) or not accounts:
                break
            after = accounts[-1]
        return found

    # --- access keys and API keys ---

    async def get_access_key(self, access_key_id: str) -> AccessKey | None:
        return await self._get(AccessKey, _access_key(access_key_id), "key")

    async def put_access_key(self, key: AccessKey) -> None:
        await self._put_key(_access_key(key.access_key_id), key)

    async def update_access_key(self, key: AccessKey) -> AccessKey:
        return await self._update(_access_key(key.access_key_id), "key", key)

    async def delete_access_key(self, access_key_id: str) -> bool:
        return await self._delete_key(AccessKey, _access_key(access_key_id), access_key_id)

    async def list_access_keys(self, account: str) -> list[AccessKey]:
        return await self._keys_of(account, "access_key/", self.get_access_key)

    async def get_api_key(self, key_id: str) -> ApiKey | None:
        return await self._get(ApiKey, _api_key(key_id), "key")

    async def put_api_key(self, key: ApiKey) -> None:
        await self._put_key(_api_key(key.key_id), key)

    async def update_api_key(self, key: ApiKey) -> ApiKey:
        return await self._update(_api_key(key.key_id), "key", key)

    async def delete_api_key(self, key_id: str) -> bool:
        return await self._delete_key(ApiKey, _api_key(key_id), key_id)

    async def list_api_keys(self, account: str) -> list[ApiKey]:
        return await self._keys_of(account, "api_key/", self.get_api_key)

    async def record_uses(self, uses: Mapping[str, int]) -> None:
        # A use has its time as its timestamp, so reads see the latest.
        by_space: dict[str, list[tuple[str, str, int]]] = {}
        for key_id, used_s in uses.items():
            by_space.setdefault(_uses(key_id), []).append((key_id, str(used_s), used_s))
        await gather(partial(self._records.mark_all, space, marks) for space, marks in by_space.items())

    async def key_uses(self, key_ids: Collection[str]) -> dict[str, int]:
        by_space: dict[str, list[str]] = {}
        for key_id in key_ids:
            by_space.setdefault(_uses(key_id), []).append(key_id)
        found = await gather(partial(self._records.some_marks, space, ids) for space, ids in by_space.items())
        return {key_id: int(used_s) for some in found for key_id, used_s in some.items()}

    # --- roles ---

    async def get_role(self, account: str, name: str) -> TenantRole | None:
        return await self._get(TenantRole, tenant_space(account), _role(name))

    async def put_role(self, role: TenantRole) -> None:
        def put(rows: dict[str, VersionedRecord]) -> tuple[Writes, None]:
            check_tenant(role.account, rows)
            # The tenant's row is rewritten unchanged, so that a concurrent deletion of the tenant conflicts.
            return {"tenant": rows["tenant"].record, _role(role.name): text(role)}, None

        await self._records.transact(tenant_space(role.account), ["tenant", _role(role.name)], put)

    async def update_role(self, role: TenantRole) -> TenantRole:
        return await self._update(tenant_space(role.account), _role(role.name), role)

    async def delete_role(self, account: str, name: str) -> bool:
        return await self._remove(tenant_space(account), _role(name), None) is not None

    async def list_roles(self, account: str) -> list[TenantRole]:
        rows = await self._records.all(tenant_space(account), "role/")
        return [msgspec.json.decode(record, type=TenantRole) for _, record in rows]

    # --- keys of the service ---

    async def put_service_key(self, key: ServiceKey) -> None:
        await self._put(_SERVICE_KEYS, key.key_id, key)

    async def add_service_key(self, key: ServiceKey) -> None:
        def add(rows: dict[str, VersionedRecord]) -> tuple[Writes, None]:
            if rows:
                raise ConditionFailed(f"there is a service key {key.key_id} already")
            return {key.key_id: text(key)}, None

        await self._records.transact(_SERVICE_KEYS, [key.key_id], add)

    async def list_service_keys(self, purpose: str) -> list[ServiceKey]:
        rows = await self._records.all(_SERVICE_KEYS)
        keys = [msgspec.json.decode(record, type=ServiceKey) for _, record in rows]
        return sorted((key for key in keys if key.purpose == purpose), key=lambda key: (key.created_s, key.key_id))

    async def delete_service_key(self, key_id: str) -> None:
        await self._remove(_SERVICE_KEYS, key_id, GONE)

    # --- shared ---

    async def _accounts(self, beyond: str, limit: int) -> list[str]:
        marks = await self._records.marks(ACCOUNTS, after(beyond) if beyond else "", min(limit, PAGE))
        return [account for account, _ in marks]

    async def _get(self, kind: type[V], space: str, key: str) -> V | None:
        record = await self._records.get(space, key)
        return None if record is None else msgspec.json.decode(record, type=kind)

    async def _put(self, space: str, key: str, record: msgspec.Struct) -> None:
        await self._records.transact(space, [key], lambda rows: ({key: text(record)}, None))

    async def _update(self, space: str, key: str, record: V) -> V:
        def update(rows: dict[str, VersionedRecord]) -> tuple[Writes, V]:
            stored = msgspec.json.decode(rows[key].record, type=type(record)) if key in rows else None
            if stored is None or stored.version != record.version:
                found = "not there" if stored is None else f"at version {stored.version}"
                raise ConditionFailed(f"{space}/{key} is {found}, not at version {record.version}")
            newer = msgspec.structs.replace(record, version=record.version + 1)
            return {key: text(newer)}, newer

        return await self._records.transact(space, [key], update)

    async def _remove(self, space: str, key: str, how: Literal[""] | None) -> str | None:
        """Empty or delete a record and return what it was; None if there was none."""

        def remove(rows: dict[str, VersionedRecord]) -> tuple[Writes, str | None]:
            return ({key: how}, rows[key].record) if key in rows else ({}, None)

        return await self._records.transact(space, [key], remove)

    async def _put_key(self, space: str, key: AccessKey | ApiKey) -> None:
        def list_it(rows: dict[str, VersionedRecord]) -> tuple[Writes, None]:
            check_tenant(key.account, rows)
            return {"tenant": rows["tenant"].record, space: "{}"}, None

        def check_again(rows: dict[str, VersionedRecord]) -> tuple[Writes, None]:
            check_tenant(key.account, rows)
            return {}, None

        await self._records.transact(tenant_space(key.account), ["tenant"], list_it)
        await self._put(space, "key", key)
        try:  # a tenant deleted meanwhile had its keys listed and deleted, perhaps before this record was written
            await self._records.transact(tenant_space(key.account), ["tenant"], check_again)
        except ValueError:
            await self._remove(space, "key", GONE)
            await self._remove(tenant_space(key.account), space, None)
            raise

    async def _delete_key(self, kind: type[K], space: str, key_id: str) -> bool:
        record = await self._remove(space, "key", GONE)
        if record is None:
            return False
        await self._remove(tenant_space(msgspec.json.decode(record, type=kind).account), space, None)
        for used_s in (await self._records.some_marks(_uses(key_id), [key_id])).values():
            await self._records.unmark(_uses(key_id), key_id, timestamp=int(used_s))
        return True

    async def _keys_of(self, account: str, prefix: str, get: Callable[[str], Any]) -> list[Any]:
        listed = [key.removeprefix(prefix) for key, _ in await self._records.all(tenant_space(account), prefix)]
        keys = await gather(partial(get, key_id) for key_id in listed)
        return [key for key in keys if key is not None and key.account == account]


def tenant_space(account: str) -> str:
    """Space of the tenant's record, roles and key ids."""
    return f"tenant/{account}"


def _role(name: str) -> str:
    return f"role/{name}"


def _access_key(key_id: str) -> str:
    """Space of an access key, and its row in its tenant's space."""
    return f"access_key/{key_id}"


def _api_key(key_id: str) -> str:
    return f"api_key/{key_id}"


def _uses(key_id: str) -> str:
    return f"uses/{crc32(key_id.encode()) % _USE_SPACES}"


def check_tenant(account: str, rows: Mapping[str, VersionedRecord]) -> None:
    """Raise ``ValueError`` unless the row ``tenant`` holds an existing tenant."""
    tenant = msgspec.json.decode(rows["tenant"].record, type=Tenant) if "tenant" in rows else None
    if tenant is None or tenant.state in ("deleting", "deleted"):
        raise ValueError(f"no tenant {account}")

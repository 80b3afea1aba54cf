"""Tenants, keys and roles in the SQLite file: the :class:`auth.store.CredentialStore` part of the store."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import msgspec

from auth.credentials import AccessKey, ApiKey, ServiceKey, Tenant, TenantRole
from metadata_service.sqlite.schema import text
from metadata_service.sqlite.thread import Worker
from metadata_service.store import ConditionFailed

R = TypeVar("R", Tenant, AccessKey, ApiKey, TenantRole, ServiceKey)
V = TypeVar("V", Tenant, AccessKey, ApiKey, TenantRole)
"""Records with a version."""

_AT_ONCE = 500
"""Maximum number of ids per query: SQLite limits the parameters of a statement."""


class SQLiteCredentials:
    """Credential calls of the store, on the file of ``worker``."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    # --- tenants ---

    async def get_tenant(self, account: str) -> Tenant | None:
        return await self._one(Tenant, "tenants WHERE account = ?", (account,))

    async def put_tenant(self, tenant: Tenant) -> None:
        await self._worker.write(lambda db: _put(db, "tenants", {"account": tenant.account}, tenant))

    async def create_tenant(self, tenant: Tenant) -> None:
        def create(db: sqlite3.Connection) -> None:
            if _find(db, Tenant, "tenants WHERE account = ?", (tenant.account,)) is not None:
                raise ConditionFailed(f"there is a tenant {tenant.account} already")
            _put(db, "tenants", {"account": tenant.account}, tenant)

        await self._worker.write(create)

    async def update_tenant(self, tenant: Tenant) -> Tenant:
        return await self._update("tenants", {"account": tenant.account}, tenant)

    async def list_tenants(self, *, after: str = "", limit: int) -> list[Tenant]:
        return await self._all(Tenant, "tenants WHERE account > ? ORDER BY account LIMIT ?", (after, limit))

    # --- access keys and API keys ---

    async def get_access_key(self, access_key_id: str) -> AccessKey | None:
        return await self._one(AccessKey, "access_keys WHERE access_key_id = ?", (access_key_id,))

    async def put_access_key(self, key: AccessKey) -> None:
        await self._put_owned("access_keys", {"access_key_id": key.access_key_id, "account": key.account}, key)

    async def update_access_key(self, key: AccessKey) -> AccessKey:
        return await self._update("access_keys", {"access_key_id": key.access_key_id}, key)

    async def delete_access_key(self, access_key_id: str) -> bool:
        return await self._delete_key("access_keys WHERE access_key_id = ?", access_key_id)

    async def list_access_keys(self, account: str) -> list[AccessKey]:
        return await self._all(AccessKey, "access_keys WHERE account = ? ORDER BY access_key_id", (account,))

    async def get_api_key(self, key_id: str) -> ApiKey | None:
        return await self._one(ApiKey, "api_keys WHERE key_id = ?", (key_id,))

    async def put_api_key(self, key: ApiKey) -> None:
        await self._put_owned("api_keys", {"key_id": key.key_id, "account": key.account}, key)

    async def update_api_key(self, key: ApiKey) -> ApiKey:
        return await self._update("api_keys", {"key_id": key.key_id}, key)

    async def delete_api_key(self, key_id: str) -> bool:
        return await self._delete_key("api_keys WHERE key_id = ?", key_id)

    async def list_api_keys(self, account: str) -> list[ApiKey]:
        return await self._all(ApiKey, "api_keys WHERE account = ? ORDER BY key_id", (account,))

    async def record_uses(self, uses: Mapping[str, int]) -> None:
        query = (
            "INSERT INTO key_uses (key_id, used_s) VALUES (?, ?)"
            " ON CONFLICT (key_id) DO UPDATE SET used_s = max(used_s, excluded.used_s)"
        )

        def record(db: sqlite3.Connection) -> None:
            db.executemany(query, uses.items())

        await self._worker.write(record)

    async def key_uses(self, key_ids: Collection[str]) -> dict[str, int]:
        wanted = list(key_ids)

        def read(db: sqlite3.Connection) -> dict[str, int]:
            found: dict[str, int] = {}
            for start in range(0, len(wanted), _AT_ONCE):
                some = wanted[start : start + _AT_ONCE]
                marks = ", ".join("?" * len(some))
                found.update(db.execute(f"SELECT key_id, used_s FROM key_uses WHERE key_id IN ({marks})", some))
            return found

        return await self._worker.read(read)

    # --- roles ---

    async def get_role(self, account: str, name: str) -> TenantRole | None:
        return await self._one(TenantRole, "roles WHERE account = ? AND name = ?", (account, name))

    async def put_role(self, role: TenantRole) -> None:
        await self._put_owned("roles", {"account": role.account, "name": role.name}, role)

    async def update_role(self, role: TenantRole) -> TenantRole:
        return await self._update("roles", {"account": role.account, "name": role.name}, role)

    async def delete_role(self, account: str, name: str) -> bool:
        query = "DELETE FROM roles WHERE account = ? AND name = ?"
        return await self._worker.write(lambda db: db.execute(query, (account, name)).rowcount > 0)

    async def list_roles(self, account: str) -> list[TenantRole]:
        return await self._all(TenantRole, "roles WHERE account = ? ORDER BY name", (account,))

    # --- keys of the service ---

    async def put_service_key(self, key: ServiceKey) -> None:
        await self._worker.write(lambda db: _put_service_key(db, key))

    async def add_service_key(self, key: ServiceKey) -> None:
        def add(db: sqlite3.Connection) -> None:
            if _find(db, ServiceKey, "service_keys WHERE key_id = ?", (key.key_id,)) is not None:
                raise ConditionFailed(f"there is a service key {key.key_id} already")
            _put_service_key(db, key)

        await self._worker.write(add)

    async def list_service_keys(self, purpose: str) -> list[ServiceKey]:
        return await self._all(ServiceKey, "service_keys WHERE purpose = ? ORDER BY created_s, key_id", (purpose,))

    async def delete_service_key(self, key_id: str) -> None:
        def delete(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM service_keys WHERE key_id = ?", (key_id,))

        await self._worker.write(delete)

    # --- shared ---

    async def _one(self, kind: type[R], where: str, values: tuple[Any, ...]) -> R | None:
        return await self._worker.read(lambda db: _find(db, kind, where, values))

    async def _all(self, kind: type[R], where: str, values: tuple[Any, ...]) -> list[R]:
        def read(db: sqlite3.Connection) -> list[R]:
            return [msgspec.json.decode(row[0], type=kind) for row in db.execute(f"SELECT record FROM {where}", values)]

        return await self._worker.read(read)

    async def _put_owned(self, table: str, columns: dict[str, str], record: AccessKey | ApiKey | TenantRole) -> None:
        def put(db: sqlite3.Connection) -> None:
            check_tenant(db, record.account)
            _put(db, table, columns, record)

        await self._worker.write(put)

    async def _update(self, table: str, key: dict[str, str], record: V) -> V:
        where = " AND ".join(f"{column} = ?" for column in key)

        def update(db: sqlite3.Connection) -> V:
            stored = _find(db, type(record), f"{table} WHERE {where}", tuple(key.values()))
            if stored is None or stored.version != record.version:
                found = "not there" if stored is None else f"at version {stored.version}"
                raise ConditionFailed(f"{'/'.join(key.values())} in {table} is {found}, not at {record.version}")
            newer = msgspec.structs.replace(record, version=record.version + 1)
            db.execute(f"UPDATE {table} SET record = ? WHERE {where}", (text(newer), *key.values()))
            return newer

        return await self._worker.write(update)

    async def _delete_key(self, where: str, key_id: str) -> bool:
        def delete(db: sqlite3.Connection) -> bool:
            db.execute("DELETE FROM key_uses WHERE key_id = ?", (key_id,))
            return db.execute(f"DELETE FROM {where}", (key_id,)).rowcount > 0

        return await self._worker.write(delete)


def _find(db: sqlite3.Connection, kind: type[R], where: str, values: tuple[Any, ...]) -> R | None:
    row = db.execute(f"SELECT record FROM {where}", values).fetchone()
    return None if row is None else msgspec.json.decode(row[0], type=kind)


def _put(db: sqlite3.Connection, table: str, columns: Mapping[str, str | int], record: msgspec.Struct) -> None:
    names = ", ".join([*columns, "record"])
    marks = ", ".join("?" * (len(columns) + 1))
    db.execute(f"INSERT OR REPLACE INTO {table} ({names}) VALUES ({marks})", (*columns.values(), text(record)))


def _put_service_key(db: sqlite3.Connection, key: ServiceKey) -> None:
    columns: dict[str, str | int] = {"key_id": key.key_id, "purpose": key.purpose, "created_s": key.created_s}
    _put(db, "service_keys", columns, key)


def check_tenant(db: sqlite3.Connection, account: str) -> None:
    """Raise ``ValueError`` unless the tenant exists and is not being deleted."""
    tenant = _find(db, Tenant, "tenants WHERE account = ?", (account,))
    if tenant is None or tenant.state in ("deleting", "deleted"):
        raise ValueError(f"no tenant {account}")

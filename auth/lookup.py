"""Cached tenants and keys: at most a second old, and never older than this process's own changes."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Generic, TypeVar

from auth.cache import Cache
from auth.credentials import AccessKey, ApiKey, Tenant, TenantRole, is_key_id
from auth.errors import AuthError, ExpiredToken, InvalidClientTokenId, OptInRequired
from auth.principal import Principal
from auth.store import CredentialStore

K = TypeVar("K", AccessKey, ApiKey)
V = TypeVar("V")

USE_SECONDS = 60
"""Precision of the recorded time of a key's last use."""
FLUSH_SECONDS = 5.0
"""Minimum interval between writes of last uses."""

log = logging.getLogger("holdfast.auth")


class CachedKey(Generic[K]):
    """A key with its tenant."""

    __slots__ = ("expires_s", "key", "principal", "recorded_s", "tenant", "usable")

    def __init__(self, key: K, tenant: Tenant) -> None:
        self.key: K = key
        self.tenant = tenant
        self.principal: Principal = key.principal
        self.usable = key.active and tenant.state == "active"
        self.expires_s = math.inf if key.expires_s is None else key.expires_s
        self.recorded_s = 0.0
        """Time of the last use reported to :meth:`Credentials.used`; uses within a short time are not reported
        again."""

    def refusal(self) -> AuthError:
        """Reason to refuse a caller that has proved to hold the key."""
        if not self.key.active:
            return InvalidClientTokenId()
        if self.tenant.state != "active":
            return not_active(self.tenant)
        return ExpiredToken()


def not_active(tenant: Tenant) -> AuthError:
    """Reason to refuse all credentials of the tenant."""
    return OptInRequired(
        f"The account {tenant.account} is {tenant.state}."
        + (" Ask the operator of this service." if tenant.state == "suspended" else "")
    )


class Credentials:
    """Cached tenants, keys and roles, each at most a second old.  Their absence is cached, too.

    Changes go through this class, so that this process sees them at once; other processes see them within a second.
    """

    def __init__(
        self,
        store: CredentialStore,
        *,
        clock: Callable[[], float] = time.monotonic,
        known_limit: int = 10_000,
        unknown_limit: int = 1_000,
        lookups_limit: int = 8,
    ) -> None:
        def cache(name: str, look_up: Callable[[str], Awaitable[V | None]]) -> Cache[V]:
            return Cache(
                look_up,
                name=name,
                clock=clock,
                known_limit=known_limit,
                unknown_limit=unknown_limit,
                lookups_limit=lookups_limit,
            )

        self.store = store
        """Uncached store, for reads and lists."""
        self.access_keys = cache("access_keys", self._access_key)
        self.api_keys = cache("api_keys", self._api_key)
        self.tenants = cache("tenants", store.get_tenant)
        self.roles = cache("roles", self._role)
        """Roles by ``account/name``."""
        self._recorded: dict[str, float] = {}
        self._recorded_max = 2 * known_limit
        self._uses: dict[str, int] = {}
        self._flush_due: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None

    async def find(self, access_key_id: str) -> CachedKey[AccessKey] | None:
        """Find the access key, active or not; None if there is none.  Raises the store's errors."""
        return await self.access_keys.find(access_key_id) if is_key_id(access_key_id) else None

    async def find_api_key(self, key_id: str) -> CachedKey[ApiKey] | None:
        """Find the API key, active or not; None if there is none.  Raises the store's errors."""
        return await self.api_keys.find(key_id) if is_key_id(key_id) else None

    async def find_role(self, account: str, name: str) -> TenantRole | None:
        return await self.roles.find(f"{account}/{name}")

    # --- changes ---

    async def put(self, key: AccessKey) -> None:
        """Store an access key as :meth:`auth.store.KeyStore.put_access_key` does."""
        try:
            await self.store.put_access_key(key)
        finally:
            self.access_keys.forget(key.access_key_id)

    async def update_access_key(self, key: AccessKey) -> AccessKey:
        try:
            return await self.store.update_access_key(key)
        finally:
            self.access_keys.forget(key.access_key_id)

    async def delete_access_key(self, access_key_id: str) -> bool:
        try:
            return await self.store.delete_access_key(access_key_id)
        finally:
            self.access_keys.forget(access_key_id)

    async def put_api_key(self, key: ApiKey) -> None:
        try:
            await self.store.put_api_key(key)
        finally:
            self.api_keys.forget(key.key_id)

    async def update_api_key(self, key: ApiKey) -> ApiKey:
        try:
            return await self.store.update_api_key(key)
        finally:
            self.api_keys.forget(key.key_id)

    async def delete_api_key(self, key_id: str) -> bool:
        try:
            return await self.store.delete_api_key(key_id)
        finally:
            self.api_keys.forget(key_id)

    async def create_tenant(self, tenant: Tenant) -> None:
        try:
            await self.store.create_tenant(tenant)
        finally:
            self._forget_tenant(tenant.account)

    async def update_tenant(self, tenant: Tenant) -> Tenant:
        try:
            return await self.store.update_tenant(tenant)
        finally:
            self._forget_tenant(tenant.account)

    async def put_role(self, role: TenantRole) -> None:
        try:
            await self.store.put_role(role)
        finally:
            self.roles.forget(f"{role.account}/{role.name}")

    async def update_role(self, role: TenantRole) -> TenantRole:
        try:
            return await self.store.update_role(role)
        finally:
            self.roles.forget(f"{role.account}/{role.name}")

    async def delete_role(self, account: str, name: str) -> bool:
        try:
            return await self.store.delete_role(account, name)
        finally:
            self.roles.forget(f"{account}/{name}")

    def _forget_tenant(self, account: str) -> None:
        self.tenants.forget(account)
        self.access_keys.forget_all(lambda known: known.key.account == account)
        self.api_keys.forget_all(lambda known: known.key.account == account)

    # --- last uses ---

    def used(self, key_id: str, now: float) -> None:
        """Record that the key was used at ``now`` (seconds since the epoch).  Cheap, and never waits."""
        recorded = self._recorded
        if now - recorded.get(key_id, 0.0) < USE_SECONDS:
            return
        if len(recorded) >= self._recorded_max:
            recorded.clear()
        recorded[key_id] = now
        self._uses[key_id] = int(now)
        if self._flush_due is None:
            self._flush_due = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._start_flush)

    async def last_uses(self, key_ids: Collection[str]) -> dict[str, int]:
        """Times of the keys' last uses, in seconds since the epoch, with those of this process not written yet.

        Keys that were never used are left out.  Raises the store's errors.
        """
        uses = await self.store.key_uses(key_ids)
        for key_id in key_ids:
            recorded_s = max(int(self._recorded.get(key_id, 0)), self._uses.get(key_id, 0))
            if recorded_s > uses.get(key_id, 0):
                uses[key_id] = recorded_s
        return uses

    async def close(self) -> None:
        """Write last uses not written yet."""
        if self._flush_due is not None:
            self._flush_due.cancel()
            self._start_flush()
        if self._flushing is not None:
            await self._flushing

    def _start_flush(self) -> None:
        self._flush_due = None
        uses, self._uses = self._uses, {}
        self._flushing = asyncio.ensure_future(self._flush(uses, self._flushing))

    async def _flush(self, uses: dict[str, int], before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await before
        try:
            await self.store.record_uses(uses)
        except Exception as error:  # recorded again at the next use of these keys, a minute later
            log.warning("the last use of %d keys was not recorded: %s", len(uses), error)

    # --- lookups ---

    async def _access_key(self, access_key_id: str) -> CachedKey[AccessKey] | None:
        key = await self.store.get_access_key(access_key_id)
        tenant = None if key is None else await self.store.get_tenant(key.account)
        return None if key is None or tenant is None else CachedKey(key, tenant)

    async def _api_key(self, key_id: str) -> CachedKey[ApiKey] | None:
        key = await self.store.get_api_key(key_id)
        tenant = None if key is None else await self.store.get_tenant(key.account)
        return None if key is None or tenant is None else CachedKey(key, tenant)

    async def _role(self, role: str) -> TenantRole | None:
        account, _, name = role.partition("/")
        return await self.store.get_role(account, name)

"""The keyring: each tenant's data keys, and the named keys of its queues.

**Lifetime of a key.**  A key lives as long as its tenant: a message can be moved any number of times, so only a read of
all messages could prove that a key is no longer needed.  A key takes about 200 bytes.  A named key ends earlier if it
is destroyed (:mod:`auth.encryption.named_keys`).

Everything runs on one event loop: there must be no await between :meth:`Keyring.cached` and the encryptions
that it promises.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from auth.encryption.data_keys import (
    ENCRYPTIONS_MAX,
    ENCRYPTIONS_RESERVED,
    MESSAGE,
    DataKey,
    DataKeyStore,
    TenantKeys,
    data_key_id,
    wrap,
)
from auth.encryption.master_keys import KeyringError, MasterKeyMissing, MasterKeys, WrapBroken
from auth.encryption.named_keys import NamedKeys, NamedKeyStore

TENANTS_MAX = 10_000
"""Maximum number of tenants with keys in memory, at 3 KB each."""
_TOGETHER = 256
"""Number of data keys rewrapped concurrently, so that a store can write them together."""


class MissingMasterKeys(KeyringError):
    """Data keys are wrapped with missing master keys: accounts that need them, by master key id."""

    def __init__(self, missing: dict[str, set[str]]) -> None:
        named = ", ".join(
            f"{master_id} (needed by {len(accounts)} account{'s' * (len(accounts) > 1)})"
            for master_id, accounts in sorted(missing.items())
        )
        super().__init__(named)
        self.missing = missing


class KeyringStore(Protocol):
    """A store of all data keys."""

    @property
    def data_keys(self) -> DataKeyStore: ...

    @property
    def named_keys(self) -> NamedKeyStore: ...


class Keyring:
    """The data keys of all tenants, over a store and the master keys."""

    def __init__(
        self,
        store: KeyringStore,
        masters: MasterKeys,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        encryptions_reserved: int = ENCRYPTIONS_RESERVED,
        encryptions_max: int = ENCRYPTIONS_MAX,
        tenants_max: int = TENANTS_MAX,
    ) -> None:
        assert encryptions_reserved <= encryptions_max < 1 << 32
        self.masters = masters
        self._store = store
        self._clock = clock
        self._encryptions_reserved = encryptions_reserved
        self._encryptions_max = encryptions_max
        self._tenants_max = tenants_max
        self._tenants: dict[str, TenantKeys] = {}
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self.named = NamedKeys(
            store.named_keys,
            masters,
            store.data_keys.new_data_key_id,
            clock=clock,
            monotonic=monotonic,
            encryptions_reserved=encryptions_reserved,
            encryptions_max=encryptions_max,
        )

    # --- encryption and decryption ---

    def cached(self, account: str, count: int = 1) -> TenantKeys | None:
        """The tenant's keys if they are cached with ``count`` reserved uses left; None: ask :meth:`ready`."""
        keys = self._tenants.get(account)
        return keys if keys is not None and keys.left >= count else None

    def knows(self, account: str) -> bool:
        """True if the tenant's keys have been loaded; other processes may have created further ones since."""
        return account in self._tenants

    async def ready(self, account: str, count: int = 1) -> TenantKeys:
        """Return the tenant's keys with ``count`` reserved uses, valid until the caller's next await.

        The first use creates the tenant's first key.  Raises :class:`KeyringError` and the store's errors.
        """
        assert count <= self._encryptions_reserved
        while (keys := self.cached(account, count)) is None:
            task = self._under_way.get(account)
            if task is None:
                task = asyncio.ensure_future(self._prepare(account))
                self._under_way[account] = task
                task.add_done_callback(lambda _: self._under_way.pop(account, None))
            await asyncio.shield(task)
        return keys

    async def decrypt(self, account: str, encrypted: bytes, what: bytes = MESSAGE, *, stale: bool = False) -> bytes:
        """Decrypt as :meth:`TenantKeys.decrypt` does, also with keys created by other processes and the tenant's
        named keys.

        ``stale``: as in :meth:`auth.encryption.named_keys.NamedKeys.decrypt`.  Also raises
        :class:`~auth.encryption.named_keys.DataKeyDestroyed`.
        """
        key_id = data_key_id(encrypted)
        keys = self._tenants.get(account)
        if (keys is None or key_id not in keys) and not self.named.has(account, encrypted):
            keys = await self._load(account)
        if keys is not None and key_id in keys:
            return keys.decrypt(encrypted, what)
        return await self.named.decrypt(account, encrypted, what, stale=stale)

    async def _prepare(self, account: str) -> None:
        """Reserve further uses, with a new key if there is none or the newest is used up."""
        keys = self._tenants.get(account)
        if keys is None:
            keys = await self._load(account)
        key_id, reserve = keys.newest, self._store.data_keys.reserve_seals
        if not key_id or not await reserve(key_id, self._encryptions_reserved, self._encryptions_max):
            key_id = await self._make_key(keys)
            if not await reserve(key_id, self._encryptions_reserved, self._encryptions_max):
                raise KeyringError(f"the new data key {key_id} of account {account} was deleted meanwhile")
        keys.use(key_id, self._encryptions_reserved)
        self._remember(keys)

    async def _load(self, account: str) -> TenantKeys:
        """Load the tenant's keys with all that are stored."""
        stored = await self._store.data_keys.data_keys(account)
        keys = self._tenants.get(account)
        if keys is None:
            keys = TenantKeys(account)
            if stored:
                self._remember(keys)
        for key in stored:
            if key.key_id not in keys:
                keys.add(key.key_id, await self.masters.unwrap(key.master_id, key.wrapped, key.context))
        return keys

    def _remember(self, keys: TenantKeys) -> None:
        """Cache the keys and replace any cached before; the reserved uses of those are lost."""
        self._tenants[keys.account] = keys
        while len(self._tenants) > self._tenants_max:
            del self._tenants[next(iter(self._tenants))]

    async def _make_key(self, keys: TenantKeys) -> int:
        data_key = AESGCM.generate_key(256)
        key_id = await self._store.data_keys.new_data_key_id()
        bare = DataKey(keys.account, key_id, self.masters.primary, b"", int(self._clock()))
        await self._store.data_keys.add_data_key(await wrap(self.masters, bare, data_key))
        keys.add(key_id, data_key)
        return key_id

    # --- administration ---

    async def check(self, *, rewrap: bool = True) -> int:
        """Verify at a start that every stored data key unwraps, and rewrap those not under the primary master
        key.

        This completes an interrupted rotation of the master key.  Returns the number of rewrapped keys.  Raises
        :class:`MissingMasterKeys` and :class:`WrapBroken`, in which case nothing was changed.
        """
        stale: list[tuple[DataKey, bytes]] = []
        missing: dict[str, set[str]] = {}
        keys = await self._store.data_keys.data_keys()
        named = await self._store.named_keys.named_keys()
        own = {key.key_id for key in keys}
        for key in [*keys, *(version for record in named for version in record.versions if version.wrapped)]:
            try:
                data_key = await self.masters.unwrap(key.master_id, key.wrapped, key.context)
            except MasterKeyMissing as error:
                missing.setdefault(error.master_id, set()).add(key.account)
            except WrapBroken:
                raise WrapBroken(
                    f"data key {key.key_id} of account {key.account} is damaged in the metadata, or belongs to another "
                    "account: restore the metadata from a backup"
                ) from None
            else:
                if key.master_id != self.masters.primary and key.key_id in own:
                    stale.append((key, data_key))
        if missing:
            raise MissingMasterKeys(missing)
        if not rewrap:
            return 0
        for at in range(0, len(stale), _TOGETHER):
            await asyncio.gather(*(self._rewrap(key, data_key) for key, data_key in stale[at : at + _TOGETHER]))
        return len(stale) + sum([await self.named.rewrap(record) for record in named])

    async def _rewrap(self, key: DataKey, data_key: bytes) -> None:
        if not await self._store.data_keys.rewrap_data_key(await wrap(self.masters, key, data_key), key.master_id):
            raise KeyringError(f"data key {key.key_id} of account {key.account} was changed meanwhile: try again")

    async def renew(self, account: str) -> int:
        """Create a data key that encrypts from now on; returns its id.  Older ciphertexts can still be decrypted."""
        keys = await self._load(account)
        key_id = await self._make_key(keys)
        keys.left = 0
        return key_id

    async def destroy_tenant_keys(self, account: str) -> int:
        """Delete the tenant's data keys, including named ones, for good: its stored data become unreadable.

        Its queues and credentials should be deleted before: later encryptions create a new key.  Other
        processes keep the keys in memory until they end.  Returns the number of deleted keys.
        """
        task = self._under_way.get(account)
        if task is not None:
            await asyncio.wait([task])
        self._tenants.pop(account, None)
        try:
            return await self._store.data_keys.destroy_data_keys(account)
        finally:
            self.named.forget_account(account)

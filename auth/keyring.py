"""The keyring: each tenant's data keys, and the named ones that its queues may have.

**How long a key is kept.**  As long as its tenant: a message may outlive any bound by being moved again and again, so
nothing short of reading everything could prove that a key is no longer needed.  A key takes some 200 bytes.  A named
key ends earlier where somebody destroys it (:mod:`auth.named_keys`).

All of it runs on one event loop: between :meth:`Keyring.cached` and the seals that it promises nothing may wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from auth.data_keys import (
    MESSAGE,
    SEALS_MOST,
    SEALS_RESERVED,
    DataKey,
    DataKeyMissing,
    DataKeyStore,
    TenantKeys,
    data_key_id,
    wrap,
)
from auth.master_keys import KeyringError, MasterKeyMissing, MasterKeys, WrapBroken
from auth.named_keys import NamedKeys, NamedKeyStore

TENANTS_MOST = 10_000
"""Whose keys are in memory at once, at 3 KB each."""
_TOGETHER = 256
"""Data keys that are wrapped anew at once, so that a store can write them together."""


class MissingMasterKeys(KeyringError):
    """Data keys are wrapped with master keys that are not here: by their ids, the accounts that need them."""

    def __init__(self, missing: dict[str, set[str]]) -> None:
        named = ", ".join(
            f"{master_id} (needed by {len(accounts)} account{'s' * (len(accounts) > 1)})"
            for master_id, accounts in sorted(missing.items())
        )
        super().__init__(named)
        self.missing = missing


class KeyringStore(DataKeyStore, NamedKeyStore, Protocol):
    """All data keys."""


class Keyring:
    """The data keys of all tenants, over a store and the master keys."""

    def __init__(
        self,
        store: KeyringStore,
        masters: MasterKeys,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        seals_reserved: int = SEALS_RESERVED,
        seals_most: int = SEALS_MOST,
        tenants_most: int = TENANTS_MOST,
    ) -> None:
        assert seals_reserved <= seals_most < 1 << 32
        self.masters = masters
        self._store = store
        self._clock = clock
        self._seals_reserved = seals_reserved
        self._seals_most = seals_most
        self._tenants_most = tenants_most
        self._tenants: dict[str, TenantKeys] = {}
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self.named = NamedKeys(
            store,
            masters,
            store.new_data_key_id,
            clock=clock,
            monotonic=monotonic,
            seals_reserved=seals_reserved,
            seals_max=seals_most,
        )

    # --- sealing and opening ---

    def cached(self, account: str, seals: int = 1) -> TenantKeys | None:
        """The tenant's keys, if they are known and can seal so often.  None says nothing: ask :meth:`ready`."""
        keys = self._tenants.get(account)
        return keys if keys is not None and keys.left >= seals else None

    def knows(self, account: str) -> bool:
        """Whether the tenant's keys have been loaded; other processes may have made further ones since."""
        return account in self._tenants

    async def ready(self, account: str, seals: int = 1) -> TenantKeys:
        """The tenant's keys, which can seal so often until the caller waits for something else.

        The first use makes the tenant's first key.  Raises :class:`KeyringError` and what the store raises.
        """
        assert seals <= self._seals_reserved
        while (keys := self.cached(account, seals)) is None:
            task = self._under_way.get(account)
            if task is None:
                task = asyncio.ensure_future(self._prepare(account))
                self._under_way[account] = task
                task.add_done_callback(lambda _: self._under_way.pop(account, None))
            await asyncio.shield(task)
        return keys

    async def open(self, account: str, sealed: bytes, what: bytes = MESSAGE, *, stale: bool = False) -> bytes:
        """As :meth:`TenantKeys.open`, with keys that other processes have made, and with the tenant's named keys.

        ``stale``: as :meth:`auth.named_keys.NamedKeys.open`.  Raises :class:`~auth.named_keys.DataKeyDestroyed`, too.
        """
        keys = self._tenants.get(account)
        if keys is not None:
            try:
                return keys.open(sealed, what)
            except DataKeyMissing:
                pass
        if not self.named.has(account, sealed):
            keys = await self._load(account)
            if data_key_id(sealed) in keys:
                return keys.open(sealed, what)
        return await self.named.open(account, sealed, what, stale=stale)

    async def _prepare(self, account: str) -> None:
        """Let the tenant's keys seal some more, with a new key if there is none or the newest has sealed enough."""
        keys = self._tenants.get(account)
        if keys is None:
            keys = await self._load(account)
        key_id = keys.newest
        if not key_id or not await self._store.reserve_seals(key_id, self._seals_reserved, self._seals_most):
            key_id = await self._make_key(keys)
            if not await self._store.reserve_seals(key_id, self._seals_reserved, self._seals_most):
                raise KeyringError(f"the new data key {key_id} of account {account} is gone already")
        keys.use(key_id, self._seals_reserved)
        self._remember(keys)

    async def _load(self, account: str) -> TenantKeys:
        """The tenant's keys with all that are stored."""
        stored = await self._store.data_keys(account)
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
        """Keep the keys at hand, in the place of those that were first fetched; what these had reserved is given up."""
        self._tenants[keys.account] = keys
        while len(self._tenants) > self._tenants_most:
            del self._tenants[next(iter(self._tenants))]

    async def _make_key(self, keys: TenantKeys) -> int:
        data_key = AESGCM.generate_key(256)
        key_id = await self._store.new_data_key_id()
        bare = DataKey(keys.account, key_id, self.masters.primary, b"", int(self._clock()))
        await self._store.add_data_key(await wrap(self.masters, bare, data_key))
        keys.add(key_id, data_key)
        return key_id

    # --- administration ---

    async def check(self, *, rewrap: bool = True) -> int:
        """See at a start that every stored data key opens, and wrap with the primary master key what is not.

        So a rotation of the master key that a crash cut off is ended.  Returns how many were wrapped anew.  Raises
        :class:`MissingMasterKeys` and :class:`WrapBroken`, and then has changed nothing.
        """
        stale: list[tuple[DataKey, bytes]] = []
        missing: dict[str, set[str]] = {}
        keys = await self._store.data_keys()
        named = await self._store.named_keys()
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
        if not await self._store.rewrap_data_key(await wrap(self.masters, key, data_key), key.master_id):
            raise KeyringError(f"data key {key.key_id} of account {key.account} was changed meanwhile: try again")

    async def renew(self, account: str) -> int:
        """Make a new data key, which seals from now on; the id.  What the others have sealed can still be opened."""
        keys = await self._load(account)
        key_id = await self._make_key(keys)
        keys.left = 0
        return key_id

    async def destroy_tenant_keys(self, account: str) -> int:
        """Forget the tenant's data keys, named ones too, for good: nobody can open again what it has stored.

        Its queues and credentials should be gone before: what still wants to seal for it gets a new key.  Other
        processes forget the keys when they end.  Returns how many there were.
        """
        task = self._under_way.get(account)
        if task is not None:
            await asyncio.wait([task])
        self._tenants.pop(account, None)
        try:
            return await self._store.destroy_data_keys(account)
        finally:
            self.named.forget_account(account)

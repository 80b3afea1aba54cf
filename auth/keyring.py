"""Data keys: each tenant has its own, and everything that is sealed is sealed with one of them.

A data key exists in clear in memory only; stored is what a master key made of it (:mod:`auth.master_keys`).  What is
sealed has this form::

    format (1 byte) | data key id (4, big-endian) | nonce (12, random) | AES-256-GCM ciphertext | tag (16)

and is bound, as associated data, to its tenant and to what it is, so that it opens only where it belongs.  The first
byte is no beginning of a msgpack array, and so tells what is sealed from a message that was stored before.

**How often a key is used.**  With random nonces a key may seal at most 2^32 times.  Seals are reserved in the store
before they are made, so a crash can only make the count too high; after 2^31 of them a new key takes over.

**How long a key is kept.**  As long as its tenant: a message may outlive any bound by being moved again and again, so
nothing short of reading everything could prove that a key is no longer needed.  A key takes some 200 bytes.

All of it runs on one event loop: between :meth:`Keyring.cached` and the seals that it promises nothing may wait.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Protocol

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from auth.master_keys import NONCE_BYTES, KeyringError, MasterKeyMissing, MasterKeys, WrapBroken

SEALS_MOST = 1 << 31
"""Of one data key; half of what NIST SP 800-38D allows with random nonces."""
SEALS_RESERVED = 1 << 20
"""At once: at 20,000 messages a second a reservation lasts 52 seconds."""

TENANTS_MOST = 10_000
"""Whose keys are in memory at once, at 3 KB each."""
_TOGETHER = 256
"""Data keys that are wrapped anew at once, so that a store can write them together."""

FORMAT = 1
MESSAGE = b"message"
"""What a sealed message is bound to, beside its tenant."""
_HEAD = Struct(">BI")
_HEAD_BYTES = _HEAD.size
_BODY_AT = _HEAD_BYTES + NONCE_BYTES
_TAG_BYTES = 16
OVERHEAD_BYTES = _BODY_AT + _TAG_BYTES
"""What sealing adds to a length."""


class SealBroken(KeyringError):
    """What is sealed is not what was sealed here, for this tenant and this use: somebody or something changed it."""


class DataKeyMissing(KeyringError):
    """The tenant has no such data key: it was destroyed, or what names it is not what was sealed."""

    def __init__(self, account: str, key_id: int) -> None:
        super().__init__(f"account {account} has no data key {key_id}")


class MissingMasterKeys(KeyringError):
    """Data keys are wrapped with master keys that are not here: by their ids, the accounts that need them."""

    def __init__(self, missing: dict[str, set[str]]) -> None:
        named = ", ".join(
            f"{master_id} (needed by {len(accounts)} account{'s' * (len(accounts) > 1)})"
            for master_id, accounts in sorted(missing.items())
        )
        super().__init__(named)
        self.missing = missing


class DataKey(msgspec.Struct, frozen=True):
    """A data key as it is stored."""

    account: str
    key_id: int
    """Below 2^32; never given out again, to no tenant."""
    master_id: str
    """The master key that it is wrapped with."""
    wrapped: bytes
    created_s: int = 0

    @property
    def context(self) -> bytes:
        """What the wrapping is bound to."""
        return b"holdfast data key\0%s\0%d" % (self.account.encode(), self.key_id)

    def __repr__(self) -> str:
        return f"DataKey({self.account}, {self.key_id}, wrapped with {self.master_id})"


class DataKeyStore(Protocol):
    """Where data keys are kept.  Its errors are those of :mod:`metadata_service.store`."""

    async def new_data_key_id(self) -> int:
        """The next id, from 1."""

    async def add_data_key(self, key: DataKey) -> None:
        """Store a new key."""

    async def data_keys(self, account: str | None = None) -> list[DataKey]:
        """The tenant's keys, or those of all tenants, ordered by id."""

    async def rewrap_data_key(self, key: DataKey, master_before: str) -> bool:
        """Store this wrapping of a key that is wrapped with ``master_before``; False if none is."""

    async def reserve_seals(self, key_id: int, seals: int, most: int) -> bool:
        """Count ``seals`` more of a key; False, and nothing is counted, beyond ``most`` or if it is gone."""

    async def destroy_data_keys(self, account: str) -> int:
        """Forget all keys of a tenant, and see that the store's files hold nothing of them.  How many there were."""


class _Nonces:
    """96 random bits each, fetched from the system many at a time."""

    def __init__(self) -> None:
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Two processes must not use the same ones."""
        self.next = _fetched().__next__


def _fetched() -> Iterator[bytes]:
    while True:
        for (nonce,) in _NONCE.iter_unpack(os.urandom(NONCE_BYTES * 256)):
            yield nonce


_NONCE = Struct(f"{NONCE_BYTES}s")
_nonces = _Nonces()


class TenantKeys:
    """A tenant's data keys, unwrapped: seals with the newest and opens with each."""

    __slots__ = ("_bound", "_bound_message", "_ciphers", "_encrypt", "_head", "account", "current", "left")

    def __init__(self, account: str) -> None:
        self.account = account
        self.current = 0
        """Id of the key that seals; 0: none yet."""
        self.left = 0
        """Seals that are reserved and not used."""
        self._bound = b"holdfast\0" + account.encode() + b"\0"
        self._bound_message = self._bound + MESSAGE
        self._ciphers: dict[int, AESGCM] = {}

    def __repr__(self) -> str:
        return f"TenantKeys({self.account}, {sorted(self._ciphers)})"

    def __contains__(self, key_id: int) -> bool:
        return key_id in self._ciphers

    @property
    def newest(self) -> int:
        """Id of the newest key; 0: there is none."""
        return max(self._ciphers, default=0)

    def add(self, key_id: int, data_key: bytes) -> None:
        """This key opens from now on."""
        self._ciphers[key_id] = AESGCM(data_key)

    def use(self, key_id: int, seals: int) -> None:
        """This key, which was added, seals ``seals`` more times."""
        self.left = self.left + seals if key_id == self.current else seals
        self.current = key_id
        self._encrypt = self._ciphers[key_id].encrypt
        self._head = _HEAD.pack(FORMAT, key_id)

    def seal(self, plain: bytes, what: bytes = MESSAGE) -> bytes:
        """``plain``, sealed and bound to the tenant and to ``what`` it is."""
        left = self.left
        assert left > 0, "seals are reserved before they are made"
        self.left = left - 1
        nonce = _nonces.next()
        bound = self._bound_message if what is MESSAGE else self._bound + what
        return self._head + nonce + self._encrypt(nonce, plain, bound)

    def open(self, sealed: bytes, what: bytes = MESSAGE) -> bytes:
        """What was sealed.  Raises :class:`SealBroken`, and :class:`DataKeyMissing` (of a key that is not added)."""
        if len(sealed) < OVERHEAD_BYTES or sealed[0] != FORMAT:
            raise SealBroken(f"of account {self.account}: not of the form of what is sealed")
        key_id = _HEAD.unpack_from(sealed)[1]
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise DataKeyMissing(self.account, key_id)
        try:
            return cipher.decrypt(sealed[_HEAD_BYTES:_BODY_AT], sealed[_BODY_AT:], self._bound + what)
        except InvalidTag:
            raise SealBroken(f"of account {self.account}, data key {key_id}: it is not what was sealed") from None


class Keyring:
    """The data keys of all tenants, over a store and the master keys."""

    def __init__(
        self,
        store: DataKeyStore,
        masters: MasterKeys,
        *,
        clock: Callable[[], float] = time.time,
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

    async def open(self, account: str, sealed: bytes, what: bytes = MESSAGE) -> bytes:
        """As :meth:`TenantKeys.open`, with keys that other processes have made."""
        keys = self._tenants.get(account)
        if keys is not None:
            try:
                return keys.open(sealed, what)
            except DataKeyMissing:
                pass
        return (await self._load(account)).open(sealed, what)

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
        await self._store.add_data_key(await self._wrapped(bare, data_key))
        keys.add(key_id, data_key)
        return key_id

    async def _wrapped(self, key: DataKey, data_key: bytes) -> DataKey:
        """``key`` with ``data_key`` wrapped by the primary master key, which was seen to unwrap it again."""
        primary = self.masters.primary
        wrapped = await self.masters.wrap(data_key, key.context)
        if await self.masters.unwrap(primary, wrapped, key.context) != data_key:
            raise WrapBroken(f"the master key {primary} does not unwrap what it wrapped")
        return msgspec.structs.replace(key, master_id=primary, wrapped=wrapped)

    # --- administration ---

    async def check(self, *, rewrap: bool = True) -> int:
        """See at a start that every stored data key opens, and wrap with the primary master key what is not.

        So a rotation of the master key that a crash cut off is ended.  Returns how many were wrapped anew.  Raises
        :class:`MissingMasterKeys` and :class:`WrapBroken`, and then has changed nothing.
        """
        stale: list[tuple[DataKey, bytes]] = []
        missing: dict[str, set[str]] = {}
        for key in await self._store.data_keys():
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
                if key.master_id != self.masters.primary:
                    stale.append((key, data_key))
        if missing:
            raise MissingMasterKeys(missing)
        if not rewrap:
            return 0
        for at in range(0, len(stale), _TOGETHER):
            await asyncio.gather(*(self._rewrap(key, data_key) for key, data_key in stale[at : at + _TOGETHER]))
        return len(stale)

    async def _rewrap(self, key: DataKey, data_key: bytes) -> None:
        if not await self._store.rewrap_data_key(await self._wrapped(key, data_key), key.master_id):
            raise KeyringError(f"data key {key.key_id} of account {key.account} was changed meanwhile: try again")

    async def renew(self, account: str) -> int:
        """Make a new data key, which seals from now on; the id.  What the others have sealed can still be opened."""
        keys = await self._load(account)
        key_id = await self._make_key(keys)
        keys.left = 0
        return key_id

    async def destroy_tenant_keys(self, account: str) -> int:
        """Forget the tenant's data keys for good: nothing that it has stored can be opened again, by anybody.

        Its queues and credentials should be gone before: what still wants to seal for it gets a new key.  Other
        processes forget the keys when they end.  Returns how many there were.
        """
        task = self._under_way.get(account)
        if task is not None:
            await asyncio.wait([task])
        self._tenants.pop(account, None)
        return await self._store.destroy_data_keys(account)

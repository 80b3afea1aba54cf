"""Named data keys of a tenant, which its queues select by ``KmsMasterKeyId``.

A named key is created at its first use, wrapped by the master key like every data key.  It has *versions*: the
newest encrypts and each decrypts; each is a data key with its own id, which is part of its ciphertexts.
Destroying a named key removes the wrapped keys of its versions and keeps its record: so its ciphertexts can be
distinguished from damaged ones, and the name is never reused.

A process's view is at most a second old (:class:`auth.cache.Cache`), and never older than its own changes.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

import msgspec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from auth.cache import Cache
from auth.encryption.data_keys import (
    ENCRYPTIONS_MAX,
    ENCRYPTIONS_RESERVED,
    MESSAGE,
    DataKey,
    DataKeyMissing,
    TenantKeys,
    data_key_id,
    wrap,
)
from auth.encryption.master_keys import KeyringError, MasterKeys
from auth.store import Conflict

NAMED_KEYS_MAX = 1_000
"""Maximum number of named keys of a tenant, including destroyed ones, whose names are kept."""
VERSIONS_MAX = 100
"""Number of versions from which on a named key cannot be rotated by request; the service still adds a version
when the newest is used up."""
NAME_LENGTH_MAX = 2_048
"""Maximum length in characters, as of KMS's KeyId."""
MANAGED_NAME = "alias/aws/sqs"
"""Name that selects the tenant's own data keys instead of a named key, like the key that AWS manages for SQS."""

_KNOWN_MAX = 10_000
"""Maximum number of named keys in memory, at 2 KB each."""
_PLACES_MAX = 100_000
"""Maximum number of versions whose key is remembered, at 200 bytes each."""
_TRIES = 16
"""Maximum number of attempts at a change that conflicts with others."""
_KEY_ID = re.compile(r"[^/:]+\Z")


class DataKeyDestroyed(KeyringError):
    """The named key was destroyed: its ciphertexts cannot be decrypted, and it encrypts nothing more."""

    def __init__(self, account: str, name: str) -> None:
        super().__init__(f"the data key {name} of account {account} was destroyed")
        self.name = name


class NamedKeyUnknown(KeyringError):
    """The tenant has no key of this name."""


class TooManyNamedKeys(KeyringError):
    """The tenant has reached its maximum of named keys, or the key its maximum of versions."""


class NamedKey(msgspec.Struct, frozen=True):
    """A named key as stored."""

    account: str
    name: str
    """Name in the form of :func:`key_name`."""
    versions: tuple[DataKey, ...]
    """Versions, oldest first, with ascending ids; without their wrapped bytes if the key was destroyed."""
    created_s: int
    encryptions: int = msgspec.field(default=0, name="seals")
    """Number of reserved uses of the newest version."""
    destroyed_s: int | None = None
    """Time of destruction in seconds since the epoch; None: the key is in use."""
    version: int = 0
    """Version of the record, incremented by the store, from 1."""


class NamedKeyStore(Protocol):
    """A store of named keys.  Its errors are those of :mod:`metadata_service.store`."""

    async def create_named_key(self, key: NamedKey) -> NamedKey:
        """Store a new key, and return it with its version.  The tenant must exist (``ValueError``).

        Raises :class:`~auth.store.Conflict` if there is one of this name, destroyed or not.
        """

    async def get_named_key(self, account: str, name: str) -> NamedKey | None:
        """Read a key, destroyed or not."""

    async def named_keys(self, account: str | None = None) -> list[NamedKey]:
        """The tenant's keys, or those of all tenants, ordered by account and name."""

    async def update_named_key(self, key: NamedKey) -> NamedKey:
        """Store the key if the stored one has its version, and return it with the next one.

        Raises :class:`~auth.store.Conflict`, also if no such key is stored.
        """

    async def destroy_named_key(self, account: str, name: str, destroyed_s: int) -> NamedKey | None:
        """Remove the wrapped bytes of all versions of the key, also from the store's files, whatever its
        version is.

        Returns the key as it is afterwards, with the time of its first destruction; None if there is none.
        """


def key_name(text: str, region: str, account: str) -> str:
    """Normalize a KmsMasterKeyId to the name of the account's key; empty for none and for the managed one.

    The ARN of a key or alias of this region and account means the same as its id or alias alone.  Every other
    text is a name of its own: ``alias/x`` and ``x`` are two keys, and so are the ARNs of another account or
    region.
    """
    kind, _, rest = text.removeprefix(f"arn:aws:kms:{region}:{account}:").partition("/")
    name = text
    if text.startswith("arn:") and kind == "key" and _KEY_ID.match(rest):
        name = rest
    elif text.startswith("arn:") and kind == "alias" and rest:
        name = f"alias/{rest}"
    return "" if name == MANAGED_NAME else name


class _Known(NamedTuple):
    """A cached named key."""

    record: NamedKey
    keys: TenantKeys | None
    """Its versions, unwrapped; None: the key was destroyed."""


class NamedKeys:
    """The named keys of all tenants, over a store and the master keys."""

    def __init__(
        self,
        store: NamedKeyStore,
        masters: MasterKeys,
        new_key_id: Callable[[], Awaitable[int]],
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        encryptions_reserved: int = ENCRYPTIONS_RESERVED,
        encryptions_max: int = ENCRYPTIONS_MAX,
    ) -> None:
        """``new_key_id`` allocates ids of data keys; ``clock`` is in seconds since the epoch."""
        self._store = store
        self._masters = masters
        self._new_key_id = new_key_id
        self._clock = clock
        self._encryptions_reserved = encryptions_reserved
        self._encryptions_max = encryptions_max
        self._cache = Cache(self._look_up, name="named_keys", clock=monotonic, known_limit=_KNOWN_MAX)
        """Cached keys by account/name."""
        self._unwrapped: OrderedDict[str, TenantKeys] = OrderedDict()
        """Unwrapped keys by account/name; used only through the cache, which decides if they are valid."""
        self._places: OrderedDict[int, str] = OrderedDict()
        """Account/name of the key, by the id of a version."""
        self._under_way: dict[str, asyncio.Task[None]] = {}

    # --- encrypting and decrypting ---

    def cached(self, account: str, name: str, count: int = 1) -> TenantKeys | None:
        """The key if it is cached with ``count`` reserved uses left; None: ask :meth:`ready`."""
        known = self._cache.cached(_place(account, name))
        if known is None or known.keys is None or known.keys.left < count:
            return None
        return known.keys

    async def ready(self, account: str, name: str, count: int = 1) -> TenantKeys:
        """Return the key with ``count`` reserved uses, valid until the caller's next await; creates it at the
        first use.

        Raises :class:`DataKeyDestroyed`, :class:`TooManyNamedKeys`, other :class:`KeyringError` and the store's
        errors.
        """
        assert count <= self._encryptions_reserved
        place = _place(account, name)
        while True:
            known = await self._cache.find(place)
            if known is not None:
                if known.keys is None:
                    raise DataKeyDestroyed(account, name)
                if known.keys.left >= count:
                    return known.keys
            task = self._under_way.get(place)
            if task is None:
                task = asyncio.ensure_future(self._prepare(account, name))
                self._under_way[place] = task
                task.add_done_callback(lambda _: self._under_way.pop(place, None))
            await asyncio.shield(task)

    async def check(self, account: str, name: str) -> None:
        """Raise :class:`DataKeyDestroyed` if the key was destroyed, :class:`KeyringError` if a master key is
        missing, and the store's errors.  A key that was never used does not count as destroyed."""
        known = await self._cache.find(_place(account, name))
        if known is not None and known.keys is None:
            raise DataKeyDestroyed(account, name)

    def has(self, account: str, encrypted: bytes) -> bool:
        """True if a remembered version of one of the account's named keys encrypted this."""
        return self._places.get(data_key_id(encrypted), "").startswith(f"{account}/")

    async def decrypt(self, account: str, encrypted: bytes, what: bytes = MESSAGE, *, stale: bool = False) -> bytes:
        """Decrypt a ciphertext of one of the account's named keys.

        ``stale``: if the store is unavailable, use cached keys of any age.

        Raises :class:`DataKeyDestroyed`, :class:`~auth.encryption.data_keys.DecryptionFailed`,
        :class:`~auth.encryption.data_keys.DataKeyMissing` (no named key encrypted it) and the store's errors.
        """
        key_id = data_key_id(encrypted)
        if not self.has(account, encrypted):
            for record in await self._store.named_keys(account):
                self._remember(record)
            if not self.has(account, encrypted):
                raise DataKeyMissing(account, key_id)
        place = self._places[key_id]
        for _ in range(2):
            try:
                known = await self._cache.find(place)
            except Exception:
                keys = self._unwrapped.get(place)
                if not stale or keys is None or key_id not in keys:
                    raise
                return keys.decrypt(encrypted, what)
            if known is not None and known.keys is None:
                raise DataKeyDestroyed(account, known.record.name)
            if known is not None and known.keys is not None and key_id in known.keys:
                return known.keys.decrypt(encrypted, what)
            self._cache.forget(place)  # cached before this version was created
        raise DataKeyMissing(account, key_id)

    # --- administration ---

    async def all(self, account: str) -> list[NamedKey]:
        """The tenant's named keys, including destroyed ones, ordered by name.  Raises the store's errors."""
        return await self._store.named_keys(account)

    async def rotate(self, account: str, name: str) -> NamedKey:
        """Add a version, which encrypts from now on: here at once, in other processes within a second.

        Raises :class:`NamedKeyUnknown`, :class:`DataKeyDestroyed`, :class:`TooManyNamedKeys`, other
        :class:`KeyringError` and the store's errors.
        """
        for left in reversed(range(_TRIES)):
            record = await self._stored(account, name)
            if len(record.versions) >= VERSIONS_MAX:
                raise TooManyNamedKeys(f"the data key {name} has {VERSIONS_MAX} versions, and cannot have more")
            try:
                record = await self._add_version(record, encryptions=0)
            except Conflict:
                if not left:
                    raise
                continue
            finally:
                self._cache.forget(_place(account, name))
            self._remember(record)
            return record
        raise AssertionError("one of the tries ends it")

    async def destroy(self, account: str, name: str) -> NamedKey:
        """Destroy the key for good: here at once, in other processes within a second.  Idempotent.

        Raises :class:`NamedKeyUnknown` and the store's errors.
        """
        place = _place(account, name)
        try:
            record = await self._store.destroy_named_key(account, name, int(self._clock()))
        finally:
            self._cache.forget(place)
            self._unwrapped.pop(place, None)
        if record is None:
            raise NamedKeyUnknown(f"account {account} has no data key {name}")
        return record

    async def rewrap(self, record: NamedKey) -> int:
        """Rewrap the versions not wrapped with the primary master key, and return their number.

        Raises :class:`KeyringError` and the store's errors.
        """
        for left in reversed(range(_TRIES)):
            versions = [await self._rewrapped(version) for version in record.versions]
            stale = sum(one is not was for one, was in zip(versions, record.versions, strict=True))
            if not stale:
                return 0
            try:
                await self._store.update_named_key(msgspec.structs.replace(record, versions=tuple(versions)))
                return stale
            except Conflict:
                if not left:
                    raise
                stored = await self._store.get_named_key(record.account, record.name)
                if stored is None:
                    return 0
                record = stored
        raise AssertionError("one of the tries ends it")

    def forget_account(self, account: str) -> None:
        """Drop everything cached of a tenant whose keys were deleted."""
        for place in [place for place in self._unwrapped if place.startswith(f"{account}/")]:
            del self._unwrapped[place]
            self._cache.forget(place)

    # --- the store ---

    async def _look_up(self, place: str) -> _Known | None:
        account, _, name = place.partition("/")
        record = await self._store.get_named_key(account, name)
        return None if record is None else await self._known(record)

    async def _known(self, record: NamedKey) -> _Known:
        """The key with its versions unwrapped.  Raises :class:`KeyringError`."""
        place = _place(record.account, record.name)
        self._remember(record)
        if record.destroyed_s is not None:
            self._unwrapped.pop(place, None)
            return _Known(record, None)
        keys = self._unwrapped.setdefault(place, TenantKeys(record.account))
        self._unwrapped.move_to_end(place)
        while len(self._unwrapped) > _KNOWN_MAX:
            self._unwrapped.popitem(last=False)
        for version in record.versions:
            if version.key_id not in keys:
                data_key = await self._masters.unwrap(version.master_id, version.wrapped, version.context)
                keys.add(version.key_id, data_key)
        if keys.current != keys.newest:
            keys.left = 0  # another version encrypts from now on, without reserved uses
        return _Known(record, keys)

    async def _prepare(self, account: str, name: str) -> None:
        """Reserve uses of the key's newest version, adding a version if it is used up, or creating the key."""
        for left in reversed(range(_TRIES)):
            record = await self._store.get_named_key(account, name)
            try:
                if record is None:
                    record = await self._create(account, name)
                elif record.destroyed_s is not None:
                    break
                elif record.encryptions + self._encryptions_reserved > self._encryptions_max:
                    record = await self._add_version(record, encryptions=self._encryptions_reserved)
                else:
                    reserved = msgspec.structs.replace(
                        record, encryptions=record.encryptions + self._encryptions_reserved
                    )
                    record = await self._store.update_named_key(reserved)
            except Conflict:
                if not left:
                    raise
                continue
            keys = (await self._known(record)).keys
            if keys is not None:
                keys.use(record.versions[-1].key_id, self._encryptions_reserved)
            break
        self._cache.forget(_place(account, name))

    async def _create(self, account: str, name: str) -> NamedKey:
        if len(await self._store.named_keys(account)) >= NAMED_KEYS_MAX:
            raise TooManyNamedKeys(f"the account {account} has {NAMED_KEYS_MAX} named data keys, and cannot have more")
        first = await self._new_version(account)
        try:
            return await self._store.create_named_key(
                NamedKey(account, name, (first,), first.created_s, encryptions=self._encryptions_reserved)
            )
        except ValueError as error:
            raise KeyringError(f"no data key can be created: {error}") from error

    async def _add_version(self, record: NamedKey, *, encryptions: int) -> NamedKey:
        version = await self._new_version(record.account)
        newer = msgspec.structs.replace(record, versions=(*record.versions, version), encryptions=encryptions)
        return await self._store.update_named_key(newer)

    async def _new_version(self, account: str) -> DataKey:
        bare = DataKey(account, await self._new_key_id(), self._masters.primary, b"", int(self._clock()))
        return await wrap(self._masters, bare, AESGCM.generate_key(256))

    async def _rewrapped(self, version: DataKey) -> DataKey:
        if not version.wrapped or version.master_id == self._masters.primary:
            return version
        data_key = await self._masters.unwrap(version.master_id, version.wrapped, version.context)
        return await wrap(self._masters, version, data_key)

    async def _stored(self, account: str, name: str) -> NamedKey:
        """Read a key.  Raises :class:`NamedKeyUnknown` and :class:`DataKeyDestroyed`."""
        record = await self._store.get_named_key(account, name)
        if record is None:
            raise NamedKeyUnknown(f"account {account} has no data key {name}")
        if record.destroyed_s is not None:
            raise DataKeyDestroyed(account, name)
        return record

    def _remember(self, record: NamedKey) -> None:
        place = _place(record.account, record.name)
        for version in record.versions:
            self._places[version.key_id] = place
            self._places.move_to_end(version.key_id)
        while len(self._places) > _PLACES_MAX:
            self._places.popitem(last=False)


def _place(account: str, name: str) -> str:
    return f"{account}/{name}"

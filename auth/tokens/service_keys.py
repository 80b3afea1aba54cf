"""The service's own keys: random, stored, shared by all frontends, and rotated periodically.

Signatures and ciphertexts name their key by its id.  A new key is used at once: a frontend that receives an unknown id
reads the store, at most once per ``REREAD_SECONDS``, so that invented ids cost little.  A key is deleted once nothing
that it signed can still be valid.  :func:`lasting_secret` is different: hashes made with it are compared with earlier
ones, so it is never replaced.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress

from auth.credentials import ServiceKey
from auth.store import Conflict, ServiceKeyStore

ROTATE_SECONDS = 7 * 24 * 3600
KEEP_SECONDS = 24 * 3600
"""Time for which a replaced key still verifies: longer than the validity of anything signed with it."""
REREAD_SECONDS = 1.0


async def lasting_secret(store: ServiceKeyStore, purpose: str, *, clock: Callable[[], float]) -> bytes:
    """Return a secret of 32 bytes that is never replaced: the oldest of its purpose, created by the first
    caller.

    Concurrent first callers in several processes get the same one.  Raises the store's errors.
    """
    if not await store.list_service_keys(purpose):
        made = ServiceKey(f"lasting-{purpose}", purpose, secrets.token_bytes(32), int(clock()))
        with suppress(Conflict):
            await store.add_service_key(made)
    return (await store.list_service_keys(purpose))[0].secret


class ServiceKeys:
    """The keys of one purpose.  ``clock`` is in seconds since the epoch."""

    def __init__(self, store: ServiceKeyStore, purpose: str, *, clock: Callable[[], float]) -> None:
        self._store = store
        self._purpose = purpose
        self._clock = clock
        self._keys: dict[str, ServiceKey] = {}
        self._newest: ServiceKey | None = None
        self._read_at = 0.0
        self._lock = asyncio.Lock()

    def get(self, key_id: str) -> ServiceKey | None:
        """The key if it is cached; None: ask :meth:`find`."""
        return self._keys.get(key_id)

    async def find(self, key_id: str) -> ServiceKey | None:
        """Find a key; None if there is none.  Raises the store's errors."""
        if key_id not in self._keys and self._may_read():
            async with self._lock:
                if key_id not in self._keys and self._may_read():
                    await self._read()
        return self._keys.get(key_id)

    async def current(self) -> ServiceKey:
        """The key to sign or encrypt with, rotated when due.  Raises the store's errors."""
        newest = self._newest
        if newest is not None and self._is_current(newest):
            return newest
        async with self._lock:
            await self._read()
            newest = self._newest
            if newest is None or not self._is_current(newest):
                newest = ServiceKey(secrets.token_hex(8), self._purpose, secrets.token_bytes(32), int(self._clock()))
                await self._store.put_service_key(newest)
                await self._read()
                await self._delete_old()
        return newest

    def _is_current(self, key: ServiceKey) -> bool:
        return self._clock() < key.created_s + ROTATE_SECONDS

    def _may_read(self) -> bool:
        """Limit reads to one per ``REREAD_SECONDS``, unless the clock was set back."""
        return not 0 <= self._clock() - self._read_at < REREAD_SECONDS

    async def _read(self) -> None:
        keys = await self._store.list_service_keys(self._purpose)
        self._keys = {key.key_id: key for key in keys}
        self._newest = keys[-1] if keys else None
        self._read_at = self._clock()

    async def _delete_old(self) -> None:
        for key in list(self._keys.values()):
            if self._clock() >= key.created_s + ROTATE_SECONDS + KEEP_SECONDS:
                await self._store.delete_service_key(key.key_id)
                del self._keys[key.key_id]

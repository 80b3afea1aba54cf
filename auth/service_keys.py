"""The service's own keys: random, in the store, shared by all frontends, and replaced from time to time.

What is signed or sealed with a key names it by its id.  A new key is used at once: a frontend that meets an id it
does not know reads the store, at most once in ``reread_seconds``, so that made-up ids cost little.  A key is deleted
once nothing that it signed can still be in force.  :func:`lasting_secret` is of another kind: what is hashed with it is
compared with what was hashed before.
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
"""How long a key still verifies after it was replaced: longer than anything that is signed with it."""
REREAD_SECONDS = 1.0


async def lasting_secret(store: ServiceKeyStore, purpose: str, *, clock: Callable[[], float]) -> bytes:
    """A secret of 32 bytes that is never replaced: the oldest of its purpose.  Made by who asks first.

    Of several processes that ask for the first time at once, all get the same.  Raises what the store raises.
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
        """The key, if this process has seen it.  None says nothing: ask :meth:`find`."""
        return self._keys.get(key_id)

    async def find(self, key_id: str) -> ServiceKey | None:
        """The key; None if there is none.  Raises what the store raises."""
        if key_id not in self._keys and self._may_read():
            async with self._lock:
                if key_id not in self._keys and self._may_read():
                    await self._read()
        return self._keys.get(key_id)

    async def current(self) -> ServiceKey:
        """The key to sign or seal with now; replaced when its time has come.  Raises what the store raises."""
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
        """A clock that was set back does not keep new keys from being seen."""
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

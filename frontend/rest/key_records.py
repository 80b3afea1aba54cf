"""Records of both kinds of keys: the quota of an account, and the removal of ended keys.

A key that was revoked or has expired is kept for a while, so that users see its state.  The next change of the
account's keys removes those that ended long ago, or before many others; the audit log keeps what was done with
them and their revocation.  Keys of operators are never removed: one configured in the settings would become
valid again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from auth.credentials import AccessKey, ApiKey
from auth.limits import UNLIMITED
from auth.store import Conflict
from auth.tokens import api_keys
from frontend.rest.problems import Problem, not_found
from frontend.services import Services

KEYS_MAX = 1_000
"""Maximum number of valid keys of an account whose limits do not set another."""
ENDED_SECONDS = 30 * 86_400
"""Time for which an ended key is kept."""
ENDED_MAX = 100
"""Maximum number of ended keys kept per account; the oldest are removed first."""
_TRIES = 4
_API = api_keys.PREFIX

Key = AccessKey | ApiKey

log = logging.getLogger("holdfast.admin")


class KeyRecords:
    """Records of keys, to be used from one event loop.

    Frontends that add keys at the same time can exceed a quota together by their number.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._credentials = services.credentials
        self._store = services.credentials.store
        self._adding = asyncio.Lock()

    async def of(self, account: str) -> list[Key]:
        return [*await self._store.list_access_keys(account), *await self._store.list_api_keys(account)]

    async def get(self, key_id: str) -> Key | None:
        """Find a key by its public id (:func:`id_of`)."""
        if key_id.startswith(_API):
            return await self._store.get_api_key(key_id.removeprefix(_API))
        return await self._store.get_access_key(key_id)

    async def add(self, key: Key) -> None:
        """Store a new key.  Raises :class:`Problem` over the quota, without storing it."""
        async with self._adding:
            now_s = int(self._services.clock())
            good = sum(ended_s(one, now_s) is None for one in await self.of(key.account))
            keys_max = await self._keys_max(key.account)
            if good >= keys_max:
                raise Problem(
                    409,
                    "TooManyKeys",
                    f"The account {key.account} has {good} keys, and its quota 'keys' is {keys_max}. Revoke keys that "
                    "are not in use, or ask the operator of this service for more.",
                )
            if isinstance(key, AccessKey):
                await self._credentials.put(key)
            else:
                await self._credentials.put_api_key(key)

    async def change(self, key: Key, changes: Callable[[Key], dict[str, Any]]) -> Key:
        """Store the key with changes computed from its stored state.  Raises :class:`Problem`."""
        current: Key | None = key
        for _ in range(_TRIES):
            if current is None:
                raise not_found(f"key {id_of(key)}")
            changed = msgspec.structs.replace(current, **changes(current))
            try:
                if isinstance(changed, AccessKey):
                    return await self._credentials.update_access_key(changed)
                return await self._credentials.update_api_key(changed)
            except Conflict:
                current = await self.get(id_of(key))
        raise Problem(409, "Conflict", f"The key {id_of(key)} is being changed by others; try again.")

    async def _keys_max(self, account: str) -> int:
        tenant = await self._store.get_tenant(account)
        limits = UNLIMITED if tenant is None else tenant.limits
        if limits == UNLIMITED:
            limits = self._services.settings.default_limits
        return KEYS_MAX if limits.keys is None else limits.keys

    async def forget_ended(self, account: str) -> None:
        """Remove keys that ended long ago, or before many others."""
        now_s = int(self._services.clock())
        keys = [key for key in await self.of(account) if key.role != "operator"]
        ended = [(ends_s, key) for key in keys if (ends_s := ended_s(key, now_s)) is not None]
        ended.sort(key=lambda one: one[0], reverse=True)
        gone = [
            key for place, (ends_s, key) in enumerate(ended) if place >= ENDED_MAX or now_s - ends_s >= ENDED_SECONDS
        ]
        for key in gone:
            if isinstance(key, AccessKey):
                await self._credentials.delete_access_key(key.access_key_id)
            else:
                await self._credentials.delete_api_key(key.key_id)
        if gone:
            log.info("removed %d keys of account %s that ended long ago", len(gone), account)


def id_of(key: Key) -> str:
    """Public id of a key."""
    return _API + key.key_id if isinstance(key, ApiKey) else key.access_key_id


def stored_id_of(key: Key) -> str:
    """Id of a key in the store."""
    return key.key_id if isinstance(key, ApiKey) else key.access_key_id


def ended_s(key: Key, now_s: int) -> int | None:
    """Time since when the key is invalid; None: it is valid."""
    revoked_s = None
    if not key.active:
        # an older Holdfast did not record the time of revocation
        revoked_s = key.created_s if key.revoked_s is None else key.revoked_s
    expired_s = key.expires_s if key.expires_s is not None and key.expires_s <= now_s else None
    ends = [moment for moment in (revoked_s, expired_s) if moment is not None]
    return min(ends, default=None)

"""Tenants and access keys, and the cache through which requests see them.

A secret has to be kept readable, for a SigV4 signature can only be checked with it.  It is guarded by the
mode of the store's files and never appears in a ``repr``.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property
from typing import Literal, Protocol

import msgspec

from auth.principal import SCOPES, Principal, Role, Scope

_ACCOUNT = re.compile(r"[0-9]{12}\Z")
_ACCESS_KEY_ID = re.compile(r"\w{16,128}\Z", re.ASCII)
"""The pattern and lengths of IAM's AccessKeyId."""
_SECRET = re.compile(r"[!-~]{8,128}\Z")
_BASE32 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"


class Tenant(msgspec.Struct, frozen=True):
    """An account: it owns queues and access keys."""

    account: str
    """12 digits."""
    name: str
    state: Literal["active", "suspended"] = "active"


class AccessKey(msgspec.Struct, frozen=True, dict=True):
    """What signs requests, and for whom."""

    access_key_id: str
    secret: str
    account: str
    principal_id: str
    """The caller's id as SQS tells it: ``SenderId`` of the messages that are sent with this key."""
    active: bool = True
    name: str = "root"
    """Of the user that the key belongs to: policies name it ``arn:aws:iam::account:user/name``."""
    role: Role = "user"
    scopes: tuple[Scope, ...] = SCOPES
    prefixes: tuple[str, ...] = ()
    """Of queue names; empty: all queues."""
    created_s: int = 0
    expires_s: int | None = None
    """From then on the key is refused."""

    @cached_property
    def principal(self) -> Principal:
        """The caller that this key stands for."""
        user = "root" if self.name == "root" else f"user/{self.name}"
        return Principal(
            account=self.account,
            principal_id=self.principal_id,
            arn=f"arn:aws:iam::{self.account}:{user}",
            credential=self.access_key_id,
            role=self.role,
            scopes=self.scopes,
            prefixes=self.prefixes,
        )

    def __repr__(self) -> str:
        return f"AccessKey({self.access_key_id!r}, account={self.account!r}, active={self.active})"


class CredentialStore(Protocol):
    """Where tenants and access keys are kept."""

    async def get_tenant(self, account: str) -> Tenant | None: ...

    async def put_tenant(self, tenant: Tenant) -> None:
        """Insert or replace."""

    async def get_access_key(self, access_key_id: str) -> AccessKey | None: ...

    async def put_access_key(self, key: AccessKey) -> None:
        """Insert or replace.  The tenant must exist (``ValueError``)."""

    async def list_access_keys(self, account: str) -> list[AccessKey]:
        """All keys of the account, ordered by id."""


class Credentials:
    """Access keys as the request path sees them: a synchronous look-up, and a refresh on a miss.

    A known key is looked up again in the store after ``fresh_seconds``, so that is how long a key that was
    made inactive elsewhere goes on working.  Unknown ids are remembered for ``unknown_seconds``, at most
    ``unknown_limit`` of them; ids that no store would have given out are refused without asking, twins
    share one look-up, and at most ``lookups_limit`` are under way, so that strangers cannot flood the store.
    """

    def __init__(
        self,
        store: CredentialStore,
        *,
        clock: Callable[[], float] = time.monotonic,
        known_limit: int = 10_000,
        unknown_limit: int = 1_000,
        fresh_seconds: float = 60,
        unknown_seconds: float = 5,
        lookups_limit: int = 8,
    ) -> None:
        self._store = store
        self._clock = clock
        self._known: OrderedDict[str, tuple[AccessKey, float]] = OrderedDict()
        self._known_limit = known_limit
        self._unknown: OrderedDict[str, float] = OrderedDict()
        self._unknown_limit = unknown_limit
        self._fresh_seconds = fresh_seconds
        self._unknown_seconds = unknown_seconds
        self._under_way: dict[str, asyncio.Task[AccessKey | None]] = {}
        self._lookups = asyncio.Semaphore(lookups_limit)

    def cached(self, access_key_id: str) -> AccessKey | None:
        """The key, if it was looked up lately.  None says nothing: ask :meth:`find`."""
        entry = self._known.get(access_key_id)
        if entry is None or entry[1] <= self._clock():
            return None
        return entry[0]

    async def find(self, access_key_id: str) -> AccessKey | None:
        """The key, active or not; None if there is none.  Raises what the store raises."""
        key = self.cached(access_key_id)
        if key is not None:
            return key
        if not _ACCESS_KEY_ID.match(access_key_id):
            return None
        if self._unknown.get(access_key_id, 0.0) > self._clock():
            return None
        task = self._under_way.get(access_key_id)
        if task is None:
            task = asyncio.ensure_future(self._look_up(access_key_id))
            self._under_way[access_key_id] = task
            task.add_done_callback(lambda _: self._under_way.pop(access_key_id, None))
        return await asyncio.shield(task)

    async def put(self, key: AccessKey) -> None:
        """Store a key; it is seen at once."""
        await self._store.put_access_key(key)
        self._unknown.pop(key.access_key_id, None)
        self._remember(key)

    async def _look_up(self, access_key_id: str) -> AccessKey | None:
        async with self._lookups:
            key = await self._store.get_access_key(access_key_id)
        if key is not None:
            self._remember(key)
            return key
        self._known.pop(access_key_id, None)
        self._unknown[access_key_id] = self._clock() + self._unknown_seconds
        self._unknown.move_to_end(access_key_id)
        if len(self._unknown) > self._unknown_limit:
            self._unknown.popitem(last=False)
        return None

    def _remember(self, key: AccessKey) -> None:
        self._known[key.access_key_id] = (key, self._clock() + self._fresh_seconds)
        self._known.move_to_end(key.access_key_id)
        if len(self._known) > self._known_limit:
            self._known.popitem(last=False)


def check_account(account: str) -> str:
    """The account, if it is one (``ValueError``)."""
    if not _ACCOUNT.match(account):
        raise ValueError(f"an account is 12 digits, not {account!r}")
    return account


def check_access_key(access_key_id: str, secret: str) -> None:
    """Whether the pair can be used as an access key (``ValueError``, which does not name the secret)."""
    if not _ACCESS_KEY_ID.match(access_key_id):
        raise ValueError(f"an access key id is 16 to 128 letters, digits or underscores, not {access_key_id!r}")
    if not _SECRET.match(secret):
        raise ValueError("a secret access key is 8 to 128 printable ASCII characters without spaces")


def new_access_key(account: str) -> AccessKey:
    """A key with random id, secret and principal, of the forms that AWS gives out."""
    return AccessKey(
        access_key_id="AKIA" + "".join(secrets.choice(_BASE32) for _ in range(16)),
        secret=secrets.token_urlsafe(30),
        account=account,
        principal_id=new_principal_id(),
    )


def new_principal_id() -> str:
    """A user id of the form that IAM gives out."""
    return "AIDA" + "".join(secrets.choice(_BASE32) for _ in range(17))

"""Tenants, and the keys that authenticate their callers.

A secret access key has to be stored readable, because a SigV4 signature can only be verified with it; it never
appears in a ``repr``.  Of an API key only a digest is stored (:mod:`auth.tokens.api_keys`).

Every record has a ``version``, which each change increments, so that one of two concurrent changes is refused
instead of lost (:class:`auth.store.CredentialStore`).
"""

from __future__ import annotations

import re
import secrets
from typing import Literal

import msgspec

from auth.limits import UNLIMITED, TenantLimits
from auth.principal import SCOPES, Principal, Role, Scope

_ACCOUNT = re.compile(r"[0-9]{12}\Z")
_ACCESS_KEY_ID = re.compile(r"\w{16,128}\Z", re.ASCII)
"""Pattern and lengths of IAM's AccessKeyId."""
_SECRET = re.compile(r"[!-~]{8,128}\Z")
BASE32 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"


class Tenant(msgspec.Struct, frozen=True):
    """An account, which owns queues and keys."""

    account: str
    """Account number of 12 digits."""
    name: str
    state: Literal["active", "suspended", "deleting", "deleted"] = "active"
    """State; only the keys of an active tenant are accepted.  A tenant in state ``deleting`` is having its data
    removed.  A deleted tenant is never active again, and its account number is not reused."""
    created_s: int = 0
    limits: TenantLimits = UNLIMITED
    version: int = 1
    deleted_s: int | None = None
    """Time when its deletion began."""


class _Key(msgspec.Struct, frozen=True, kw_only=True):
    """Fields shared by all kinds of keys: user, rights and lifetime."""

    active: bool = True
    name: str = "root"
    """Name of the user that the key belongs to: policies name it ``arn:aws:iam::account:user/name``."""
    role: Role = "user"
    scopes: tuple[Scope, ...] = SCOPES
    prefixes: tuple[str, ...] = ()
    """Prefixes of the queue names that the key may use; empty: all queues."""
    created_s: int = 0
    expires_s: int | None = None
    """Time from which the key is refused."""
    revoked_s: int | None = None
    """Time of its revocation; None if it is active, or an older Holdfast did not record it."""
    version: int = 1


class AccessKey(_Key, frozen=True):
    """A key that signs requests, with its owner."""

    access_key_id: str
    secret: str
    account: str
    principal_id: str
    """The caller's id in SQS: ``SenderId`` of the messages sent with this key."""

    @property
    def principal(self) -> Principal:
        """The caller authenticated by this key."""
        return _principal_of(self, self.access_key_id)

    def __repr__(self) -> str:
        return f"AccessKey({self.access_key_id!r}, account={self.account!r}, active={self.active})"


class ApiKey(_Key, frozen=True):
    """Record of a key for ``Authorization: Bearer hf_...``; only its holder has the key itself."""

    key_id: str
    digest: bytes
    """SHA-256 of the whole key (:mod:`auth.tokens.api_keys`)."""
    account: str
    principal_id: str
    """The caller's id, as for an access key."""

    @property
    def principal(self) -> Principal:
        """The caller authenticated by this key."""
        return _principal_of(self, f"hf_{self.key_id}")

    def __repr__(self) -> str:
        return f"ApiKey({self.key_id!r}, account={self.account!r}, active={self.active})"


def _principal_of(key: AccessKey | ApiKey, credential: str) -> Principal:
    return Principal(
        account=key.account,
        principal_id=key.principal_id,
        arn=user_arn(key.account, key.name),
        credential=credential,
        role=key.role,
        scopes=key.scopes,
        prefixes=key.prefixes,
        expires_s=key.expires_s,
    )


class TenantRole(msgspec.Struct, frozen=True):
    """A named set of rights for sessions (AssumeRole): ``arn:aws:iam::account:role/name``.

    The account's own callers may assume it; others only if the role trusts them.
    """

    account: str
    name: str
    role_id: str
    """First half of its sessions' principal ids, in IAM's format."""
    scopes: tuple[Scope, ...] = SCOPES
    prefixes: tuple[str, ...] = ()
    trusted_accounts: tuple[str, ...] = ()
    """Other accounts whose callers may assume the role."""
    trusted_subjects: tuple[str, ...] = ()
    """Subjects of the trusted OIDC issuer whose tokens may assume the role."""
    session_seconds_max: int = 3600
    created_s: int = 0
    version: int = 1

    @property
    def arn(self) -> str:
        return f"arn:aws:iam::{self.account}:role/{self.name}"


class ServiceKey(msgspec.Struct, frozen=True):
    """A random key of the service itself: it signs or encrypts tokens that callers hold."""

    key_id: str
    purpose: str
    secret: bytes
    created_s: int

    def __repr__(self) -> str:
        return f"ServiceKey({self.key_id!r}, purpose={self.purpose!r})"


def user_arn(account: str, name: str) -> str:
    """ARN of a user in queue policies."""
    return f"arn:aws:iam::{account}:root" if name == "root" else f"arn:aws:iam::{account}:user/{name}"


def check_account(account: str) -> str:
    """Return the account if it is valid (``ValueError``)."""
    if not _ACCOUNT.match(account):
        raise ValueError(f"an account is 12 digits, not {account!r}")
    return account


def is_key_id(text: str) -> bool:
    """Test if the text can be a key id, and is worth a lookup."""
    return _ACCESS_KEY_ID.match(text) is not None


def check_access_key(access_key_id: str, secret: str) -> None:
    """Validate an access key (``ValueError``, whose text does not contain the secret)."""
    if not _ACCESS_KEY_ID.match(access_key_id):
        raise ValueError(f"an access key id is 16 to 128 letters, digits or underscores, not {access_key_id!r}")
    if not _SECRET.match(secret):
        raise ValueError("a secret access key is 8 to 128 printable ASCII characters without spaces")


def new_access_key(account: str) -> AccessKey:
    """Create a key with random id, secret and principal, in AWS's formats."""
    return AccessKey(
        access_key_id="AKIA" + "".join(secrets.choice(BASE32) for _ in range(16)),
        secret=secrets.token_urlsafe(30),
        account=account,
        principal_id=new_principal_id(),
    )


def new_principal_id(prefix: str = "AIDA") -> str:
    """Create a random user id in IAM's format (``AIDA``), or a role id (``AROA``)."""
    return prefix + "".join(secrets.choice(BASE32) for _ in range(17))

"""Tenants, and the keys with which their callers say who they are.

A secret access key has to be kept readable, for a SigV4 signature can only be checked with it; it never
appears in a ``repr``.  Of an API key only a digest is kept (:mod:`auth.api_keys`).

Every record has a ``version``, which each change counts on, so that of two changes at once one is refused
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
"""The pattern and lengths of IAM's AccessKeyId."""
_SECRET = re.compile(r"[!-~]{8,128}\Z")
BASE32 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"


class Tenant(msgspec.Struct, frozen=True):
    """An account: it owns queues and keys."""

    account: str
    """12 digits."""
    name: str
    state: Literal["active", "suspended", "deleting", "deleted"] = "active"
    """Only an active one's keys are let in.  A deleted one is never active again, and its account is not given out
    anew; while it is ``deleting``, what it owns is being removed."""
    created_s: int = 0
    limits: TenantLimits = UNLIMITED
    version: int = 1
    deleted_s: int | None = None
    """When its deletion began."""


class _Key(msgspec.Struct, frozen=True, kw_only=True):
    """What the kinds of keys have in common: whose they are, and what they are good for."""

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
    revoked_s: int | None = None
    """When it was revoked, if it is not active and an older Holdfast did not do that."""
    version: int = 1


class AccessKey(_Key, frozen=True):
    """What signs requests, and for whom."""

    access_key_id: str
    secret: str
    account: str
    principal_id: str
    """The caller's id as SQS tells it: ``SenderId`` of the messages that are sent with this key."""

    @property
    def principal(self) -> Principal:
        """The caller that this key stands for."""
        return _principal_of(self, self.access_key_id)

    def __repr__(self) -> str:
        return f"AccessKey({self.access_key_id!r}, account={self.account!r}, active={self.active})"


class ApiKey(_Key, frozen=True):
    """What ``Authorization: Bearer hf_...`` names; the key itself is known to its holder alone."""

    key_id: str
    digest: bytes
    """SHA-256 of the whole key (:mod:`auth.api_keys`)."""
    account: str
    principal_id: str
    """As of an access key."""

    @property
    def principal(self) -> Principal:
        """The caller that this key stands for."""
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
    """A named set of rights that sessions can be begun with (AssumeRole): ``arn:aws:iam::account:role/name``.

    The account's own callers may assume it; others only where it says so.
    """

    account: str
    name: str
    role_id: str
    """The first half of its sessions' principal ids, of the form that IAM gives out."""
    scopes: tuple[Scope, ...] = SCOPES
    prefixes: tuple[str, ...] = ()
    trusted_accounts: tuple[str, ...] = ()
    """Accounts whose callers may assume the role as well."""
    trusted_subjects: tuple[str, ...] = ()
    """Subjects of the trusted OIDC issuer whose tokens may assume the role."""
    session_seconds_most: int = 3600
    created_s: int = 0
    version: int = 1

    @property
    def arn(self) -> str:
        return f"arn:aws:iam::{self.account}:role/{self.name}"


class ServiceKey(msgspec.Struct, frozen=True):
    """A random key of the service itself: it signs or seals what callers carry around."""

    key_id: str
    purpose: str
    secret: bytes
    created_s: int

    def __repr__(self) -> str:
        return f"ServiceKey({self.key_id!r}, purpose={self.purpose!r})"


def user_arn(account: str, name: str) -> str:
    """How queue policies name a user."""
    return f"arn:aws:iam::{account}:root" if name == "root" else f"arn:aws:iam::{account}:user/{name}"


def check_account(account: str) -> str:
    """The account, if it is one (``ValueError``)."""
    if not _ACCOUNT.match(account):
        raise ValueError(f"an account is 12 digits, not {account!r}")
    return account


def is_key_id(text: str) -> bool:
    """Whether a store may know a key of this id: it is not worth a look-up otherwise."""
    return _ACCESS_KEY_ID.match(text) is not None


def check_access_key(access_key_id: str, secret: str) -> None:
    """Whether the pair can be used as an access key (``ValueError``, which does not name the secret)."""
    if not _ACCESS_KEY_ID.match(access_key_id):
        raise ValueError(f"an access key id is 16 to 128 letters, digits or underscores, not {access_key_id!r}")
    if not _SECRET.match(secret):
        raise ValueError("a secret access key is 8 to 128 printable ASCII characters without spaces")


def new_access_key(account: str) -> AccessKey:
    """A key with random id, secret and principal, of the forms that AWS gives out."""
    return AccessKey(
        access_key_id="AKIA" + "".join(secrets.choice(BASE32) for _ in range(16)),
        secret=secrets.token_urlsafe(30),
        account=account,
        principal_id=new_principal_id(),
    )


def new_principal_id(prefix: str = "AIDA") -> str:
    """A user's id of the form that IAM gives out (``AIDA``), or a role's (``AROA``)."""
    return prefix + "".join(secrets.choice(BASE32) for _ in range(17))

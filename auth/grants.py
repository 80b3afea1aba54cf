"""What a token or a session carries: rights that rest on a key, or on a role, and end with it.

A grant says who its bearer is and what it was given at most.  What it is worth now is looked up at each use
(:class:`Granted`): the key that it was bought with and the role that it was begun with must still be there, and what
has been taken from them since is taken from the grant.  Nothing is ever added.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from auth.credentials import AccessKey, ApiKey, Tenant, TenantRole
from auth.errors import ExpiredToken, InvalidClientTokenId
from auth.lookup import Credentials, Known, not_active
from auth.principal import EVERY_SCOPE, Principal, Role, Scope, held


class NothingLeft(ValueError):
    """No queue has a name that both sets of prefixes allow, or no scope is in both."""


class Grant(msgspec.Struct, frozen=True):
    """Who the bearer is, what it may do at most, until when, and what that rests on."""

    account: str
    principal_id: str
    arn: str
    credential: str
    """The public id of the token or session, for logs."""
    role: Role
    scopes: tuple[Scope, ...]
    prefixes: tuple[str, ...]
    expires_s: int
    base: str = ""
    """The key that it was bought with: an access key's id, or ``hf_`` and an API key's; empty: none of this service."""
    assumed: str = ""
    """The role that it was begun with, as ``account/name``; empty: none."""
    role_id: str = ""
    """Of that role: one that was deleted and made anew is another."""


class Granted:
    """A grant in use: the caller that it stands for, kept while nothing that it rests on changes."""

    __slots__ = ("_made_of", "grant", "principal", "tenant")

    def __init__(self, grant: Grant) -> None:
        self.grant = grant
        self.principal: Principal
        self.tenant: Tenant
        self._made_of: tuple[object, ...] | None = None

    async def check(self, credentials: Credentials, now: float) -> None:
        """Whether it is in force; then ``principal`` and ``tenant`` are set.

        Raises :class:`~auth.errors.AuthError`, and what the store raises.  Waits only for what is not cached.
        """
        grant = self.grant
        if now >= grant.expires_s:
            raise ExpiredToken
        scopes, prefixes = grant.scopes, grant.prefixes
        base, role = await self._base(credentials, now), await self._role(credentials)
        tenant = await credentials.tenants.find(grant.account)
        if tenant is None:
            raise InvalidClientTokenId
        if tenant.state != "active":
            raise not_active(tenant)
        self.tenant = tenant
        made_of = (
            () if base is None else (base.role, base.scopes, base.prefixes, base.expires_s),
            () if role is None else (role.scopes, role.prefixes),
        )
        if made_of == self._made_of:
            return
        try:
            for limit in (base, role):
                if limit is not None:
                    scopes, prefixes = narrowed(scopes, prefixes, limit.scopes, limit.prefixes)
        except NothingLeft:
            raise InvalidClientTokenId from None
        ends = None if base is None else base.expires_s
        self.principal = Principal(
            account=grant.account,
            principal_id=grant.principal_id,
            arn=grant.arn,
            credential=grant.credential,
            role=grant.role if base is None or grant.role == base.role else "user",
            scopes=scopes,
            prefixes=prefixes,
            expires_s=grant.expires_s if ends is None else min(grant.expires_s, ends),
        )
        self._made_of = made_of

    async def _base(self, credentials: Credentials, now: float) -> AccessKey | ApiKey | None:
        base = self.grant.base
        if not base:
            return None
        known: Known[AccessKey] | Known[ApiKey] | None
        if base.startswith("hf_"):
            known = await credentials.find_api_key(base[3:])
        else:
            known = await credentials.find(base)
        if known is None:
            raise InvalidClientTokenId
        if not known.usable or now >= known.expires_s:
            raise known.refusal()
        return known.key

    async def _role(self, credentials: Credentials) -> TenantRole | None:
        if not self.grant.assumed:
            return None
        role = await credentials.roles.find(self.grant.assumed)
        if role is None or role.role_id != self.grant.role_id:
            raise InvalidClientTokenId
        return role


def narrowed(
    scopes: Iterable[Scope],
    prefixes: tuple[str, ...],
    other_scopes: Iterable[Scope],
    other_prefixes: tuple[str, ...],
) -> tuple[tuple[Scope, ...], tuple[str, ...]]:
    """Scopes and prefixes that both allow.  Raises :class:`NothingLeft`."""
    both = held(scopes) & held(other_scopes)
    if not both:
        raise NothingLeft("no scope is left")
    if "manage" in both:
        both -= {"monitor"}
    return tuple(scope for scope in EVERY_SCOPE if scope in both), _prefixes_in_both(prefixes, other_prefixes)


def _prefixes_in_both(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    if not one or not other:
        return one or other
    pairs = ((a, b) if len(a) >= len(b) else (b, a) for a in one for b in other)
    both = {longer for longer, shorter in pairs if longer.startswith(shorter)}
    if not both:
        raise NothingLeft("no queue name has a prefix of both")
    return tuple(sorted(both))

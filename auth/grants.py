"""Grants of tokens and sessions: rights derived from a key or a role.  A grant ends with its key and its role.

A grant names its bearer and its maximum rights.  Its current rights are computed at each use
(:class:`Granted`): the key that bought it and the role that it assumed must still exist, and rights removed
from them since are removed from the grant.  Rights are never added.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from auth.credentials import AccessKey, ApiKey, Tenant, TenantRole
from auth.errors import ExpiredToken, InvalidClientTokenId
from auth.lookup import CachedKey, Credentials, not_active
from auth.principal import EVERY_SCOPE, SCOPES, STREAM_SCOPES, Principal, Role, Scope, effective_scopes


class NothingLeft(ValueError):
    """No queue name matches both sets of prefixes, or no scope is in both."""


class Grant(msgspec.Struct, frozen=True):
    """The bearer, its maximum rights, their expiry, and the key or role they derive from."""

    account: str
    principal_id: str
    arn: str
    credential: str
    """Public id of the token or session, for logs."""
    role: Role
    scopes: tuple[Scope, ...]
    prefixes: tuple[str, ...]
    expires_s: int
    base: str = ""
    """The key that bought it: an access key's id, or ``hf_`` and an API key's; empty: no key of this service."""
    assumed: str = ""
    """The assumed role, as ``account/name``; empty: none."""
    role_id: str = ""
    """Id of that role, which distinguishes it from a role created later under the same name."""


class Granted:
    """A grant in use, with its caller cached while the records it derives from are unchanged."""

    __slots__ = ("_made_of", "grant", "principal", "tenant")

    def __init__(self, grant: Grant) -> None:
        self.grant = grant
        self.principal: Principal
        self.tenant: Tenant
        self._made_of: tuple[object, ...] | None = None

    async def check(self, credentials: Credentials, now: float) -> None:
        """Check that the grant is in force, and set ``principal`` and ``tenant``.

        Raises :class:`~auth.errors.AuthError`, and the store's errors.  Waits only for records that are not
        cached.
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
        known: CachedKey[AccessKey] | CachedKey[ApiKey] | None
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
    """Intersect scopes and prefixes.  Raises :class:`NothingLeft`."""
    both = effective_scopes(scopes) & effective_scopes(other_scopes)
    if not both:
        raise NothingLeft("no scope is left")
    if "manage" in both:
        both -= {"monitor"}
    if both.issuperset(SCOPES):
        both -= frozenset(STREAM_SCOPES)
    return tuple(scope for scope in EVERY_SCOPE if scope in both), _prefixes_in_both(prefixes, other_prefixes)


def _prefixes_in_both(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    if not one or not other:
        return one or other
    pairs = ((a, b) if len(a) >= len(b) else (b, a) for a in one for b in other)
    both = {longer for longer, shorter in pairs if longer.startswith(shorter)}
    if not both:
        raise NothingLeft("no queue name has a prefix of both")
    return tuple(sorted(both))

"""Callers who present a key or a token as it is: an API key, a token bought with a key, or one of the OIDC issuer."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from auth.credentials import Tenant
from auth.errors import InvalidClientTokenId
from auth.lookup import USE_SECONDS, CachedKey, Credentials, K, not_active
from auth.principal import Principal
from auth.tokens.api_keys import is_key, key_id_in
from auth.tokens.jwts import ISSUER, issuer_of
from frontend.services import Services

if TYPE_CHECKING:
    from auth.tokens.oidc import Oidc


class Caller(Protocol):
    """The authenticated sender of a request."""

    @property
    def principal(self) -> Principal: ...
    @property
    def tenant(self) -> Tenant: ...


class Outside(NamedTuple):
    """A caller authenticated by an outside issuer."""

    principal: Principal
    tenant: Tenant


class Claimant(Protocol):
    """A sign-in under way."""

    credential: str
    """Claimed identity of the caller, a key's public id: set as soon as it is known, for logs."""


class Bearers:
    """Finds callers by what they present."""

    def __init__(self, services: Services) -> None:
        self._credentials = services.credentials
        self._tokens = services.tokens
        self._oidc = services.oidc
        self._clock = services.clock

    async def find(self, claimant: Claimant, presented: bytes) -> Caller:
        """Find the caller of a key or a token.  Does not wait while it is in the caches.

        Raises :class:`auth.errors.AuthError`, and the store's errors.
        """
        key_id = key_id_in(presented)
        if key_id is None:
            return await self._of_token(claimant, presented)
        claimant.credential = f"hf_{key_id}"
        known = self._credentials.api_keys.cached(key_id)
        if known is None:
            known = await self._credentials.find_api_key(key_id)
        if known is None or not is_key(presented, known.key):
            raise InvalidClientTokenId
        return let_in(self._credentials, known, key_id, self._clock())

    async def _of_token(self, claimant: Claimant, token: bytes) -> Caller:
        claimant.credential = "a token"
        now = self._clock()
        issuer = issuer_of(token)
        if self._oidc is not None and issuer == self._oidc.settings.issuer:
            return await self._outsider(self._oidc, claimant, token, now)
        if issuer != ISSUER:
            raise InvalidClientTokenId
        granted = await self._tokens.find(token, now)
        claimant.credential = granted.grant.credential
        await granted.check(self._credentials, now)
        return granted

    async def _outsider(self, oidc: Oidc, claimant: Claimant, token: bytes, now: float) -> Caller:
        outsider = await oidc.check(token, now)
        claimant.credential = outsider.credential
        principal = oidc.principal(outsider)
        tenant = await self._credentials.tenants.find(principal.account)
        if tenant is None:
            raise InvalidClientTokenId
        if tenant.state != "active":
            raise not_active(tenant)
        return Outside(principal, tenant)


def let_in(credentials: Credentials, known: CachedKey[K], key_id: str, now: float) -> CachedKey[K]:
    """Return an authenticated key's caller if the key is valid; records its use at intervals.

    Raises :class:`auth.errors.AuthError`.
    """
    if not known.usable or now >= known.expires_s:
        raise known.refusal()
    if now - known.recorded_s >= USE_SECONDS:
        known.recorded_s = now
        credentials.used(key_id, now)
    return known

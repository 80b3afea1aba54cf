"""Authentication of requests: from headers and query string to a principal, or a refusal.

Shared by SQS, STS and the REST interface.  A caller presents one of these:

* a signature (SigV4, in the header or in the query string) made with an access key;
* the same, made with a session's temporary key, together with the session's token;
* ``Authorization: Bearer hf_...``: an API key;
* ``Authorization: Bearer`` and a JWT bought with an API key, or one of the trusted OIDC issuer.

Authentication does not wait while the caller's key is in the cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from auth.credentials import Tenant
from auth.errors import IncompleteSignature, InvalidClientTokenId
from auth.lookup import USE_SECONDS, CachedKey, K, not_active
from auth.principal import Principal
from auth.signatures.sigv4 import SignatureClaim, Verifier
from auth.tokens.api_keys import is_key, key_id_in
from auth.tokens.jwts import ISSUER, issuer_of
from frontend.services import Services

if TYPE_CHECKING:
    from auth.tokens.oidc import Oidc

_BEARER = b"bearer "


class Presented(Protocol):
    """The parts of a request used for authentication."""

    method: str
    path: bytes
    """Path as it was sent."""
    query: bytes
    """Query string as it was sent."""
    headers: dict[bytes, bytes]
    """Headers as in :data:`auth.signatures.sigv4.Headers`."""
    who: str
    """Claimed identity of the caller, a key's public id: set as soon as it is known, for logs."""


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


class Authenticator:
    """Authenticates requests.  Signatures have to be made for ``service``."""

    def __init__(self, services: Services, service: str = "sqs") -> None:
        self._credentials = services.credentials
        self._cached_access_key = services.credentials.access_keys.cached
        self._sessions = services.sessions
        self._tokens = services.tokens
        self._oidc = services.oidc
        self._clock = services.clock
        self._verifier = Verifier(services.settings.region, service)

    def at_once(self, request: Presented, body: bytes) -> Caller | None:
        """Authenticate in the common case, a signature by a cached access key; None: ask :meth:`__call__`.
        Raises :class:`auth.errors.AuthError`."""
        headers = request.headers
        if headers.get(b"authorization", b"")[:4] != b"AWS4" or b"x-amz-security-token" in headers:
            return None
        claim = self._verifier.claim(headers, request.query)
        known = self._cached_access_key(claim.access_key_id)
        if known is None:
            return None
        request.who = access_key_id = claim.access_key_id
        if not known.key.active:
            raise InvalidClientTokenId
        return self._let_in(known, access_key_id, self._check_signature(claim, known.key.secret, request, body))

    async def __call__(self, request: Presented, body: bytes) -> Caller:
        """Authenticate a request.

        Raises :class:`auth.errors.AuthError`, and the store's errors.
        """
        headers = request.headers
        authorization = headers.get(b"authorization", b"AWS4")
        if authorization[:4] != b"AWS4" and authorization[:7].lower() == _BEARER:
            return await self._bearer(request, authorization[7:].strip())
        claim = self._verifier.claim(headers, request.query)
        request.who = access_key_id = claim.access_key_id
        if claim.session_token is not None:
            return await self._session(request, claim, claim.session_token, body)
        known = await self._credentials.find(access_key_id)
        if known is None or not known.key.active:
            raise InvalidClientTokenId
        return self._let_in(known, access_key_id, self._check_signature(claim, known.key.secret, request, body))

    def _check_signature(self, claim: SignatureClaim, secret: str, request: Presented, body: bytes) -> float:
        """Verify the signature; returns the time of verification.  Raises :class:`auth.errors.AuthError`."""
        now = self._clock()
        self._verifier.check(
            claim,
            secret,
            method=request.method.encode(),
            path=request.path,
            query=request.query,
            headers=request.headers,
            body=body,
            now=now,
        )
        return now

    def _let_in(self, known: CachedKey[K], key_id: str, now: float) -> CachedKey[K]:
        """Return an authenticated key's caller if the key is valid; records its use at intervals."""
        if not known.usable or now >= known.expires_s:
            raise known.refusal()
        if now - known.recorded_s >= USE_SECONDS:
            known.recorded_s = now
            self._credentials.used(key_id, now)
        return known

    async def _session(self, request: Presented, claim: SignatureClaim, token: bytes, body: bytes) -> Caller:
        opened = await self._sessions.find(token)
        if opened.session.access_key_id != claim.access_key_id:
            raise InvalidClientTokenId
        now = self._check_signature(claim, opened.session.secret, request, body)
        await opened.check(self._credentials, now)
        return opened

    async def _bearer(self, request: Presented, presented: bytes) -> Caller:
        if b"host" not in request.headers:
            raise IncompleteSignature("The request has no Host header.")
        key_id = key_id_in(presented)
        if key_id is None:
            return await self._jwt(request, presented)
        request.who = f"hf_{key_id}"
        known = self._credentials.api_keys.cached(key_id)
        if known is None:
            known = await self._credentials.find_api_key(key_id)
        if known is None or not is_key(presented, known.key):
            raise InvalidClientTokenId
        return self._let_in(known, key_id, self._clock())

    async def _jwt(self, request: Presented, token: bytes) -> Caller:
        request.who = "a token"
        now = self._clock()
        issuer = issuer_of(token)
        if self._oidc is not None and issuer == self._oidc.settings.issuer:
            return await self._outsider(self._oidc, request, token, now)
        if issuer != ISSUER:
            raise InvalidClientTokenId
        granted = await self._tokens.find(token, now)
        request.who = granted.grant.credential
        await granted.check(self._credentials, now)
        return granted

    async def _outsider(self, oidc: Oidc, request: Presented, token: bytes, now: float) -> Caller:
        outsider = await oidc.check(token, now)
        request.who = outsider.credential
        principal = oidc.principal(outsider)
        tenant = await self._credentials.tenants.find(principal.account)
        if tenant is None:
            raise InvalidClientTokenId
        if tenant.state != "active":
            raise not_active(tenant)
        return Outside(principal, tenant)

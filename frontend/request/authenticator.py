"""Authentication of requests: from headers and query string to a principal, or a refusal.

Shared by SQS, STS and the REST interface.  A caller presents one of these:

* a signature (SigV4, in the header or in the query string) made with an access key;
* the same, made with a session's temporary key, together with the session's token;
* ``Authorization: Bearer hf_...``: an API key;
* ``Authorization: Bearer`` and a JWT bought with a key, or one of the trusted OIDC issuer.

Authentication does not wait while the caller's key is in the cache.
"""

from __future__ import annotations

from auth.errors import IncompleteSignature, InvalidClientTokenId
from auth.signatures.claim import SignatureClaim
from auth.signatures.sigv4 import Verifier
from frontend.bearers import Bearers, Caller, let_in
from frontend.request.request import ClientRequest
from frontend.services import Services

_BEARER = b"bearer "


class Authenticator:
    """Authenticates requests.  Signatures have to be made for ``service``."""

    def __init__(self, services: Services, service: str) -> None:
        self._credentials = services.credentials
        self._cached_access_key = services.credentials.access_keys.cached
        self._sessions = services.sessions
        self._bearers = Bearers(services)
        self._clock = services.clock
        self._verifier = Verifier(services.settings.region, service)

    def at_once(self, request: ClientRequest, body: bytes) -> Caller | None:
        """Authenticate in the common case, a signature by a cached access key; None: ask :meth:`__call__`.
        Raises :class:`auth.errors.AuthError`."""
        headers = request.headers
        if headers.get(b"authorization", b"")[:4] != b"AWS4" or b"x-amz-security-token" in headers:
            return None
        claim = self._verifier.claim(headers, request.query)
        known = self._cached_access_key(claim.access_key_id)
        if known is None:
            return None
        request.credential = access_key_id = claim.access_key_id
        if not known.key.active:
            raise InvalidClientTokenId
        return let_in(
            self._credentials, known, access_key_id, self._check_signature(claim, known.key.secret, request, body)
        )

    async def __call__(self, request: ClientRequest, body: bytes) -> Caller:
        """Authenticate a request.

        Raises :class:`auth.errors.AuthError`, and the store's errors.
        """
        headers = request.headers
        authorization = headers.get(b"authorization", b"AWS4")
        if authorization[:4] != b"AWS4" and authorization[:7].lower() == _BEARER:
            return await self._bearer(request, authorization[7:].strip())
        claim = self._verifier.claim(headers, request.query)
        request.credential = access_key_id = claim.access_key_id
        if claim.session_token is not None:
            return await self._session(request, claim, claim.session_token, body)
        known = await self._credentials.find(access_key_id)
        if known is None or not known.key.active:
            raise InvalidClientTokenId
        return let_in(
            self._credentials, known, access_key_id, self._check_signature(claim, known.key.secret, request, body)
        )

    def _check_signature(self, claim: SignatureClaim, secret: str, request: ClientRequest, body: bytes) -> float:
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

    async def _session(self, request: ClientRequest, claim: SignatureClaim, token: bytes, body: bytes) -> Caller:
        opened = await self._sessions.find(token)
        if opened.session.access_key_id != claim.access_key_id:
            raise InvalidClientTokenId
        now = self._check_signature(claim, opened.session.secret, request, body)
        await opened.check(self._credentials, now)
        return opened

    async def _bearer(self, request: ClientRequest, presented: bytes) -> Caller:
        if b"host" not in request.headers:
            raise IncompleteSignature("The request has no Host header.")
        return await self._bearers.find(request, presented)

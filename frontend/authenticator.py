"""Who sent a request: from its headers and query string to a principal, or the reason why not.

One way for SQS and for the REST interface.  Nothing of it waits while the caller's key is in the cache.
"""

from __future__ import annotations

from typing import Protocol

from auth.credentials import Tenant
from auth.errors import InvalidClientTokenId
from auth.principal import Principal
from auth.sigv4 import Verifier
from frontend.services import Services


class Presented(Protocol):
    """A request, as far as it says who sent it."""

    method: str
    path: bytes
    """As it was sent."""
    query: bytes
    """As it was sent."""
    headers: dict[bytes, bytes]
    """As in :data:`auth.sigv4.Headers`."""
    who: str
    """What the caller claims to be, a key's public id: set as soon as it is known, for logs."""


class Caller(Protocol):
    """Who sent it."""

    @property
    def principal(self) -> Principal: ...
    @property
    def tenant(self) -> Tenant: ...


class Authenticator:
    """Checks what requests present."""

    def __init__(self, services: Services) -> None:
        self._credentials = services.credentials
        self._cached_access_key = services.credentials.access_keys.cached
        self._used = services.credentials.used
        self._clock = services.clock
        self._verifier = Verifier(services.settings.region)

    async def __call__(self, request: Presented, body: bytes) -> Caller:
        """Who sent the request.

        Raises :class:`auth.errors.AuthError`, and what the store raises.
        """
        headers = request.headers
        claim = self._verifier.claim(headers, request.query)
        request.who = access_key_id = claim.access_key_id
        known = self._cached_access_key(access_key_id)
        if known is None:
            known = await self._credentials.find(access_key_id)
        if known is None or not known.key.active:
            raise InvalidClientTokenId
        now = self._clock()
        self._verifier.check(
            claim,
            known.key.secret,
            method=request.method.encode(),
            path=request.path,
            query=request.query,
            headers=headers,
            body=body,
            now=now,
        )
        if not known.usable or now >= known.expires_s:
            raise known.refusal()
        self._used(access_key_id, now)
        return known

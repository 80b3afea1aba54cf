"""Documents of an OIDC issuer: each request has limits of time and size, and follows no redirect.

HTTPS only, unless the host is this machine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec

FRESH_SECONDS = 3600
"""Age from which a document is fetched again."""
STALE_SECONDS = 24 * 3600
"""Maximum age of a document while the issuer cannot be reached."""
REFETCH_SECONDS = 30
"""Minimum interval between two fetches of a document, whatever requests arrive."""
FETCH_TIMEOUT_SECONDS = 5
DOCUMENT_BYTES_MAX = 256 * 1024
FETCH_ERRORS = (httpx.HTTPError, TimeoutError, ValueError)
"""Errors of a request to the issuer, or of its answer."""

_LOOPBACK = ("127.0.0.1", "::1", "localhost")

T = TypeVar("T")

log = logging.getLogger("holdfast.auth")


class IssuerDocuments:
    """Fetches documents of the issuer.  All methods raise :data:`FETCH_ERRORS`."""

    def __init__(self, issuer: str, client: httpx.AsyncClient) -> None:
        self.issuer = issuer
        self._client = client

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def get(self, url: str) -> dict[str, Any]:
        """Fetch a JSON object."""
        status, content = await self._request("GET", url)
        if status != 200:
            raise ValueError(f"{url} answers {status}")
        return msgspec.json.decode(content, type=dict[str, Any])

    async def post(self, url: str, form: Mapping[str, str], headers: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        """Send a form; returns the status and the JSON object of the answer.  It has its own time limit."""
        async with asyncio.timeout(FETCH_TIMEOUT_SECONDS):
            status, content = await self._request("POST", url, form, headers)
        try:
            return status, msgspec.json.decode(content, type=dict[str, Any])
        except ValueError:
            raise ValueError(f"{url} answers {status} without a JSON object") from None

    async def discover(self) -> dict[str, Any]:
        """Fetch the discovery document."""
        document = await self.get(self.issuer.rstrip("/") + "/.well-known/openid-configuration")
        if document.get("issuer") != self.issuer:
            raise ValueError(f"its discovery document is for another issuer, {document.get('issuer')!r}")
        return document

    async def _request(
        self, method: str, url: str, form: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        content = bytearray()
        sent = {"Accept": "application/json", **(headers or {})}
        async with self._client.stream(method, url, data=form, headers=sent) as response:
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) > DOCUMENT_BYTES_MAX:
                    raise ValueError(f"{url} answers with more than {DOCUMENT_BYTES_MAX} bytes")
        return response.status_code, bytes(content)


class CachedDocument(Generic[T]):
    """A document that is fetched when it is needed, at most once at a time.  ``clock`` is monotonic."""

    def __init__(self, name: str, issuer: str, fetch: Callable[[], Awaitable[T]], clock: Callable[[], float]) -> None:
        """``name``: as in the log; ``fetch`` raises :data:`FETCH_ERRORS`."""
        self._name = name
        self._issuer = issuer
        self._fetch = fetch
        self._clock = clock
        self._content: T | None = None
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        self._fetching: asyncio.Task[None] | None = None

    @property
    def fresh(self) -> T | None:
        """The content; None if it was not fetched recently."""
        return self._younger_than(FRESH_SECONDS)

    @property
    def usable(self) -> T | None:
        """The content; None if it was never fetched, or is too old even for an issuer that cannot be reached."""
        return self._younger_than(STALE_SECONDS)

    def _younger_than(self, seconds: float) -> T | None:
        if self._fetched_at is None or self._clock() >= self._fetched_at + seconds:
            return None
        return self._content

    async def refresh(self) -> None:
        """Fetch the document, unless that was tried recently; concurrent callers share a fetch."""
        if self._fetching is None:
            if self._tried_at is not None and self._clock() < self._tried_at + REFETCH_SECONDS:
                return
            self._tried_at = self._clock()
            self._fetching = asyncio.ensure_future(self._fetch_once())
            self._fetching.add_done_callback(self._fetched)
        await asyncio.shield(self._fetching)

    def _fetched(self, _: asyncio.Task[None]) -> None:
        self._fetching = None

    async def _fetch_once(self) -> None:
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_SECONDS):
                self._content = await self._fetch()
        except FETCH_ERRORS as error:
            log.warning("the %s of the OIDC issuer %r cannot be fetched: %s", self._name, self._issuer, repr(error))
            return
        self._fetched_at = self._clock()


def oidc_client() -> httpx.AsyncClient:
    """Create an HTTP client for an issuer's documents."""
    return httpx.AsyncClient(timeout=FETCH_TIMEOUT_SECONDS, follow_redirects=False)


def url_in(document: Mapping[str, Any], name: str) -> str:
    """A URL in the discovery document.  Raises ``ValueError``."""
    url = document.get(name)
    if not isinstance(url, str):
        raise ValueError(f"its discovery document names no {name}")
    check_url(url)
    return url


def check_url(url: str) -> None:
    """Require an HTTPS URL, or one of this machine (``ValueError``)."""
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return
    if parts.scheme == "http" and parts.hostname in _LOOPBACK:
        return
    raise ValueError(f"{url!r} is not the https:// URL of an OIDC issuer")

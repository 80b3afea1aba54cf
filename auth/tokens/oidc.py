"""Tokens of one outside OIDC issuer, verified against its published keys (JWKS).

Protections:

* **An algorithm other than the key's** (``none``, HS256 with a public key as its secret): the algorithm follows
  from the published key, never from the token, and has to be RS256, ES256 or EdDSA; the token's header must
  agree.
* **Keys from another source**: the address comes from the settings or from the issuer's discovery document; ``jku``,
  ``x5u`` and ``jwk`` in a token are ignored.  HTTPS only, unless the host is this machine; no redirects.
* **A slow, endless or absent issuer**: each fetch has a time limit and a size limit.  Keys are fresh for an
  hour, and still used for a day while the issuer cannot be reached.
* **Invented key ids**: unknown ones cause at most one fetch per ``REFETCH_SECONDS``.
* **Tokens for others**: issuer and audience have to be the configured ones; times are checked with a minute of
  leeway.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from auth.errors import ExpiredToken, InvalidClientTokenId, IssuerUnreachable
from auth.principal import EVERY_SCOPE, SCOPES, Principal, Role, Scope
from auth.tokens.jwts import LEEWAY_SECONDS, check_not_before, claims_of, header_of

FRESH_SECONDS = 3600
"""Age from which keys are fetched again."""
STALE_SECONDS = 24 * 3600
"""Maximum age of keys while the issuer cannot be reached."""
REFETCH_SECONDS = 30
"""Minimum interval between two fetches, whatever tokens arrive."""
FETCH_TIMEOUT_SECONDS = 5
DOCUMENT_BYTES_MAX = 256 * 1024
KEYS_MAX = 100

_CHECKED_MAX = 10_000
_RSA_BITS_MIN = 2048
_ALGORITHMS = {("RSA", None): "RS256", ("EC", "P-256"): "ES256", ("OKP", "Ed25519"): "EdDSA"}
_SUBJECT = re.compile(r"[!-~]{1,255}\Z")
_ACCOUNT = re.compile(r"[0-9]{12}\Z", re.ASCII)
_LOOPBACK = ("127.0.0.1", "::1", "localhost")

log = logging.getLogger("holdfast.auth")


class OidcSettings(msgspec.Struct, frozen=True):
    """The trusted issuer, and the meaning of its claims.  Raises ``ValueError``."""

    issuer: str
    """Issuer, as in its tokens' ``iss``."""
    audience: str
    """Required audience: equal to its tokens' ``aud``, or contained in it."""
    jwks_url: str | None = None
    """URL of its keys; None: taken from ``issuer/.well-known/openid-configuration``."""
    account_claim: str = "holdfast_account"
    """Claim with the tenant's account."""
    role_claim: str | None = None
    """Claim with the role; None: all callers have the role ``user``."""
    scopes_claim: str | None = None
    """Claim with the scopes, a list or separated by spaces; None: all callers have all scopes."""

    def __post_init__(self) -> None:
        check_url(self.issuer)
        if self.jwks_url is not None:
            check_url(self.jwks_url)
        if not self.audience:
            raise ValueError(
                "an audience is required: otherwise the issuer's tokens for other services would be accepted"
            )


class Outsider(msgspec.Struct, frozen=True):
    """A caller's identity according to the issuer."""

    issuer: str
    subject: str
    audience: str
    expires_s: float
    claims: dict[str, Any]

    @property
    def credential(self) -> str:
        """Identifier for logs."""
        return f"oidc:{self.subject}"


class _Key(msgspec.Struct, frozen=True):
    algorithm: str
    key: Any


class Oidc:
    """Verifies tokens of the issuer.  ``clock`` is monotonic; ``client`` is closed with it."""

    def __init__(self, settings: OidcSettings, client: httpx.AsyncClient, *, clock: Callable[[], float]) -> None:
        self.settings = settings
        self._client = client
        self._clock = clock
        self._keys: dict[str, _Key] = {}
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._checked: OrderedDict[bytes, tuple[Outsider, _Key]] = OrderedDict()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def check(self, token: bytes, now: float) -> Outsider:
        """Verify a token at ``now`` (seconds since the epoch), and return its subject.

        Raises :class:`~auth.errors.InvalidClientTokenId`, :class:`~auth.errors.ExpiredToken` and
        :class:`~auth.errors.IssuerUnreachable`.
        """
        known = self._checked.get(token)
        if known is not None and self._is_fresh() and known[1] in self._keys.values():
            outsider = known[0]
        else:
            outsider = await self._outsider(token, now)
        if now >= outsider.expires_s + LEEWAY_SECONDS:
            raise ExpiredToken
        return outsider

    def principal(self, outsider: Outsider) -> Principal:
        """The caller according to the claims.  Raises :class:`~auth.errors.InvalidClientTokenId`."""
        settings = self.settings
        account = outsider.claims.get(settings.account_claim)
        if not isinstance(account, str) or not _ACCOUNT.match(account):
            raise InvalidClientTokenId
        role = "user" if settings.role_claim is None else outsider.claims.get(settings.role_claim, "user")
        if role not in ("user", "admin", "operator"):
            raise InvalidClientTokenId
        return Principal(
            account=account,
            principal_id=outsider.credential,
            arn=f"arn:aws:sts::{account}:federated-user/{outsider.subject}",
            credential=outsider.credential,
            role=cast(Role, role),
            scopes=self._scopes(outsider),
            expires_s=int(outsider.expires_s),
        )

    def _scopes(self, outsider: Outsider) -> tuple[Scope, ...]:
        name = self.settings.scopes_claim
        if name is None:
            return SCOPES
        claimed = outsider.claims.get(name, [])
        named = claimed.split() if isinstance(claimed, str) else claimed
        if not isinstance(named, list):
            raise InvalidClientTokenId
        return tuple(scope for scope in EVERY_SCOPE if scope in named)

    async def _outsider(self, token: bytes, now: float) -> Outsider:
        settings = self.settings
        header = header_of(token)
        kid = header.get("kid")
        if not isinstance(kid, str):
            raise InvalidClientTokenId
        key = await self._key(kid)
        if key is None or header.get("alg") != key.algorithm:
            raise InvalidClientTokenId
        claims = claims_of(
            token,
            key.key,
            key.algorithm,
            issuer=settings.issuer,
            audience=settings.audience,
            require=["iss", "aud", "exp", "sub"],
        )
        check_not_before(claims, now)
        expires, subject = claims["exp"], claims["sub"]
        # JSON as Python reads it includes NaN and Infinity
        if isinstance(expires, bool) or not isinstance(expires, (int, float)) or not expires < math.inf:
            raise InvalidClientTokenId
        if not isinstance(subject, str) or not _SUBJECT.match(subject):
            raise InvalidClientTokenId
        outsider = Outsider(settings.issuer, subject, settings.audience, expires, claims)
        self._checked[token] = (outsider, key)
        if len(self._checked) > _CHECKED_MAX:
            self._checked.popitem(last=False)
        return outsider

    # --- the issuer's keys ---

    async def _key(self, kid: str) -> _Key | None:
        """The key with this id; None if the issuer is not known to have it.

        Raises :class:`~auth.errors.IssuerUnreachable`.
        """
        if not self._is_fresh() or kid not in self._keys:
            await self._fetch()
        if not self._is_usable():
            raise IssuerUnreachable
        return self._keys.get(kid)

    def _is_fresh(self) -> bool:
        return self._fetched_at is not None and self._clock() < self._fetched_at + FRESH_SECONDS

    def _is_usable(self) -> bool:
        return self._fetched_at is not None and self._clock() < self._fetched_at + STALE_SECONDS

    async def _fetch(self) -> None:
        """Fetch the keys, unless that was tried recently; concurrent callers share a fetch."""
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
                url = self.settings.jwks_url or await self._discovered()
                found = _keys_in(await self._document(url))
        except (httpx.HTTPError, TimeoutError, ValueError) as error:
            issuer = self.settings.issuer
            log.warning("the keys of the OIDC issuer %r cannot be fetched: %s", issuer, repr(error))
            return
        self._keys = found
        self._fetched_at = self._clock()

    async def _discovered(self) -> str:
        document = await self._document(self.settings.issuer.rstrip("/") + "/.well-known/openid-configuration")
        if document.get("issuer") != self.settings.issuer:
            raise ValueError(f"its discovery document is for another issuer, {document.get('issuer')!r}")
        url = document.get("jwks_uri")
        if not isinstance(url, str):
            raise ValueError("its discovery document names no jwks_uri")
        check_url(url)
        return url

    async def _document(self, url: str) -> dict[str, Any]:
        """Fetch a JSON object.  Raises ``ValueError`` and :class:`httpx.HTTPError`."""
        content = bytearray()
        async with self._client.stream("GET", url, headers={"Accept": "application/json"}) as response:
            if response.status_code != 200:
                raise ValueError(f"{url} answers {response.status_code}")
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) > DOCUMENT_BYTES_MAX:
                    raise ValueError(f"{url} answers with more than {DOCUMENT_BYTES_MAX} bytes")
        return msgspec.json.decode(bytes(content), type=dict[str, Any])


def oidc_client() -> httpx.AsyncClient:
    """Create an HTTP client for an issuer's documents."""
    return httpx.AsyncClient(timeout=FETCH_TIMEOUT_SECONDS, follow_redirects=False)


def check_url(url: str) -> None:
    """Require an HTTPS URL, or one of this machine (``ValueError``)."""
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return
    if parts.scheme == "http" and parts.hostname in _LOOPBACK:
        return
    raise ValueError(f"{url!r} is not the https:// URL of an OIDC issuer")


def _keys_in(document: dict[str, Any]) -> dict[str, _Key]:
    """Usable keys of a JWKS; others are left out.  Raises ``ValueError``."""
    listed = document.get("keys")
    if not isinstance(listed, list):
        raise ValueError("its JWKS has no list of keys")
    found: dict[str, _Key] = {}
    for entry in listed[:KEYS_MAX]:
        key = _key_of(entry) if isinstance(entry, dict) else None
        if key is not None:
            found[entry["kid"]] = key
    return found


def _key_of(entry: dict[str, Any]) -> _Key | None:
    kty, crv, kid = entry.get("kty"), entry.get("crv"), entry.get("kid")
    algorithm = _ALGORITHMS.get((str(kty), None if kty == "RSA" else str(crv)))
    if algorithm is None or "d" in entry or not isinstance(kid, str) or entry.get("alg", algorithm) != algorithm:
        return None
    if entry.get("use", "sig") != "sig" or "verify" not in entry.get("key_ops", ["verify"]):
        return None
    try:
        key = jwt.PyJWK(entry, algorithm).key
    except (jwt.PyJWKError, jwt.InvalidKeyError, ValueError):
        return None
    if isinstance(key, RSAPublicKey) and key.key_size < _RSA_BITS_MIN:
        return None
    return _Key(algorithm, key)

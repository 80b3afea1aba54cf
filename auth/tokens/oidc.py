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

import math
import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Literal, cast

import httpx
import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from auth.errors import ExpiredToken, InvalidClientTokenId, IssuerUnreachable
from auth.principal import EVERY_SCOPE, SCOPES, Principal, Role, Scope
from auth.tokens.issuer_documents import CachedDocument, IssuerDocuments, check_url, url_in
from auth.tokens.jwts import LEEWAY_SECONDS, check_not_before, claims_of, header_of

KEYS_MAX = 100

_CHECKED_MAX = 10_000
_RSA_BITS_MIN = 2048
_ALGORITHMS = {("RSA", None): "RS256", ("EC", "P-256"): "ES256", ("OKP", "Ed25519"): "EdDSA"}
_SUBJECT = re.compile(r"[!-~]{1,255}\Z")
_ACCOUNT = re.compile(r"[0-9]{12}\Z", re.ASCII)


class ConsoleClient(msgspec.Struct, frozen=True):
    """The web console as a public client of the issuer: without a secret."""

    client_id: str
    scopes: str = "openid"
    """Requested scopes of the issuer, separated by spaces."""
    token: Literal["access", "id"] = "access"
    """Token with which the console makes its requests."""


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
    console: ConsoleClient | None = None
    """The web console as a client; None: it does not offer to sign in with the issuer."""

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
        self.clock = clock
        self.documents = IssuerDocuments(settings.issuer, client)
        self._keys = CachedDocument("keys", settings.issuer, self._fetch_keys, clock)
        self._checked: OrderedDict[bytes, tuple[Outsider, _Key]] = OrderedDict()

    async def close(self) -> None:
        """Close the connections."""
        await self.documents.close()

    async def check(self, token: bytes, now: float) -> Outsider:
        """Verify a token at ``now`` (seconds since the epoch), and return its subject.

        Raises :class:`~auth.errors.InvalidClientTokenId`, :class:`~auth.errors.ExpiredToken` and
        :class:`~auth.errors.IssuerUnreachable`.
        """
        known = self._checked.get(token)
        keys = self._keys.fresh
        if known is None or keys is None or known[1] not in keys.values():
            known = self._checked[token] = await self._verify(token, self.settings.audience, now)
            if len(self._checked) > _CHECKED_MAX:
                self._checked.popitem(last=False)
        return _unexpired(known[0], now)

    async def check_id_token(self, token: bytes, client_id: str, now: float) -> Outsider:
        """Verify an ID token for a client, except its nonce.  Raises the errors of :meth:`check`."""
        outsider, _ = await self._verify(token, client_id, now)
        # of a token for several audiences, azp names the client that asked for it (OIDC Core 3.1.3.7)
        several = isinstance(outsider.claims["aud"], list) and len(outsider.claims["aud"]) > 1
        if outsider.claims.get("azp", None if several else client_id) != client_id:
            raise InvalidClientTokenId
        return _unexpired(outsider, now)

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

    async def _verify(self, token: bytes, audience: str, now: float) -> tuple[Outsider, _Key]:
        """The subject of a token for this audience, and the key that signed it; the expiry is not checked."""
        issuer = self.settings.issuer
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
            issuer=issuer,
            audience=audience,
            require=["iss", "aud", "exp", "sub"],
        )
        check_not_before(claims, now)
        expires, subject = claims["exp"], claims["sub"]
        # JSON as Python reads it includes NaN and Infinity
        if isinstance(expires, bool) or not isinstance(expires, (int, float)) or not expires < math.inf:
            raise InvalidClientTokenId
        if not isinstance(subject, str) or not _SUBJECT.match(subject):
            raise InvalidClientTokenId
        return Outsider(issuer, subject, audience, expires, claims), key

    # --- the issuer's keys ---

    async def _key(self, kid: str) -> _Key | None:
        """The key with this id; None if the issuer is not known to have it.

        Raises :class:`~auth.errors.IssuerUnreachable`.
        """
        keys = self._keys.fresh
        if keys is None or kid not in keys:
            await self._keys.refresh()
            keys = self._keys.usable
        if keys is None:
            raise IssuerUnreachable
        return keys.get(kid)

    async def _fetch_keys(self) -> dict[str, _Key]:
        url = self.settings.jwks_url or url_in(await self.documents.discover(), "jwks_uri")
        return _keys_in(await self.documents.get(url))


def _unexpired(outsider: Outsider, now: float) -> Outsider:
    if now >= outsider.expires_s + LEEWAY_SECONDS:
        raise ExpiredToken
    return outsider


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

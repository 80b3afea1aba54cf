"""Short-lived tokens bought with an access key or an API key: JWTs, signed with HS256 under keys of the service.

Only the service reads them, so a shared secret is better than a key pair: verification costs microseconds.
``kid`` selects one of the service's own keys, the algorithm is fixed, and issuer, audience and times must be
right.  A token's current rights are computed at each use (:mod:`auth.grants`): it ends with the key that
bought it.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from typing import Any

import jwt
import msgspec

from auth.credentials import AccessKey, ApiKey
from auth.errors import InvalidClientTokenId
from auth.grants import Grant, Granted, narrowed
from auth.principal import Scope
from auth.tokens.service_keys import ServiceKeys

ISSUER = "urn:holdfast"
AUDIENCE = "urn:holdfast"
ALGORITHM = "HS256"
SECONDS_MIN = 60
SECONDS_MAX = 3600
LEEWAY_SECONDS = 60
"""Tolerated difference between the clocks of two frontends, or of an issuer and a frontend."""
TOKEN_BYTES_MAX = 8192

_OPEN_MAX = 10_000
_CLAIMS = ["iss", "aud", "exp", "nbf", "jti", "grant"]


class TokenIssuer:
    """Issues and verifies tokens."""

    def __init__(self, keys: ServiceKeys) -> None:
        self._keys = keys
        self._open: OrderedDict[bytes, Granted] = OrderedDict()

    async def issue(
        self,
        key: AccessKey | ApiKey,
        now: float,
        *,
        seconds: int = SECONDS_MAX,
        scopes: tuple[Scope, ...] | None = None,
        prefixes: tuple[str, ...] = (),
    ) -> str:
        """Issue a token with the rights of ``key``, or a subset of them.

        Raises ``ValueError`` when the time is out of bounds or no right is left, and the store's errors.
        """
        if not SECONDS_MIN <= seconds <= SECONDS_MAX:
            raise ValueError(f"a token is valid for {SECONDS_MIN} to {SECONDS_MAX} seconds, not for {seconds}")
        scopes, prefixes = narrowed(key.scopes, key.prefixes, key.scopes if scopes is None else scopes, prefixes)
        token_id = secrets.token_hex(8)
        principal = key.principal
        expires_s = int(now) + seconds
        grant = Grant(
            account=key.account,
            principal_id=key.principal_id,
            arn=principal.arn,
            credential=f"{principal.credential}/{token_id}",
            role=key.role,
            scopes=scopes,
            prefixes=prefixes,
            expires_s=expires_s,
            base=principal.credential,
        )
        signing = await self._keys.current()
        claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": principal.arn,
            "exp": expires_s,
            "nbf": int(now),
            "jti": token_id,
            "grant": msgspec.to_builtins(grant),
        }
        return jwt.encode(claims, signing.secret, ALGORITHM, headers={"kid": signing.key_id})

    async def find(self, token: bytes, now: float) -> Granted:
        """Verify a token of ours.  :meth:`auth.grants.Granted.check` tests if its grant is in force.

        Raises :class:`~auth.errors.InvalidClientTokenId`, and the store's errors.
        """
        known = self._open.get(token)
        if known is not None:
            return known
        granted = self._open[token] = Granted(await self._grant(token, now))
        if len(self._open) > _OPEN_MAX:
            self._open.popitem(last=False)
        return granted

    async def _grant(self, token: bytes, now: float) -> Grant:
        header = header_of(token)
        kid = header.get("kid")
        key = await self._keys.find(kid) if isinstance(kid, str) else None
        if key is None:
            raise InvalidClientTokenId
        claims = claims_of(token, key.secret, ALGORITHM, issuer=ISSUER, audience=AUDIENCE, require=_CLAIMS)
        check_not_before(claims, now)
        try:
            grant = msgspec.convert(claims["grant"], Grant)
        except msgspec.ValidationError:
            raise InvalidClientTokenId from None
        if claims["exp"] != grant.expires_s:
            raise InvalidClientTokenId
        return grant


def header_of(token: bytes) -> dict[str, Any]:
    """The header of a JWT, not verified.  Raises :class:`~auth.errors.InvalidClientTokenId`."""
    if len(token) > TOKEN_BYTES_MAX:
        raise InvalidClientTokenId
    try:
        header = jwt.get_unverified_header(token)
    except jwt.InvalidTokenError:
        raise InvalidClientTokenId from None
    if "crit" in header:  # critical extensions must be understood, and none is
        raise InvalidClientTokenId
    return header


def issuer_of(token: bytes) -> str:
    """Claimed issuer of a JWT, not verified: selects the verifier.

    Raises :class:`~auth.errors.InvalidClientTokenId`.
    """
    header_of(token)
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except jwt.InvalidTokenError:
        raise InvalidClientTokenId from None
    issuer = claims.get("iss")
    return issuer if isinstance(issuer, str) else ""


def claims_of(
    token: bytes, key: Any, algorithm: str, *, issuer: str, audience: str, require: list[str]
) -> dict[str, Any]:
    """Verified claims of a JWT signed by ``key`` with exactly this algorithm; times are not checked.

    Raises :class:`~auth.errors.InvalidClientTokenId`.
    """
    try:
        return jwt.decode(
            token,
            key,
            algorithms=[algorithm],
            issuer=issuer,
            audience=audience,
            options={"require": require, "verify_exp": False, "verify_nbf": False, "verify_iat": False},
        )
    except (jwt.InvalidTokenError, jwt.InvalidKeyError):
        raise InvalidClientTokenId from None


def check_not_before(claims: dict[str, Any], now: float) -> None:
    """Refuse a token from the future, with some leeway.  Raises :class:`~auth.errors.InvalidClientTokenId`."""
    for name in ("nbf", "iat"):
        stamp = claims.get(name, 0)
        if isinstance(stamp, bool) or not isinstance(stamp, (int, float)) or not stamp <= now + LEEWAY_SECONDS:
            raise InvalidClientTokenId

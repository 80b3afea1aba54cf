"""An OIDC issuer in memory: its documents, its keys, and its tokens."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

ISSUER = "https://issuer.example"
AUDIENCE = "holdfast-tests"
NOW = 1_800_000_000

Private = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey

_RSA = rsa.generate_private_key(65537, 2048)


class OidcIssuer:
    """The issuer.  ``keys`` are its published keys, by kid."""

    def __init__(self, url: str = ISSUER) -> None:
        self.url = url
        self.keys: dict[str, Private] = {"rsa-1": _RSA}
        self.extra: list[Any] = []
        """Additional entries of the JWKS."""
        self.asked: list[str] = []
        self.answer: Callable[[httpx.Request], httpx.Response] | None = None
        """Function that overrides all answers."""
        self.client = httpx.AsyncClient(transport=httpx.MockTransport(self._answer))

    def document(self, path: str) -> dict[str, Any] | None:
        if path == "/.well-known/openid-configuration":
            return {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        if path == "/keys":
            return {"keys": [*(public(kid, key) for kid, key in self.keys.items()), *self.extra]}
        return None

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.path)
        if self.answer is not None:
            return self.answer(request)
        document = self.document(request.url.path)
        return httpx.Response(404) if document is None else httpx.Response(200, json=document)

    def token(self, kid: str = "rsa-1", headers: dict[str, Any] | None = None, **claims: Any) -> bytes:
        """A token signed by this key; a claim that is None is left out."""
        key = self.keys[kid]
        return sign(key, algorithm_of(key), {"kid": kid} | (headers or {}), issuer=self.url, **claims)


def sign(key: Any, algorithm: str, headers: dict[str, Any], issuer: str = ISSUER, **claims: Any) -> bytes:
    content = {
        "iss": issuer,
        "aud": AUDIENCE,
        "sub": "ci@example",
        "exp": NOW + 300,
        "iat": NOW,
        "holdfast_account": "000000000000",
        **claims,
    }
    content = {name: value for name, value in content.items() if value is not None}
    return jwt.encode(content, key, algorithm, headers=headers).encode()


def algorithm_of(key: Private) -> str:
    if isinstance(key, rsa.RSAPrivateKey):
        return "RS256"
    return "ES256" if isinstance(key, ec.EllipticCurvePrivateKey) else "EdDSA"


def public(kid: str, key: Private) -> dict[str, Any]:
    """JWK of a key."""
    algorithm = jwt.get_algorithm_by_name(algorithm_of(key))
    described: dict[str, Any] = json.loads(algorithm.to_jwk(key.public_key()))
    return {**described, "kid": kid, "use": "sig", "key_ops": ["verify"]}

"""SCRAM (RFC 5802, RFC 7677), the server's side: a caller proves that it holds a secret without sending it.

One :class:`ScramExchange` is one sign-in.  It is pure, and does not look anything up: between its two steps the caller
finds the user's keys.  Channel binding is not offered.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from typing import Final, NamedTuple

ITERATIONS: Final = 4096
"""Rounds of the derivation.  Secrets are random, so more rounds would cost time and protect nothing."""
MESSAGE_BYTES_MAX: Final = 2048
HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""Hash functions by mechanism."""

_NONCE_BYTES = 24
_FIRST = re.compile(
    r"(?P<gs2>(?P<binding>[ny]|p=[A-Za-z0-9.-]+),(?:a=(?P<authzid>[^,]*))?,)"
    r"(?P<bare>n=(?P<user>[^,]*),r=(?P<nonce>[!-+\--~]{1,512})(?:,[A-Za-z]+=[^,]*)*)\Z"
)
_FINAL = re.compile(
    r"(?P<unproved>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[!-+\--~]+)(?:,[A-Za-z]+=[^,]*)*)"
    r",p=(?P<proof>[A-Za-z0-9+/=]+)\Z"
)
_ESCAPE = re.compile(r"=(?!2C|3D)")


class ScramRefused(Exception):
    """A message that is malformed, or a wrong proof.  The text quotes no input."""


class ScramKeys(NamedTuple):
    """Keys that verify a secret and do not reveal it."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return "ScramKeys(...)"


def derive_keys(mechanism: str, secret: str, salt: bytes, iterations: int = ITERATIONS) -> ScramKeys:
    """Derive the keys of a secret: takes milliseconds, in which other threads run."""
    name = HASHES[mechanism]
    salted = hashlib.pbkdf2_hmac(name, secret.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", name)
    return ScramKeys(salt, iterations, hashlib.new(name, client_key).digest(), hmac.digest(salted, b"Server Key", name))


class ScramExchange:
    """One sign-in: :meth:`client_first`, :meth:`server_first`, :meth:`finish`."""

    def __init__(self, mechanism: str, *, nonce: str | None = None) -> None:
        """``nonce``: the server's part, random unless a test gives it."""
        self._hash = HASHES[mechanism]
        self._nonce = secrets.token_urlsafe(_NONCE_BYTES) if nonce is None else nonce
        self._gs2 = ""
        self._client_first = ""
        self._server_first = ""

    def client_first(self, message: bytes) -> str:
        """Read the first message; returns the name of the user.  Raises :class:`ScramRefused`."""
        found = _FIRST.match(_text(message))
        if found is None:
            raise ScramRefused("the first message is malformed")
        if found["binding"][0] == "p":
            raise ScramRefused("channel binding is not offered")
        user = _name(found["user"])
        if found["authzid"] and _name(found["authzid"]) != user:
            raise ScramRefused("a user cannot act for another one")
        self._gs2, self._client_first = found["gs2"], found["bare"]
        self._nonce = found["nonce"] + self._nonce
        return user

    def server_first(self, salt: bytes, iterations: int = ITERATIONS) -> bytes:
        """Return the answer to the first message."""
        self._server_first = f"r={self._nonce},s={base64.b64encode(salt).decode()},i={iterations}"
        return self._server_first.encode()

    def finish(self, message: bytes, keys: ScramKeys) -> bytes:
        """Verify the last message; returns the answer, which proves that this side holds the keys.

        Raises :class:`ScramRefused`.
        """
        found = _FINAL.match(_text(message))
        if found is None:
            raise ScramRefused("the last message is malformed")
        if _decoded(found["binding"]) != self._gs2.encode():
            raise ScramRefused("the channel binding is not that of the first message")
        if not hmac.compare_digest(found["nonce"], self._nonce):
            raise ScramRefused("the nonce is not that of the first message")
        signed = f"{self._client_first},{self._server_first},{found['unproved']}".encode()
        signature = hmac.digest(keys.stored_key, signed, self._hash)
        proof = _decoded(found["proof"])
        if len(proof) != len(signature):
            raise ScramRefused("the proof is wrong")
        client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), keys.stored_key):
            raise ScramRefused("the proof is wrong")
        return b"v=" + base64.b64encode(hmac.digest(keys.server_key, signed, self._hash))


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise ScramRefused("the message is too long")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramRefused("the message is no UTF-8") from None


def _name(escaped: str) -> str:
    if _ESCAPE.search(escaped):
        raise ScramRefused("the name of the user is malformed")
    return escaped.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ScramRefused("the last message is malformed") from None

"""Handshake of a connection: agreement on a protocol version, and mutual proof of the shared secret.

::

    client                                       server
    HELLO   versions, nonce, name        ───▶
                                         ◀───    CHALLENGE   version, nonce, name
    PROOF   HMAC("client", both above)   ───▶
                                         ◀───    WELCOME     HMAC("server", both above), limit of bytes in progress

The server chooses the highest version that both support.  The proofs are HMAC-SHA-256 with the secret as the key, over
the side that proves, both earlier frames byte for byte, and on TLS the digest of the server's certificate.  So no proof
is valid for another connection, in the other direction, through a man in the middle or for a version that was not
offered.  The client proves first, so that an unauthenticated caller gets nothing against which to test guesses of the
secret.  The secret itself is never sent.  These frames are the same in all versions of the protocol.

A side that cannot continue sends ``GOODBYE`` with the reason and closes.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Final, TypeVar

import msgspec

from backend.rpc.wire import CHALLENGE, GOODBYE, HELLO, PROOF, WELCOME, encode, frame

VERSION_LOWEST: Final = 1
VERSION_HIGHEST: Final = 1
"""Range of protocol versions that this program supports."""
SECRET_BYTES_MIN: Final = 16
NAME_LENGTH_MAX: Final = 200
_NONCE_BYTES: Final = 32
_PROOF_BYTES: Final = 32

_T = TypeVar("_T")


class HandshakeRefused(Exception):
    """The handshake failed: wrong secret, no common version, or no capacity.  The text says which."""


class SecretUnusable(ValueError):
    """The shared secret is too short."""


class Hello(msgspec.Struct, array_like=True):
    lowest: int
    highest: int
    nonce: bytes
    name: str


class Challenge(msgspec.Struct, array_like=True):
    version: int
    nonce: bytes
    name: str


class Proof(msgspec.Struct, array_like=True):
    proof: bytes


class Welcome(msgspec.Struct, array_like=True):
    proof: bytes
    under_way_bytes: int
    """A call may begin while the calls in progress take fewer bytes than this."""


class Goodbye(msgspec.Struct, array_like=True):
    reason: str


def check_secret(secret: bytes) -> None:
    """Raise :class:`SecretUnusable` if the secret is too short."""
    if len(secret) < SECRET_BYTES_MIN:
        raise SecretUnusable(
            f"the shared secret has {len(secret)} bytes, it takes at least {SECRET_BYTES_MIN} random ones"
        )


def goodbye(reason: str) -> bytes:
    return frame(GOODBYE, 0, encode(Goodbye(reason)))


def goodbye_reason(payload: memoryview) -> HandshakeRefused:
    return HandshakeRefused(_read(Goodbye, payload).reason)


class _Side:
    """Common part of both sides of a handshake."""

    def __init__(
        self,
        secret: bytes,
        name: str,
        binding: bytes = b"",
        lowest: int = VERSION_LOWEST,
        highest: int = VERSION_HIGHEST,
    ) -> None:
        """``binding``: with TLS the SHA-256 digest of the server's certificate; without TLS empty."""
        check_secret(secret)
        self._secret = secret
        self._name = name[:NAME_LENGTH_MAX]
        self._binding = binding
        self._lowest, self._highest = lowest, highest
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._hello = b""
        self._challenge = b""
        self.version = 0
        """Version agreed upon."""
        self.peer = ""
        """Name of the other side."""

    def _proof(self, who: bytes) -> bytes:
        mac = hmac.new(self._secret, b"holdfast wire " + who, hashlib.sha256)
        for part in (self._binding, self._hello, self._challenge):
            mac.update(len(part).to_bytes(4, "little") + part)
        return mac.digest()

    def _check(self, who: bytes, proof: bytes) -> None:
        if not hmac.compare_digest(self._proof(who), proof):
            raise HandshakeRefused(
                "the other side has another shared secret"
                + (", or a third party changes the traffic" if self._binding else "")
            )


class CallerSide(_Side):
    """The side that connects."""

    def start(self) -> bytes:
        self._hello = encode(Hello(self._lowest, self._highest, self._nonce, self._name))
        return frame(HELLO, 0, self._hello)

    def challenged(self, payload: memoryview) -> bytes:
        """Return the answer to a challenge.  Raises :class:`HandshakeRefused`."""
        self._challenge = bytes(payload)
        challenge = _read(Challenge, payload)
        if not self._lowest <= challenge.version <= self._highest:
            raise HandshakeRefused(
                f"the other side chose version {challenge.version} of the protocol, "
                f"here {_versions(self._lowest, self._highest)}"
            )
        _check_nonce(challenge.nonce)
        self.version, self.peer = challenge.version, challenge.name[:NAME_LENGTH_MAX]
        return frame(PROOF, 0, encode(Proof(self._proof(b"client"))))

    def welcomed(self, payload: memoryview) -> Welcome:
        """Check the server's proof and return its welcome.  Raises :class:`HandshakeRefused`."""
        if not self._challenge:
            raise HandshakeRefused("the other side skipped its challenge")
        welcome = _read(Welcome, payload)
        self._check(b"server", welcome.proof)
        return welcome


class AnswererSide(_Side):
    """The side that accepts the connection."""

    def greeted(self, payload: memoryview) -> bytes:
        """Return the challenge for a client's greeting.  Raises :class:`HandshakeRefused`."""
        if self._hello:
            raise HandshakeRefused("the other side greeted twice")
        self._hello = bytes(payload)
        hello = _read(Hello, payload)
        _check_nonce(hello.nonce)
        self.version = min(self._highest, hello.highest)
        if self.version < max(self._lowest, hello.lowest):
            raise HandshakeRefused(
                f"no common version of the protocol: the caller {_versions(hello.lowest, hello.highest)}, "
                f"the server {_versions(self._lowest, self._highest)}"
            )
        self.peer = hello.name[:NAME_LENGTH_MAX]
        self._challenge = encode(Challenge(self.version, self._nonce, self._name))
        return frame(CHALLENGE, 0, self._challenge)

    def proved(self, payload: memoryview, under_way_bytes: int) -> bytes:
        """Check the client's proof and return the welcome.  Raises :class:`HandshakeRefused`."""
        if not self._challenge:
            raise HandshakeRefused("the other side proved before it was asked")
        self._check(b"client", _read(Proof, payload).proof)
        return frame(WELCOME, 0, encode(Welcome(self._proof(b"server"), under_way_bytes)))


def _read(kind: type[_T], payload: memoryview) -> _T:
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except msgspec.MsgspecError as error:
        raise HandshakeRefused(f"the other side's greeting cannot be read: {error}") from error


def _check_nonce(nonce: bytes) -> None:
    if len(nonce) != _NONCE_BYTES:
        raise HandshakeRefused(f"a nonce of {len(nonce)} bytes, it takes {_NONCE_BYTES}")


def _versions(lowest: int, highest: int) -> str:
    return f"speaks {lowest}" if lowest == highest else f"speaks {lowest} to {highest}"

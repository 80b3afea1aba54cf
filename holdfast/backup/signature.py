"""Signatures of backups' manifests, made with a master key of the service.

A holder of the keyring detects a manifest that was changed or written by somebody else: the manifest's digest
is wrapped with a master key, like a data key, and bound to the name of the backup (AES-256-GCM for local keys).
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from hashlib import sha256
from typing import Final

import msgspec

from auth.encryption.master_keys import MasterKeyMissing, MasterKeys, WrapBroken

_CONTEXT: Final = b"holdfast list of a backup\0"


class Signature(msgspec.Struct, frozen=True):
    """A wrapped digest."""

    master_key: str
    """Id of the master key."""
    wrapped: str
    """Wrapped digest in base64."""


class ManifestSignatureRefused(Exception):
    """A manifest is not signed by one of the master keys; the text says why, and follows a subject."""


class ManifestSigner:
    """Signs and verifies manifests with master keys.  Not for use inside a running event loop."""

    def __init__(self, masters: MasterKeys) -> None:
        self._masters = masters

    def sign(self, name: str, body: bytes) -> Signature:
        """Sign the encoded manifest of this backup."""
        wrapped = asyncio.run(self._masters.wrap(sha256(body).digest(), _context(name)))
        return Signature(self._masters.primary, b64encode(wrapped).decode())

    def check(self, name: str, body: bytes, signature: Signature | None) -> None:
        """Raise :class:`ManifestSignatureRefused` unless one of the keys has signed this manifest."""
        if signature is None:
            raise ManifestSignatureRefused(
                "is not signed: it was made without the keyring, or its manifest was changed"
            )
        try:
            wrapped = b64decode(signature.wrapped, validate=True)
            digest = asyncio.run(self._masters.unwrap(signature.master_key, wrapped, _context(name)))
        except MasterKeyMissing:
            raise ManifestSignatureRefused(
                f"is signed with the master key {signature.master_key[:40]}, which is not in this keyring"
            ) from None
        except (WrapBroken, ValueError):
            digest = b""
        if digest != sha256(body).digest():
            raise ManifestSignatureRefused("has a manifest that was changed after it was signed")


def _context(name: str) -> bytes:
    return _CONTEXT + name.encode()

"""Data keys: their stored form, and the encryption of messages and secrets with them.

A data key is in clear only in memory; the store holds it wrapped by a master key (:mod:`auth.encryption.master_keys`).
A ciphertext has this form::

    format (1 byte) | data key id (4, big-endian) | nonce (12, random) | AES-256-GCM ciphertext | tag (16)

and its associated data are its tenant and its use, so that it decrypts only there.  The first byte cannot begin
a msgpack array, and so distinguishes it from a message stored before encryption.

**Uses of a key.**  With random nonces a key may encrypt at most 2^32 times.  Uses are reserved in the store before they
are made, so a crash can only make the count too high; after 2^31 uses a new key is created.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from struct import Struct
from typing import Protocol

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from auth.encryption.master_keys import NONCE_BYTES, KeyringError, MasterKeys, WrapBroken

ENCRYPTIONS_MAX = 1 << 31
"""Maximum number of uses of one data key; half of what NIST SP 800-38D allows with random nonces."""
ENCRYPTIONS_RESERVED = 1 << 20
"""Number of uses reserved at once: at 20,000 messages per second they last 52 seconds."""

FORMAT = 1
MESSAGE = b"message"
"""Purpose to which an encrypted message is bound, besides its tenant."""
_HEAD = Struct(">BI")
_HEAD_BYTES = _HEAD.size
_BODY_AT = _HEAD_BYTES + NONCE_BYTES
_TAG_BYTES = 16
OVERHEAD_BYTES = _BODY_AT + _TAG_BYTES
"""Number of bytes that encryption adds."""


class DecryptionFailed(KeyringError):
    """A ciphertext was not made here for this tenant and this use, or was changed."""


class DataKeyMissing(KeyringError):
    """The tenant has no such data key: it was destroyed, or the ciphertext that names it is corrupt."""

    def __init__(self, account: str, key_id: int) -> None:
        super().__init__(f"account {account} has no data key {key_id}")


class DataKey(msgspec.Struct, frozen=True):
    """A data key as stored."""

    account: str
    key_id: int
    """Id, below 2^32 and never reused by any tenant."""
    master_id: str
    """Id of the master key that wraps it."""
    wrapped: bytes
    created_s: int = 0

    @property
    def context(self) -> bytes:
        """Context that the wrapping is bound to."""
        return b"holdfast data key\0%s\0%d" % (self.account.encode(), self.key_id)

    def __repr__(self) -> str:
        return f"DataKey({self.account}, {self.key_id}, wrapped with {self.master_id})"


class DataKeyStore(Protocol):
    """A store of data keys.  Its errors are those of :mod:`metadata_service.store`."""

    async def new_data_key_id(self) -> int:
        """Allocate the next id, from 1."""

    async def add_data_key(self, key: DataKey) -> None:
        """Store a new key."""

    async def data_keys(self, account: str | None = None) -> list[DataKey]:
        """The tenant's keys, or those of all tenants, ordered by id."""

    async def rewrap_data_key(self, key: DataKey, master_before: str) -> bool:
        """Store a new wrapping of a key that is still wrapped with ``master_before``; False if it is not."""

    async def reserve_seals(self, key_id: int, seals: int, most: int) -> bool:
        """Add ``seals`` to a key's count; False, without a change, if it would exceed ``most`` or the key is gone."""

    async def destroy_data_keys(self, account: str) -> int:
        """Delete all keys of a tenant, including named ones, and remove them from the store's files.

        Returns the number of keys.
        """


class _Nonces:
    """Random nonces of 96 bits, fetched from the system many at a time."""

    def __init__(self) -> None:
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Drop prefetched nonces: two processes must not use the same ones."""
        self.next = _fetched().__next__


def _fetched() -> Iterator[bytes]:
    while True:
        for (nonce,) in _NONCE.iter_unpack(os.urandom(NONCE_BYTES * 256)):
            yield nonce


_NONCE = Struct(f"{NONCE_BYTES}s")
_nonces = _Nonces()


class TenantKeys:
    """A tenant's data keys, unwrapped: encrypts with the newest and decrypts with each."""

    __slots__ = ("_bound", "_bound_message", "_ciphers", "_encrypt", "_head", "account", "current", "left")

    def __init__(self, account: str) -> None:
        self.account = account
        self.current = 0
        """Id of the key that encrypts; 0: none yet."""
        self.left = 0
        """Number of reserved encryptions not used yet."""
        self._bound = b"holdfast\0" + account.encode() + b"\0"
        self._bound_message = self._bound + MESSAGE
        self._ciphers: dict[int, AESGCM] = {}

    def __repr__(self) -> str:
        return f"TenantKeys({self.account}, {sorted(self._ciphers)})"

    def __contains__(self, key_id: int) -> bool:
        return key_id in self._ciphers

    @property
    def newest(self) -> int:
        """Id of the newest key; 0: there is none."""
        return max(self._ciphers, default=0)

    def add(self, key_id: int, data_key: bytes) -> None:
        """Add a key for decryption."""
        self._ciphers[key_id] = AESGCM(data_key)

    def use(self, key_id: int, count: int) -> None:
        """Encrypt with an added key from now on, ``count`` more times."""
        self.left = self.left + count if key_id == self.current else count
        self.current = key_id
        self._encrypt = self._ciphers[key_id].encrypt
        self._head = _HEAD.pack(FORMAT, key_id)

    def encrypt(self, plain: bytes, what: bytes = MESSAGE) -> bytes:
        """Encrypt ``plain``, bound to the tenant and to its purpose ``what``."""
        left = self.left
        assert left > 0, "encryptions are reserved before they are made"
        self.left = left - 1
        nonce = _nonces.next()
        bound = self._bound_message if what is MESSAGE else self._bound + what
        return self._head + nonce + self._encrypt(nonce, plain, bound)

    def decrypt(self, encrypted: bytes, what: bytes = MESSAGE) -> bytes:
        """Decrypt.  Raises :class:`DecryptionFailed`, and :class:`DataKeyMissing` if the key was not added."""
        if len(encrypted) < OVERHEAD_BYTES or encrypted[0] != FORMAT:
            raise DecryptionFailed(f"of account {self.account}: it is not in the format of encrypted data")
        key_id = _HEAD.unpack_from(encrypted)[1]
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise DataKeyMissing(self.account, key_id)
        bound = self._bound_message if what is MESSAGE else self._bound + what
        try:
            return cipher.decrypt(encrypted[_HEAD_BYTES:_BODY_AT], encrypted[_BODY_AT:], bound)
        except InvalidTag:
            raise DecryptionFailed(
                f"of account {self.account}, data key {key_id}: it was changed after it was encrypted"
            ) from None


def data_key_id(encrypted: bytes) -> int:
    """Id of the data key that encrypted this.  Raises :class:`DecryptionFailed` if it is malformed."""
    if len(encrypted) < OVERHEAD_BYTES or encrypted[0] != FORMAT:
        raise DecryptionFailed("it is not in the format of encrypted data")
    key_id: int = _HEAD.unpack_from(encrypted)[1]
    return key_id


async def wrap(masters: MasterKeys, key: DataKey, data_key: bytes) -> DataKey:
    """Wrap ``data_key`` with the primary master key, verify that it unwraps, and return ``key`` with it.

    Raises :class:`~auth.encryption.master_keys.WrapBroken` if it does not.
    """
    primary = masters.primary
    wrapped = await masters.wrap(data_key, key.context)
    if await masters.unwrap(primary, wrapped, key.context) != data_key:
        raise WrapBroken(f"the master key {primary} does not unwrap what it wrapped")
    return msgspec.structs.replace(key, master_id=primary, wrapped=wrapped)

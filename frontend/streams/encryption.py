"""Encryption of batches, under the keys of the tenant that owns the topic."""

from __future__ import annotations

from collections.abc import Callable

from auth.encryption.data_keys import FORMAT, DecryptionFailed
from auth.encryption.keyring import Keyring
from frontend.streams.compression import Buffer

_ENCRYPTED = bytes([FORMAT])
_OFFSET_BYTES = 8
_NO_OFFSET = bytes(_OFFSET_BYTES)


class BatchEncryption:
    """Encrypts and decrypts; ``keyring`` None: batches are stored in clear, and encrypted ones cannot be read."""

    def __init__(self, keyring: Keyring | None, *, encrypts: bool) -> None:
        """``encrypts``: new batches are encrypted."""
        self._keyring = keyring
        self._encrypts = encrypts and keyring is not None

    async def ready(self, account: str, batches: int) -> Callable[[Buffer], bytes]:
        """Function that encrypts this many batches until the caller's next await.

        Raises :class:`~auth.encryption.master_keys.KeyringError` and the store's errors.
        """
        if not self._encrypts:
            return _in_clear
        assert self._keyring is not None
        keys = self._keyring.cached(account, batches)
        if keys is None:
            keys = await self._keyring.ready(account, batches)
        encrypt = keys.encrypt
        return lambda batch: encrypt(bytes(batch))

    async def decrypt(self, account: str, stored: bytes) -> bytes:
        """Return a stored batch.

        Raises :class:`DecryptionFailed`, :class:`~auth.encryption.data_keys.DataKeyMissing`, other
        :class:`~auth.encryption.master_keys.KeyringError` and the store's errors.
        """
        if stored[:1] != _ENCRYPTED:
            return stored
        if self._keyring is None:
            raise DecryptionFailed("it is encrypted, and there is no keyring here")
        return await self._keyring.decrypt(account, stored)


def _in_clear(batch: Buffer) -> bytes:
    """Return the batch without the offset that its producer gave it.

    The offset has no meaning, and its first byte must not look like that of an encrypted batch.
    """
    return _NO_OFFSET + memoryview(batch)[_OFFSET_BYTES:]

"""A credential store that encrypts secrets: callers get plain texts, the store's files contain only ciphertexts.

An encrypted secret begins with a word and a space, which no secret contains.  Secrets of a tenant's keys are
encrypted under the tenant's own data keys, and so end with them; the service's own under those of the
pseudo-account :data:`SERVICE`.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from typing import Any, cast

import msgspec

from auth.credentials import AccessKey, ServiceKey
from auth.encryption.data_keys import DataKeyMissing, DecryptionFailed
from auth.encryption.keyring import Keyring
from auth.store import CredentialStore

SERVICE = "service"
_MARK = "sealed "


def encrypted(store: CredentialStore, keyring: Keyring) -> CredentialStore:
    """Wrap the store so that its secrets are encrypted.

    Its methods also raise :class:`~auth.encryption.master_keys.KeyringError` if a secret cannot be encrypted or
    decrypted.
    """
    return cast(CredentialStore, _EncryptedStore(store, keyring))


class _EncryptedStore:
    """Delegates to the store, except for methods that handle a secret."""

    def __init__(self, store: CredentialStore, keyring: Keyring) -> None:
        self._store = store
        self._keyring = keyring

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get_access_key(self, access_key_id: str) -> AccessKey | None:
        key = await self._store.get_access_key(access_key_id)
        return None if key is None else await self._opened(key)

    async def put_access_key(self, key: AccessKey) -> None:
        await self._store.put_access_key(await _encrypted_key(self._keyring, key))

    async def update_access_key(self, key: AccessKey) -> AccessKey:
        newer = await self._store.update_access_key(await _encrypted_key(self._keyring, key))
        return msgspec.structs.replace(newer, secret=key.secret)

    async def list_access_keys(self, account: str) -> list[AccessKey]:
        return [await self._opened(key) for key in await self._store.list_access_keys(account)]

    async def put_service_key(self, key: ServiceKey) -> None:
        await self._store.put_service_key(await self._encrypted_service(key))

    async def add_service_key(self, key: ServiceKey) -> None:
        await self._store.add_service_key(await self._encrypted_service(key))

    async def _encrypted_service(self, key: ServiceKey) -> ServiceKey:
        keys = await self._keyring.ready(SERVICE)
        return msgspec.structs.replace(key, secret=keys.encrypt(key.secret, _what_service(key.key_id)))

    async def list_service_keys(self, purpose: str) -> list[ServiceKey]:
        keys = await self._store.list_service_keys(purpose)
        return [
            msgspec.structs.replace(
                key, secret=await self._keyring.decrypt(SERVICE, key.secret, _what_service(key.key_id))
            )
            for key in keys
        ]

    async def _opened(self, key: AccessKey) -> AccessKey:
        if not key.secret.startswith(_MARK):
            return key
        try:
            packed = b64decode(key.secret.removeprefix(_MARK), validate=True)
            secret = await self._keyring.decrypt(key.account, packed, _what(key.access_key_id))
        except (DecryptionFailed, DataKeyMissing, NotBase64) as error:
            raise DecryptionFailed(
                f"the secret of access key {key.access_key_id} cannot be decrypted: {error}"
            ) from error
        return msgspec.structs.replace(key, secret=secret.decode())


async def _encrypted_key(keyring: Keyring, key: AccessKey) -> AccessKey:
    keys = await keyring.ready(key.account)
    packed = keys.encrypt(key.secret.encode(), _what(key.access_key_id))
    return msgspec.structs.replace(key, secret=_MARK + b64encode(packed).decode())


def _what(access_key_id: str) -> bytes:
    """Purpose to which an encrypted secret is bound: it cannot be used as the secret of another key."""
    return b"access key " + access_key_id.encode()


def _what_service(key_id: str) -> bytes:
    return b"service key " + key_id.encode()

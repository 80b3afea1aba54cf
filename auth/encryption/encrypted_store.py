"""A credential store that encrypts secrets: its callers get them in clear, its files contain only ciphertexts.

An encrypted secret begins with a word and a space, which no secret contains; this distinguishes it from secrets
stored before there was a keyring.  Secrets of a tenant's keys are encrypted under the tenant's own data keys,
and so end with them; the service's own under those of the pseudo-account :data:`SERVICE`.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from typing import Any, Protocol, cast

import msgspec

from auth.credentials import AccessKey, ServiceKey
from auth.encryption.data_keys import DataKeyMissing, SealBroken
from auth.encryption.keyring import Keyring
from auth.store import CredentialStore

SERVICE = "service"
_MARK = "sealed "


class SealableStore(CredentialStore, Protocol):
    """A store whose plaintext secrets of an older Holdfast can be found and encrypted."""

    async def access_keys_without(self, mark: str) -> list[AccessKey]:
        """All access keys whose secret does not begin with ``mark``."""

    async def scrub(self) -> None:
        """Remove deleted and overwritten data from the store's files."""


def sealed(store: CredentialStore, keyring: Keyring) -> CredentialStore:
    """Wrap the store so that its secrets are encrypted.

    Its methods also raise :class:`~auth.encryption.master_keys.KeyringError` if a secret cannot be encrypted or
    decrypted.
    """
    return cast(CredentialStore, _SealedStore(store, keyring))


async def seal_older_secrets(store: SealableStore, keyring: Keyring) -> int:
    """Encrypt the secrets that are stored in clear, and scrub their remains.  Returns their number."""
    in_clear = await store.access_keys_without(_MARK)
    if in_clear:
        await store.scrub()  # of keys deleted or changed before; from here on the store cleans up by itself
        for key in in_clear:
            await store.put_access_key(await _sealed_key(keyring, key))
        await store.scrub()
    return len(in_clear)


class _SealedStore:
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
        await self._store.put_access_key(await _sealed_key(self._keyring, key))

    async def update_access_key(self, key: AccessKey) -> AccessKey:
        newer = await self._store.update_access_key(await _sealed_key(self._keyring, key))
        return msgspec.structs.replace(newer, secret=key.secret)

    async def list_access_keys(self, account: str) -> list[AccessKey]:
        return [await self._opened(key) for key in await self._store.list_access_keys(account)]

    async def put_service_key(self, key: ServiceKey) -> None:
        await self._store.put_service_key(await self._sealed_service(key))

    async def add_service_key(self, key: ServiceKey) -> None:
        await self._store.add_service_key(await self._sealed_service(key))

    async def _sealed_service(self, key: ServiceKey) -> ServiceKey:
        keys = await self._keyring.ready(SERVICE)
        return msgspec.structs.replace(key, secret=keys.seal(key.secret, _what_service(key.key_id)))

    async def list_service_keys(self, purpose: str) -> list[ServiceKey]:
        keys = await self._store.list_service_keys(purpose)
        return [
            msgspec.structs.replace(
                key, secret=await self._keyring.open(SERVICE, key.secret, _what_service(key.key_id))
            )
            for key in keys
        ]

    async def _opened(self, key: AccessKey) -> AccessKey:
        if not key.secret.startswith(_MARK):
            return key
        try:
            packed = b64decode(key.secret.removeprefix(_MARK), validate=True)
            secret = await self._keyring.open(key.account, packed, _what(key.access_key_id))
        except (SealBroken, DataKeyMissing, NotBase64) as error:
            raise SealBroken(f"the secret of access key {key.access_key_id} cannot be opened: {error}") from error
        return msgspec.structs.replace(key, secret=secret.decode())


async def _sealed_key(keyring: Keyring, key: AccessKey) -> AccessKey:
    keys = await keyring.ready(key.account)
    packed = keys.seal(key.secret.encode(), _what(key.access_key_id))
    return msgspec.structs.replace(key, secret=_MARK + b64encode(packed).decode())


def _what(access_key_id: str) -> bytes:
    """Purpose to which an encrypted secret is bound: it cannot be used as the secret of another key."""
    return b"access key " + access_key_id.encode()


def _what_service(key_id: str) -> bytes:
    return b"service key " + key_id.encode()

"""Encryption of keys' secrets in their store."""

import asyncio
from base64 import b64encode
from pathlib import Path

import msgspec
import pytest

from auth.credentials import AccessKey, ServiceKey, new_access_key
from auth.encryption.data_keys import DecryptionFailed
from auth.encryption.encrypted_store import encrypted
from auth.encryption.keyring import Keyring
from auth.encryption.master_keys import LocalMasterKeys, new_master_key
from auth.store import Conflict
from metadata_service.sqlite.store import SQLiteStore
from tests.auth.encryption.conftest import ONE, OTHER

SECRET = "recognisable/secret+0123456789"


@pytest.fixture
def keyring(store: SQLiteStore) -> Keyring:
    return Keyring(store, LocalMasterKeys([new_master_key()]))


def key_of(account: str = ONE, secret: str = SECRET) -> AccessKey:
    return msgspec.structs.replace(new_access_key(account), secret=secret)


def in_files(folder: Path, secret: str | bytes = SECRET) -> bool:
    plain = secret.encode() if isinstance(secret, str) else secret
    forms = (plain, b64encode(plain).rstrip(b"=")[:-2], plain.hex().encode())
    return any(form in file.read_bytes() for file in folder.iterdir() for form in forms)


async def test_keys_are_what_was_put_and_no_file_has_their_secret(
    tmp_path: Path, store: SQLiteStore, keyring: Keyring
) -> None:
    outside = encrypted(store.credentials, keyring)
    key = key_of()
    await outside.put_access_key(key)
    assert await outside.get_access_key(key.access_key_id) == key
    assert await outside.list_access_keys(ONE) == [key]
    assert await outside.get_access_key("AKIANONE000000000000") is None
    changed = await outside.update_access_key(msgspec.structs.replace(key, active=False))
    assert changed == msgspec.structs.replace(key, active=False, version=2)
    assert await outside.get_access_key(key.access_key_id) == changed
    with pytest.raises(Conflict):
        await outside.update_access_key(key)
    assert not in_files(tmp_path)
    assert await outside.delete_access_key(key.access_key_id)  # the store's own methods are available as well


async def test_the_services_own_keys(tmp_path: Path, store: SQLiteStore, keyring: Keyring) -> None:
    outside = encrypted(store.credentials, keyring)
    keys = [ServiceKey(f"k{number}", "tokens", bytes(range(number, number + 32)), number) for number in range(2)]
    await outside.put_service_key(keys[0])
    await outside.add_service_key(keys[1])
    with pytest.raises(Conflict):
        await outside.add_service_key(keys[1])
    assert await outside.list_service_keys("tokens") == keys
    assert not in_files(tmp_path, keys[0].secret)
    (first, second) = await store.credentials.list_service_keys("tokens")
    await store.credentials.put_service_key(msgspec.structs.replace(first, secret=second.secret))
    with pytest.raises(DecryptionFailed):
        await outside.list_service_keys("tokens")


async def test_an_encrypted_secret_is_bound_to_its_place(store: SQLiteStore, keyring: Keyring) -> None:
    outside = encrypted(store.credentials, keyring)
    key, twin, others = key_of(), key_of(), key_of(OTHER)
    for each in (key, twin, others):
        await outside.put_access_key(each)
    stored = await store.credentials.get_access_key(key.access_key_id)
    assert stored is not None
    for moved in (twin, others):
        await store.credentials.put_access_key(msgspec.structs.replace(moved, secret=stored.secret))
        with pytest.raises(DecryptionFailed, match=f"access key {moved.access_key_id} cannot be decrypted"):
            await outside.get_access_key(moved.access_key_id)
    for broken in ("sealed ", "sealed no base64!", stored.secret[:-8]):
        await store.credentials.put_access_key(msgspec.structs.replace(key, secret=broken))
        with pytest.raises(DecryptionFailed) as caught:
            await outside.get_access_key(key.access_key_id)
        assert SECRET not in str(caught.value)


async def test_a_tenants_secrets_end_with_its_data_keys(store: SQLiteStore, keyring: Keyring) -> None:
    outside = encrypted(store.credentials, keyring)
    own, others = key_of(), key_of(OTHER)
    await asyncio.gather(outside.put_access_key(own), outside.put_access_key(others))
    await keyring.destroy_tenant_keys(ONE)
    with pytest.raises(DecryptionFailed, match="has no data key"):
        await outside.get_access_key(own.access_key_id)
    assert await outside.get_access_key(others.access_key_id) == others

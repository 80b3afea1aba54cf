"""Encryption of keys' secrets in their store."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from auth.credentials import AccessKey, ServiceKey, Tenant, new_access_key
from auth.encryption.data_keys import SealBroken
from auth.encryption.encrypted_store import seal_older_secrets, sealed
from auth.encryption.keyring import Keyring
from auth.encryption.master_keys import LocalMasterKeys, new_master_key
from auth.store import Conflict
from metadata_service.sqlite.store import SQLiteStore

ACCOUNT, OTHER = "111111111111", "222222222222"
SECRET = "recognisable/secret+0123456789"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(tmp_path / "metadata.sqlite")
    for account in (ACCOUNT, OTHER):
        await store.put_tenant(Tenant(account, "tests"))
    yield store
    await store.close()


@pytest.fixture
def keyring(store: SQLiteStore) -> Keyring:
    return Keyring(store, LocalMasterKeys([new_master_key()]))


def key_of(account: str = ACCOUNT, secret: str = SECRET) -> AccessKey:
    return msgspec.structs.replace(new_access_key(account), secret=secret)


def in_files(folder: Path, secret: str | bytes = SECRET) -> bool:
    plain = secret.encode() if isinstance(secret, str) else secret
    forms = (plain, b64encode(plain).rstrip(b"=")[:-2], plain.hex().encode())
    return any(form in file.read_bytes() for file in folder.iterdir() for form in forms)


async def test_keys_are_what_was_put_and_no_file_has_their_secret(
    tmp_path: Path, store: SQLiteStore, keyring: Keyring
) -> None:
    outside = sealed(store, keyring)
    key = key_of()
    await outside.put_access_key(key)
    assert await outside.get_access_key(key.access_key_id) == key
    assert await outside.list_access_keys(ACCOUNT) == [key]
    assert await outside.get_access_key("AKIANONE000000000000") is None
    changed = await outside.update_access_key(msgspec.structs.replace(key, active=False))
    assert changed == msgspec.structs.replace(key, active=False, version=2)
    assert await outside.get_access_key(key.access_key_id) == changed
    with pytest.raises(Conflict):
        await outside.update_access_key(key)
    assert not in_files(tmp_path)
    assert await outside.delete_access_key(key.access_key_id)  # the store's own methods are available as well


async def test_the_services_own_keys(tmp_path: Path, store: SQLiteStore, keyring: Keyring) -> None:
    outside = sealed(store, keyring)
    keys = [ServiceKey(f"k{number}", "tokens", bytes(range(number, number + 32)), number) for number in range(2)]
    await outside.put_service_key(keys[0])
    await outside.add_service_key(keys[1])
    with pytest.raises(Conflict):
        await outside.add_service_key(keys[1])
    assert await outside.list_service_keys("tokens") == keys
    assert not in_files(tmp_path, keys[0].secret)
    (first, second) = await store.list_service_keys("tokens")
    await store.put_service_key(msgspec.structs.replace(first, secret=second.secret))
    with pytest.raises(SealBroken):
        await outside.list_service_keys("tokens")


async def test_older_secrets_are_sealed_once_and_leave_nothing(
    tmp_path: Path, store: SQLiteStore, keyring: Keyring
) -> None:
    keys = [key_of(account) for account in (ACCOUNT, OTHER, ACCOUNT)]
    for key in keys:
        await store.put_access_key(key)
    await store.put_access_key(msgspec.structs.replace(keys[0], secret="another/secret/now"))
    await store.delete_access_key(keys[2].access_key_id)
    assert in_files(tmp_path)
    outside = sealed(store, keyring)
    assert (await outside.list_access_keys(OTHER)) == [keys[1]]  # also before it is encrypted
    assert await seal_older_secrets(store, keyring) == 2
    assert await seal_older_secrets(store, keyring) == 0
    assert not in_files(tmp_path)
    assert not in_files(tmp_path, "another/secret/now")
    assert await outside.list_access_keys(OTHER) == [keys[1]]
    assert [key.secret for key in await outside.list_access_keys(ACCOUNT)] == ["another/secret/now"]


async def test_a_sealed_secret_is_of_no_use_elsewhere(store: SQLiteStore, keyring: Keyring) -> None:
    outside = sealed(store, keyring)
    key, twin, others = key_of(), key_of(), key_of(OTHER)
    for each in (key, twin, others):
        await outside.put_access_key(each)
    stored = await store.get_access_key(key.access_key_id)
    assert stored is not None
    for moved in (twin, others):
        await store.put_access_key(msgspec.structs.replace(moved, secret=stored.secret))
        with pytest.raises(SealBroken, match=f"access key {moved.access_key_id} cannot be opened"):
            await outside.get_access_key(moved.access_key_id)
    for broken in ("sealed ", "sealed no base64!", stored.secret[:-8]):
        await store.put_access_key(msgspec.structs.replace(key, secret=broken))
        with pytest.raises(SealBroken) as caught:
            await outside.get_access_key(key.access_key_id)
        assert SECRET not in str(caught.value)


async def test_a_tenants_secrets_end_with_its_data_keys(store: SQLiteStore, keyring: Keyring) -> None:
    outside = sealed(store, keyring)
    mine, others = key_of(), key_of(OTHER)
    await asyncio.gather(outside.put_access_key(mine), outside.put_access_key(others))
    await keyring.destroy_tenant_keys(ACCOUNT)
    with pytest.raises(SealBroken, match="has no data key"):
        await outside.get_access_key(mine.access_key_id)
    assert await outside.get_access_key(others.access_key_id) == others

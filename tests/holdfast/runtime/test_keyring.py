"""Sources of master keys, and errors of a start when they are missing or wrong."""

import stat
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from auth.encryption.keyring import Keyring
from auth.encryption.master_keys import MasterKeysUnusable, master_key_id, new_master_key, read_file, write_file
from holdfast.runtime.keyring import open_keyring
from holdfast.settings import Settings, SettingsError, load
from metadata_service.sqlite.store import SQLiteStore

ACCOUNT = "000000000000"


def text(*keys: bytes) -> str:
    return ",".join(b64encode(key).decode() for key in keys)


def settings_of(folder: Path, **more: Any) -> Settings:
    return Settings(data=folder, **more)


async def seal(keyring: Keyring) -> bytes:
    return (await keyring.ready(ACCOUNT)).encrypt(b"plain")


async def test_the_first_start_makes_a_keyring_file(tmp_path: Path, store: SQLiteStore) -> None:
    first = await open_keyring(settings_of(tmp_path), store)
    path = tmp_path / "keyring.toml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [master_key_id(key) for key in read_file(path)] == [first.masters.primary]
    sealed = await seal(first)
    again = await open_keyring(settings_of(tmp_path), store)
    assert await again.decrypt(ACCOUNT, sealed) == b"plain"


async def test_the_file_may_be_in_another_place(tmp_path: Path, store: SQLiteStore) -> None:
    other_path = tmp_path / "secret" / "keys"
    settings = settings_of(tmp_path, keyring_file=other_path)
    with pytest.raises(MasterKeysUnusable, match=f"{other_path} cannot be written"):
        await open_keyring(settings, store)
    other_path.parent.mkdir()
    keyring = await open_keyring(settings, store)
    assert [master_key_id(key) for key in read_file(other_path)] == [keyring.masters.primary]
    assert not (tmp_path / "keyring.toml").exists()


async def test_a_key_of_the_setting_needs_no_file(tmp_path: Path, store: SQLiteStore) -> None:
    key = new_master_key()
    keyring = await open_keyring(settings_of(tmp_path, master_key=text(key)), store)
    assert keyring.masters.primary == master_key_id(key)
    assert not (tmp_path / "keyring.toml").exists()


async def test_a_service_moves_from_the_file_to_the_setting_and_on(tmp_path: Path, store: SQLiteStore) -> None:
    sealed = await seal(await open_keyring(settings_of(tmp_path), store))
    second, third = new_master_key(), new_master_key()
    await open_keyring(settings_of(tmp_path, master_key=text(second)), store)
    (tmp_path / "keyring.toml").unlink()
    await open_keyring(settings_of(tmp_path, master_key=text(second)), store)
    await open_keyring(settings_of(tmp_path, master_key=text(third, second)), store)
    last = await open_keyring(settings_of(tmp_path, master_key=text(third)), store)
    assert await last.decrypt(ACCOUNT, sealed) == b"plain"


async def test_a_missing_file_is_never_replaced_by_a_new_one(tmp_path: Path, store: SQLiteStore) -> None:
    await seal(await open_keyring(settings_of(tmp_path), store))
    path = tmp_path / "keyring.toml"
    path.rename(tmp_path / "copy")
    with pytest.raises(MasterKeysUnusable, match=r"all of them.*keyring\.toml and .* have no master key"):
        await open_keyring(settings_of(tmp_path), store)
    assert not path.exists()
    (tmp_path / "copy").rename(path)
    await open_keyring(settings_of(tmp_path), store)


@pytest.mark.parametrize("in_file", [True, False])
async def test_a_wrong_key_is_refused_by_name_and_nothing_is_changed(
    tmp_path: Path, store: SQLiteStore, in_file: bool
) -> None:
    right = new_master_key()
    sealed = await seal(await open_keyring(settings_of(tmp_path, master_key=text(right)), store))
    before = await store.data_keys.data_keys()
    wrong = new_master_key()
    if in_file:
        write_file(tmp_path / "keyring.toml", [wrong])
    settings = settings_of(tmp_path) if in_file else settings_of(tmp_path, master_key=text(wrong))
    with pytest.raises(MasterKeysUnusable) as caught:
        await open_keyring(settings, store)
    message = str(caught.value)
    assert f"{master_key_id(right)} (needed by 1 account)" in message
    assert f"have only {master_key_id(wrong)}." in message
    assert text(wrong) not in message
    assert await store.data_keys.data_keys() == before
    keyring = await open_keyring(settings_of(tmp_path, master_key=text(right)), store)
    assert await keyring.decrypt(ACCOUNT, sealed) == b"plain"


def test_a_bad_master_key_is_a_bad_setting() -> None:
    with pytest.raises(SettingsError, match="openssl rand -base64 32") as caught:
        load({}, {"HOLDFAST_MASTER_KEY": "hunter2-hunter2"})
    assert "hunter2" not in str(caught.value)
    good = text(new_master_key())
    settings = load({}, {"HOLDFAST_MASTER_KEY": good})
    assert settings.master_key == good
    assert good not in repr(settings)

"""``holdfast keyring`` and ``holdfast key show`` over an encrypted data folder."""

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from auth.encryption.encrypted_store import encrypted
from auth.encryption.keyring import Keyring
from auth.encryption.master_keys import (
    LocalMasterKeys,
    MasterKeysUnusable,
    master_key_id,
    new_master_key,
    read_file,
    write_file,
)
from holdfast.runtime.keyring import open_keyring
from holdfast.runtime.root_tenant import ensure_root
from holdfast.settings import Settings
from metadata_service.sqlite.store import SQLiteStore
from tests.closing import closing
from tests.holdfast.command import checked
from tests.holdfast.transcripts import FolderShell, Transcript, cases_of, replay

T = TypeVar("T")
OTHER = "111111111111"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder in which two tenants have encrypted data."""

    async def first_start(keyring: Keyring, store: SQLiteStore) -> None:
        await ensure_root(encrypted(store.credentials, keyring), Settings(data=tmp_path))
        await keyring.ready(OTHER)

    within(tmp_path, first_start)
    return tmp_path


def within(folder: Path, do: Callable[[Keyring, SQLiteStore], Awaitable[T]]) -> T:
    async def run() -> T:
        async with closing(SQLiteStore(folder / "metadata.sqlite")) as store:
            return await do(await open_keyring(Settings(data=folder), store), store)

    return asyncio.run(run())


async def seal(keyring: Keyring, store: SQLiteStore) -> bytes:
    return (await keyring.ready(OTHER)).encrypt(b"plain")


def run(folder: Path, *arguments: str) -> str:
    """Run a command; returns standard output."""
    return checked(*arguments, "--data", folder).out


def ids(folder: Path) -> list[str]:
    return [master_key_id(key) for key in read_file(folder / "keyring.toml")]


@cases_of(__file__)
def test_transcript(folder: Path, transcript: Transcript) -> None:
    replay(transcript, FolderShell(), folder=str(folder), other_key=b64encode(new_master_key()).decode())
    assert not (folder / "none").exists()


@pytest.mark.parametrize("more", [(), ("--data-keys",)])
def test_rotate_wraps_everything_anew(folder: Path, more: tuple[str, ...]) -> None:
    before = within(folder, seal)
    (old,) = ids(folder)
    said = run(folder, "keyring", "rotate", *more)
    new = ids(folder)[0]
    assert ids(folder) == [new, old]
    assert new in said
    assert "wraps 2 data keys" in said
    wrapped = 4 if more else 2
    assert run(folder, "keyring", "show") == f"{new}  primary  {wrapped} data keys\n{old}  older    0 data keys\n"
    write_file(folder / "keyring.toml", read_file(folder / "keyring.toml")[:1])  # the old one is not needed

    async def opened(keyring: Keyring, store: SQLiteStore) -> bytes:
        return await keyring.decrypt(OTHER, before)

    assert within(folder, opened) == b"plain"
    assert (within(folder, seal)[1:5] != before[1:5]) is bool(more)


def test_a_rotation_that_was_cut_off_is_ended_by_whatever_starts_next(folder: Path) -> None:
    before = within(folder, seal)
    path = folder / "keyring.toml"
    write_file(path, [new_master_key(), *read_file(path)])  # the only completed step

    async def master_ids(keyring: Keyring, store: SQLiteStore) -> set[str]:
        assert await keyring.decrypt(OTHER, before) == b"plain"
        return {key.master_id for key in await store.data_keys.data_keys()}

    assert within(folder, master_ids) == {ids(folder)[0]}


def test_key_show_opens_the_secret(folder: Path) -> None:
    async def secret(keyring: Keyring, store: SQLiteStore) -> str:
        (key,) = await encrypted(store.credentials, keyring).list_access_keys("000000000000")
        return key.secret

    before = (folder / "keyring.toml").read_bytes()
    shown = run(folder, "key", "show")
    assert f"export AWS_SECRET_ACCESS_KEY={within(folder, secret)}\n" in shown
    assert (folder / "keyring.toml").read_bytes() == before


def test_key_show_reads_a_folder_from_before_there_was_a_keyring(tmp_path: Path) -> None:
    async def older() -> str:
        store = SQLiteStore(tmp_path / "metadata.sqlite")
        key, _ = await ensure_root(store.credentials, Settings(data=tmp_path))
        await store.close()
        return key.secret

    secret = asyncio.run(older())
    assert f"export AWS_SECRET_ACCESS_KEY={secret}\n" in run(tmp_path, "key", "show")
    assert not (tmp_path / "keyring.toml").exists()
    assert "no keys yet" in run(tmp_path, "keyring", "show")


async def test_the_error_of_a_rewrap_that_loses_its_race(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "metadata.sqlite")
    old = new_master_key()
    await Keyring(store, LocalMasterKeys([old])).ready(OTHER)
    (key,) = await store.data_keys.data_keys()
    keyring = Keyring(store, LocalMasterKeys([new_master_key(), old]))
    data_key = await keyring.masters.unwrap(key.master_id, key.wrapped, key.context)
    await store.data_keys.destroy_data_keys(OTHER)
    with pytest.raises(Exception, match="changed meanwhile") as caught:
        await keyring._rewrap(key, data_key)
    assert not isinstance(caught.value, MasterKeysUnusable)
    await store.close()

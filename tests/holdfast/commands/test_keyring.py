"""``holdfast keyring`` and ``holdfast key show`` over an encrypted data folder."""

from __future__ import annotations

import asyncio
import logging
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from auth.encryption.encrypted_store import sealed
from auth.encryption.keyring import Keyring
from auth.encryption.master_keys import (
    LocalMasterKeys,
    MasterKeysUnusable,
    master_key_id,
    new_master_key,
    read_file,
    write_file,
)
from holdfast.commands.main import main
from holdfast.runtime.data_folder import FolderLock
from holdfast.runtime.keyring import open_keyring
from holdfast.runtime.root_tenant import ensure_root
from holdfast.settings import Settings
from metadata_service.sqlite.store import SQLiteStore

T = TypeVar("T")
OTHER = "111111111111"


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder in which two tenants have encrypted data."""

    async def first_start(keyring: Keyring, store: SQLiteStore) -> None:
        await ensure_root(sealed(store, keyring), Settings(data=tmp_path))
        await keyring.ready(OTHER)

    within(tmp_path, first_start)
    return tmp_path


def within(folder: Path, do: Callable[[Keyring, SQLiteStore], Awaitable[T]]) -> T:
    async def run() -> T:
        store = SQLiteStore(folder / "metadata.sqlite")
        try:
            return await do(await open_keyring(Settings(data=folder), store), store)
        finally:
            await store.close()

    return asyncio.run(run())


async def seal(keyring: Keyring, store: SQLiteStore) -> bytes:
    return (await keyring.ready(OTHER)).seal(b"plain")


def run(folder: Path, *arguments: str) -> int:
    return main([*arguments, "--data", str(folder)])


def ids(folder: Path) -> list[str]:
    return [master_key_id(key) for key in read_file(folder / "keyring.toml")]


def test_show_names_keys_and_never_shows_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "keyring", "show") == 0
    shown = capsys.readouterr().out
    assert shown == f"{ids(folder)[0]}  primary  2 data keys\n"
    for key in read_file(folder / "keyring.toml"):
        assert b64encode(key).decode() not in shown
        assert key.hex() not in shown


@pytest.mark.parametrize("arguments", [("keyring", "show"), ("keyring", "rotate"), ("key", "show")])
def test_what_is_no_data_folder_is_left_alone(
    tmp_path: Path, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "none", *arguments) == 1
    assert "is no data folder of Holdfast" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("more", [(), ("--data-keys",)])
def test_rotate_wraps_everything_anew(folder: Path, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    before = within(folder, seal)
    (old,) = ids(folder)
    assert run(folder, "keyring", "rotate", *more) == 0
    said = capsys.readouterr().out
    new = ids(folder)[0]
    assert ids(folder) == [new, old]
    assert new in said
    assert "wraps 2 data keys" in said
    assert run(folder, "keyring", "show") == 0
    wrapped = 4 if more else 2
    assert capsys.readouterr().out == f"{new}  primary  {wrapped} data keys\n{old}  older    0 data keys\n"
    write_file(folder / "keyring.toml", read_file(folder / "keyring.toml")[:1])  # the old one is not needed

    async def opened(keyring: Keyring, store: SQLiteStore) -> bytes:
        return await keyring.open(OTHER, before)

    assert within(folder, opened) == b"plain"
    assert (within(folder, seal)[1:5] != before[1:5]) is bool(more)


def test_a_rotation_that_was_cut_off_is_ended_by_whatever_starts_next(folder: Path) -> None:
    before = within(folder, seal)
    path = folder / "keyring.toml"
    write_file(path, [new_master_key(), *read_file(path)])  # the only completed step

    async def master_ids(keyring: Keyring, store: SQLiteStore) -> set[str]:
        assert await keyring.open(OTHER, before) == b"plain"
        return {key.master_id for key in await store.data_keys()}

    assert within(folder, master_ids) == {ids(folder)[0]}


def test_rotate_waits_for_the_service_to_stop(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = ids(folder)
    claim = FolderLock(folder)
    assert run(folder, "keyring", "rotate") == 1
    claim.release()
    assert "in use by another Holdfast" in capsys.readouterr().err
    assert ids(folder) == before


def test_rotate_leaves_a_key_of_the_settings_to_who_set_it(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ids(folder)
    monkeypatch.setenv("HOLDFAST_MASTER_KEY", b64encode(new_master_key()).decode())
    assert run(folder, "keyring", "rotate") == 2
    assert "put it before the old one" in capsys.readouterr().err
    assert ids(folder) == before


@pytest.mark.parametrize("arguments", [("keyring", "rotate"), ("key", "show")])
@pytest.mark.parametrize("there", ["none", "wrong"])
def test_missing_keys_are_named_and_nothing_is_changed(
    folder: Path, arguments: tuple[str, ...], there: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "keyring.toml"
    (right,) = ids(folder)
    path.unlink()
    if there == "wrong":
        write_file(path, [new_master_key()])
    before = path.read_bytes() if path.exists() else None
    assert run(folder, *arguments) == 1
    said = capsys.readouterr().err
    assert "Restore the keyring file" in said
    assert there == "none" or right in said
    assert (path.read_bytes() if path.exists() else None) == before
    assert run(folder, "keyring", "show") == 1
    assert f"{right}  MISSING  2 data keys" in capsys.readouterr().out


def test_key_show_opens_the_secret(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def secret(keyring: Keyring, store: SQLiteStore) -> str:
        (key,) = await sealed(store, keyring).list_access_keys("000000000000")
        return key.secret

    before = (folder / "keyring.toml").read_bytes()
    assert run(folder, "key", "show") == 0
    assert f"export AWS_SECRET_ACCESS_KEY={within(folder, secret)}\n" in capsys.readouterr().out
    assert (folder / "keyring.toml").read_bytes() == before


def test_key_show_reads_a_folder_from_before_there_was_a_keyring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def older() -> str:
        store = SQLiteStore(tmp_path / "metadata.sqlite")
        key, _ = await ensure_root(store, Settings(data=tmp_path))
        await store.close()
        return key.secret

    secret = asyncio.run(older())
    assert run(tmp_path, "key", "show") == 0
    assert f"export AWS_SECRET_ACCESS_KEY={secret}\n" in capsys.readouterr().out
    assert not (tmp_path / "keyring.toml").exists()
    assert run(tmp_path, "keyring", "show") == 0
    assert "no keys yet" in capsys.readouterr().out


async def test_a_rewrap_that_loses_its_race_says_so(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "metadata.sqlite")
    old = new_master_key()
    await Keyring(store, LocalMasterKeys([old])).ready(OTHER)
    (key,) = await store.data_keys()
    keyring = Keyring(store, LocalMasterKeys([new_master_key(), old]))
    data_key = await keyring.masters.unwrap(key.master_id, key.wrapped, key.context)
    await store.destroy_data_keys(OTHER)
    with pytest.raises(Exception, match="changed meanwhile") as caught:
        await keyring._rewrap(key, data_key)
    assert not isinstance(caught.value, MasterKeysUnusable)
    await store.close()

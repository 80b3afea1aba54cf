"""Master keys: the file, the setting, wrapping."""

import os
import stat
from base64 import b64encode
from pathlib import Path

import pytest

from auth.encryption.master_keys import (
    LocalMasterKeys,
    MasterKeyMissing,
    MasterKeysUnusable,
    WrapBroken,
    keys_of_setting,
    master_key_id,
    new_master_key,
    read_file,
    write_file,
)

ONE, OTHER = bytes(range(32)), bytes(range(32, 64))
TEXT, OTHER_TEXT = b64encode(ONE).decode(), b64encode(OTHER).decode()


def test_a_file_keeps_keys_and_their_order(tmp_path: Path) -> None:
    path = tmp_path / "keyring.toml"
    write_file(path, [ONE])
    assert read_file(path) == [ONE]
    write_file(path, [OTHER, ONE])
    assert read_file(path) == [OTHER, ONE]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["keyring.toml"]


def test_remains_of_a_write_before_a_crash_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "keyring.toml"
    write_file(path, [ONE])
    (tmp_path / "keyring.toml.new").write_text("half")
    assert read_file(path) == [ONE]
    write_file(path, [OTHER])
    assert read_file(path) == [OTHER]


def test_a_missing_file_is_distinguished_from_a_bad_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "none")


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o666])
def test_a_file_with_permissions_for_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "keyring.toml"
    write_file(path, [ONE])
    path.chmod(mode)
    with pytest.raises(MasterKeysUnusable, match=f"chmod 600 {path}"):
        read_file(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "primary"),
        ("primary =", "Invalid"),
        (f'primary = "a"\n[keys]\nb = "{TEXT}"', "with the primary key"),
        (f'primary = "a"\n[keys]\na = "{TEXT}"', "named a is another key"),
        (f'primary = "{master_key_id(ONE)}"\n[keys]\n{master_key_id(ONE)} = "{OTHER_TEXT}"', "is another key"),
        (f'primary = "{master_key_id(ONE)}"\n[keys]\n{master_key_id(ONE)} = "{TEXT[:-4]}"', "bytes instead of 32"),
        (f'primary = "{master_key_id(ONE)}"\n[keys]\n{master_key_id(ONE)} = "{TEXT[:-1]}"', "not base64"),
        (f'primary = "{master_key_id(ONE)}"\n[keys]\n{master_key_id(ONE)} = 7', "bytes instead of 32"),
        (f'primary = []\n[keys]\n{master_key_id(ONE)} = "{TEXT}"', "primary"),
    ],
)
def test_a_damaged_file_is_refused_without_revealing_its_keys(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "keyring.toml"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(MasterKeysUnusable, match=reason) as caught:
        read_file(path)
    assert str(path) in str(caught.value)
    assert TEXT[:20] not in str(caught.value)


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MasterKeysUnusable, match="cannot be written: No such file"):
        write_file(tmp_path / "none" / "keyring.toml", [ONE])


def test_the_setting_takes_several_keys() -> None:
    assert keys_of_setting(TEXT) == [ONE]
    assert keys_of_setting(f"{OTHER_TEXT}, {TEXT}") == [OTHER, ONE]


@pytest.mark.parametrize("text", ["", "secret-that-is-no-key", TEXT + ",", TEXT[4:], "hunter2=" * 8])
def test_a_wrong_setting_is_not_repeated(text: str) -> None:
    with pytest.raises(MasterKeysUnusable, match="openssl rand -base64 32") as caught:
        keys_of_setting(text)
    assert not text or text not in str(caught.value)


async def test_wrapping() -> None:
    masters = LocalMasterKeys([OTHER, ONE])
    assert masters.primary == master_key_id(OTHER) != master_key_id(ONE)
    wrapped = await masters.wrap(b"data key", b"context")
    assert b"data key" not in wrapped
    assert wrapped != await masters.wrap(b"data key", b"context")
    assert await masters.unwrap(masters.primary, wrapped, b"context") == b"data key"
    assert await LocalMasterKeys([ONE, OTHER]).unwrap(masters.primary, wrapped, b"context") == b"data key"
    with pytest.raises(WrapBroken):
        await masters.unwrap(masters.primary, wrapped, b"other context")
    with pytest.raises(WrapBroken):
        await masters.unwrap(master_key_id(ONE), wrapped, b"context")
    for cut in (b"", wrapped[:5], wrapped[:-1], bytes([wrapped[0] ^ 1]) + wrapped[1:]):
        with pytest.raises(WrapBroken):
            await masters.unwrap(masters.primary, cut, b"context")
    with pytest.raises(MasterKeyMissing, match=master_key_id(OTHER)):
        await LocalMasterKeys([ONE]).unwrap(masters.primary, wrapped, b"context")


def test_keys_are_random_and_not_shown() -> None:
    key = new_master_key()
    assert len(key) == 32
    assert key != new_master_key()
    shown = repr(LocalMasterKeys([key]))
    assert master_key_id(key) in shown
    assert key.hex() not in shown
    assert repr(key) not in shown

"""Master keys: they wrap the data keys, and are the only secret to be stored apart from the data.

A keyring uses only the interface :class:`MasterKeys`, so that a key management service can implement it: its
calls are asynchronous, and its keys never leave it.  :class:`LocalMasterKeys` are keys held by this process,
from a file or a setting.  A key's id is computed from the key, so a wrong key is recognized.
"""

from __future__ import annotations

import os
import secrets
import stat
import tomllib
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
NONCE_BYTES = 12

_HEADER = """\
# The master keys of a Holdfast.  Without the keys in this file the stored data of the service cannot be read:
# keep a copy of it apart from the data folder and its backups, and keep it secret.
"""


class KeyringError(Exception):
    """A problem with keys prevents encryption or decryption.  Texts never contain keys."""


class MasterKeysUnusable(KeyringError):
    """The master keys cannot be read; the text says what is wrong and what to do."""


class MasterKeyMissing(KeyringError):
    """A data key is wrapped with the master key ``master_id``, which is missing."""

    def __init__(self, master_id: str) -> None:
        super().__init__(f"the master key {master_id} is missing here")
        self.master_id = master_id


class WrapBroken(KeyringError):
    """A wrapped data key was changed, or belongs to another tenant."""


class MasterKeys(Protocol):
    """Wraps and unwraps data keys."""

    @property
    def primary(self) -> str:
        """Id of the master key that wraps new data keys."""

    async def wrap(self, data_key: bytes, context: bytes) -> bytes:
        """Wrap a data key with the primary master key, bound to ``context``."""

    async def unwrap(self, master_id: str, wrapped: bytes, context: bytes) -> bytes:
        """Unwrap a data key.  Raises :class:`MasterKeyMissing` and :class:`WrapBroken`."""


class LocalMasterKeys:
    """Master keys in this process's memory, the primary first.  Implements :class:`MasterKeys` with AES-256-GCM."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        self.keys = {master_key_id(key): key for key in keys}
        self.primary = next(iter(self.keys))

    def __repr__(self) -> str:
        return f"LocalMasterKeys({', '.join(self.keys)})"

    async def wrap(self, data_key: bytes, context: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + AESGCM(self.keys[self.primary]).encrypt(nonce, data_key, context)

    async def unwrap(self, master_id: str, wrapped: bytes, context: bytes) -> bytes:
        key = self.keys.get(master_id)
        if key is None:
            raise MasterKeyMissing(master_id)
        try:
            return AESGCM(key).decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], context)
        except (InvalidTag, ValueError):
            raise WrapBroken("a wrapped data key was changed, or belongs to another tenant") from None


def master_key_id(key: bytes) -> str:
    """Id of a key: 64 bits of a hash, which reveal nothing about the key."""
    return "mk-" + sha256(b"holdfast master key\0" + key).hexdigest()[:16]


def new_master_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


def keys_of_setting(text: str) -> list[bytes]:
    """Parse the setting ``master_key``: base64 of 32 bytes each, the primary first, separated by commas.

    Raises :class:`MasterKeysUnusable`.
    """
    try:
        return [_key(part.strip()) for part in text.split(",")]
    except ValueError as error:
        raise MasterKeysUnusable(
            f"master_key has to be the base64 of {KEY_BYTES} random bytes, such as `openssl rand -base64 {KEY_BYTES}` "
            f"gives, or several of them with commas between, the newest first: {error}"
        ) from None


# --- the keyring file ---------------------------------------------------------------------------------------


def read_file(path: Path) -> list[bytes]:
    """Read the keys of a keyring file, the primary first.  Raises :class:`MasterKeysUnusable`, and
    FileNotFoundError."""
    try:
        with path.open("rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & stat.S_IRWXO:
                raise MasterKeysUnusable(f"other users may read or write the keyring file {path}: chmod 600 {path}")
            content = tomllib.load(file)
        return _keys_of(content)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise MasterKeysUnusable(f"the keyring file {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, ValueError) as error:
        raise MasterKeysUnusable(f"the keyring file {path} is damaged, restore it from its copy: {error}") from None


def write_file(path: Path, keys: Iterable[bytes]) -> None:
    """Replace the keys in a file, the primary first, atomically and durably.

    Raises :class:`MasterKeysUnusable`.
    """
    named = {master_key_id(key): key for key in keys}
    lines = [_HEADER, f'primary = "{next(iter(named))}"', "", "[keys]"]
    lines += [f'{name} = "{b64encode(key).decode()}"' for name, key in named.items()]
    temporary = path.with_name(path.name + ".new")
    try:
        temporary.unlink(missing_ok=True)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write("\n".join(lines).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise MasterKeysUnusable(f"the keyring file {path} cannot be written: {error.strerror}") from error


def _keys_of(content: dict[str, Any]) -> list[bytes]:
    primary, keys = content.get("primary"), content.get("keys")
    if not isinstance(keys, dict) or primary not in list(keys) or content.keys() != {"primary", "keys"}:
        raise ValueError("it has to have `primary` and the table `keys` with the primary key")
    read = {name: _key(value) for name, value in keys.items()}
    for name, key in read.items():
        if master_key_id(key) != name:
            raise ValueError(f"the entry named {name} is another key")
    return [read[primary], *(key for name, key in read.items() if name != primary)]


def _key(text: Any) -> bytes:
    """Decode a key.  Raises ValueError, whose text does not contain the key."""
    try:
        key = b64decode(text, validate=True) if isinstance(text, str) else b""
    except (NotBase64, ValueError):
        raise ValueError("a key is not base64") from None
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key has {len(key)} bytes instead of {KEY_BYTES}")
    return key

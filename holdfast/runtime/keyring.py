"""Sources of the master keys, and the keyring over them: opened at every start, created at the first."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from auth.encryption.data_keys import DataKey
from auth.encryption.keyring import Keyring, KeyringStore, MissingMasterKeys
from auth.encryption.master_keys import (
    LocalMasterKeys,
    MasterKeysUnusable,
    keys_of_setting,
    new_master_key,
    read_file,
    write_file,
)
from auth.store import ServiceKeyStore
from auth.tokens.service_keys import lasting_secret
from holdfast import logs
from holdfast.settings import Settings, is_distributed

log = logging.getLogger("holdfast")


def local_master_keys(settings: Settings) -> LocalMasterKeys | None:
    """Return the keys of the setting and of the file, in this order; None if there are none.

    Raises :class:`MasterKeysUnusable`.
    """
    keys = [] if settings.master_key is None else keys_of_setting(settings.master_key)
    try:
        keys += read_file(keyring_path(settings))
    except FileNotFoundError:
        pass
    return LocalMasterKeys(keys) if keys else None


def keyring_path(settings: Settings) -> Path:
    return settings.keyring_file or settings.data / "keyring.toml"


async def open_keyring(settings: Settings, store: KeyringStore) -> Keyring:
    """Open and check the keyring: every data key can be unwrapped, and is wrapped with the primary master key.

    Only the process that has claimed the data folder may call this.  It creates the keyring file if there is neither a
    file nor the setting, and no data key needs an older one.  Raises
    :class:`~auth.encryption.master_keys.KeyringError`.
    """
    masters = local_master_keys(settings)
    if masters is None:
        if await stored_keys(store):
            raise MasterKeysUnusable(_missing(settings, "all of them", None))
        path = keyring_path(settings)
        write_file(path, [new_master_key()])
        masters = LocalMasterKeys(read_file(path))
        log.warning(
            "created a master key: back up this file, because nothing can be read without it %s", logs.facts(file=path)
        )
    keyring, rewrapped = await _checked(settings, store, masters, rewrap=True)
    if rewrapped:
        log.info(
            "data keys were wrapped with the new master key %s", logs.facts(keys=rewrapped, master=masters.primary)
        )
    return keyring


async def open_shared_keyring(settings: Settings, store: KeyringStore) -> Keyring:
    """Open the keyring of a service on many machines: each process is given the master keys, and none creates any.

    Checked as by :func:`open_keyring`.  Raises :class:`~auth.encryption.master_keys.KeyringError`.
    """
    masters = local_master_keys(settings)
    if masters is None:
        if await stored_keys(store):
            raise MasterKeysUnusable(_missing(settings, "all of them", None))
        raise MasterKeysUnusable(
            f"there are no master keys: neither a keyring file {keyring_path(settings)} nor the setting master_key. "
            "All frontends need the same: create a file with `holdfast keyring create --keyring-file FILE`, copy it to "
            "each machine and name it there (HOLDFAST_KEYRING_FILE)"
        )
    return (await _checked(settings, store, masters, rewrap=True))[0]


def create_keyring(settings: Settings) -> str:
    """Create a keyring file with a new master key; returns the key's id.  Raises :class:`MasterKeysUnusable`."""
    path = keyring_path(settings)
    if path.exists():
        raise MasterKeysUnusable(f"{path} already exists. Nothing was changed")
    write_file(path, [new_master_key()])
    return LocalMasterKeys(read_file(path)).primary


async def stored_keys(store: KeyringStore) -> list[DataKey]:
    """Return all data keys wrapped with a master key, including versions of named keys.  Raises the store's errors."""
    named = await store.named_keys.named_keys()
    return [
        *await store.data_keys.data_keys(),
        *(version for key in named for version in key.versions if version.wrapped),
    ]


async def naming_secret(store: ServiceKeyStore) -> bytes:
    """Return the secret for hashing message names (:attr:`frontend.services.Services.naming`); created at the first
    start.

    Raises the store's errors.
    """
    return await lasting_secret(store, "naming", clock=time.time)


async def read_keyring(settings: Settings, store: KeyringStore) -> Keyring | None:
    """Open the keyring for reading only, also beside a running service.  None: it was not created yet.

    Raises :class:`~auth.encryption.master_keys.KeyringError`.
    """
    masters = local_master_keys(settings)
    if masters is not None:
        return (await _checked(settings, store, masters, rewrap=False))[0]
    if await stored_keys(store):
        raise MasterKeysUnusable(_missing(settings, "all of them", None))
    return None


async def _checked(
    settings: Settings, store: KeyringStore, masters: LocalMasterKeys, *, rewrap: bool
) -> tuple[Keyring, int]:
    keyring = Keyring(store, masters)
    try:
        return keyring, await keyring.check(rewrap=rewrap)
    except MissingMasterKeys as error:
        raise MasterKeysUnusable(_missing(settings, str(error), masters)) from error


def _missing(settings: Settings, which: str, masters: LocalMasterKeys | None) -> str:
    path = keyring_path(settings)
    place = f"Cassandra ({settings.cassandra_keyspace})" if is_distributed(settings) else str(settings.data)
    here = "no master key" if masters is None else f"only {', '.join(masters.keys)}"
    return (
        f"the data in {place} is encrypted under master keys that are missing here ({which}): the keyring file "
        f"{path} and the setting master_key have {here}. Restore the keyring "
        "file from its copy, or name the right one (HOLDFAST_KEYRING_FILE) or the right key (HOLDFAST_MASTER_KEY). "
        "Nothing was changed"
    )

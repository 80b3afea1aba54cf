"""``holdfast keyring``: list the master keys, and rotate them."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

from auth.encryption.keyring import Keyring
from auth.encryption.master_keys import KeyringError, new_master_key, read_file, write_file
from auth.encryption.named_keys import VERSIONS_MAX
from holdfast.commandline.offline import is_data_folder, run_stopped
from holdfast.runtime.keyring import create_keyring, keyring_path, local_master_keys, open_keyring, stored_keys
from holdfast.settings import Settings
from metadata_service.sqlite.store import SQLiteStore
from metadata_service.store import StoreError


def show_keyring(settings: Settings) -> int:
    """Print the master keys' ids and the keys wrapped with them; returns the exit code.  Changes nothing."""
    if not is_data_folder(settings):
        return 1
    try:
        return asyncio.run(_show(settings))
    except (KeyringError, StoreError) as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return 1


def rotate_keyring(settings: Settings, *, data_keys: bool) -> int:
    """Create a new primary master key and wrap all data keys with it; with ``data_keys``, replace these too.

    Returns the exit code.  After an interruption it can be repeated, and the next start completes it.
    """
    return run_stopped(settings, lambda: _rotate(settings, data_keys), (KeyringError, StoreError))


def new_keyring(settings: Settings) -> int:
    """Create a keyring file; returns the exit code."""
    try:
        master_id = create_keyring(settings)
    except KeyringError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return 1
    print(
        f"Created the master key {master_id} in {keyring_path(settings)}.  Without it the stored data cannot be "
        "read: back it up, and keep it secret."
    )
    return 0


async def _show(settings: Settings) -> int:
    store = SQLiteStore(settings.metadata_file)
    try:
        wrapped = Counter(key.master_id for key in await stored_keys(store))
    finally:
        await store.close()
    masters = local_master_keys(settings)
    ids = [] if masters is None else list(masters.keys)
    for master_id in [*ids, *sorted(wrapped.keys() - ids)]:
        state = "MISSING" if master_id not in ids else "primary" if master_id == ids[0] else "older"
        print(f"{master_id}  {state:<8} {wrapped[master_id]} data keys")
    if not ids and not wrapped:
        print("There are no keys yet: the first start of the service creates them.")
    return 1 if wrapped.keys() - ids else 0


async def _rotate(settings: Settings, data_keys: bool) -> int:
    path = keyring_path(settings)
    if settings.master_key is not None:
        print(
            "holdfast: the master key is given in the settings: put a new one there, before the old one and "
            "separated by a comma, and start the service; after that it needs only the new one. Nothing was changed",
            file=sys.stderr,
        )
        return 2
    store = SQLiteStore(settings.metadata_file)
    try:
        await open_keyring(settings, store)
        write_file(path, [new_master_key(), *read_file(path)])
        keyring = await open_keyring(settings, store)
        stored = await stored_keys(store)
        print(f"The primary master key is now {keyring.masters.primary}; it wraps {len(stored)} data keys.")
        if data_keys:
            print(f"New data keys were created for {await _renew(keyring, store)} accounts.")
        print(f"Back up {path} now.  The older master keys in it are needed for older backups of the data only.")
        return 0
    finally:
        await store.close()


async def _renew(keyring: Keyring, store: SQLiteStore) -> int:
    accounts = sorted({key.account for key in await stored_keys(store)})
    for account in accounts:
        await keyring.renew(account)
    for key in await store.named_keys.named_keys():
        if key.destroyed_s is None and len(key.versions) < VERSIONS_MAX:
            await keyring.named.rotate(key.account, key.name)
    return len(accounts)

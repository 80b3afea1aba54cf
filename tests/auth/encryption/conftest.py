"""A metadata store with two tenants, and keyrings over it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from auth.credentials import Tenant
from auth.encryption.keyring import Keyring
from auth.encryption.master_keys import LocalMasterKeys, new_master_key
from metadata_service.sqlite.store import SQLiteStore

ONE, OTHER = "111111111111", "222222222222"
MASTER = new_master_key()


def keyring(store: Any, *masters: bytes, **options: Any) -> Keyring:
    """Make a keyring of a process with these master keys; default: :data:`MASTER`."""
    return Keyring(store, LocalMasterKeys(masters or [MASTER]), **options)


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(tmp_path / "metadata.sqlite")
    for account in (ONE, OTHER):
        await store.credentials.put_tenant(Tenant(account, "tests"))
    yield store
    await store.close()

"""Tenants and keys as requests see them."""

import asyncio
import logging
from unittest import mock

import msgspec
import pytest

from auth.credentials import AccessKey, ApiKey, Tenant, TenantRole, new_access_key, new_principal_id
from auth.lookup import Credentials
from tests.auth.clock import Clock
from tests.auth.credential_world import ACCOUNT, OTHER, CredentialWorld
from tests.metadata_service.faulty import Faults


@pytest.fixture
def faults(world: CredentialWorld) -> Faults:
    return world.faults


@pytest.fixture
def credentials(faults: Faults, clock: Clock) -> Credentials:
    return Credentials(faults.store.credentials, clock=clock, known_limit=3)


@pytest.fixture
def other_process(faults: Faults, clock: Clock) -> Credentials:
    """Credentials of another process on the same store."""
    return Credentials(faults.store.credentials, clock=clock)


@pytest.fixture
async def key(faults: Faults) -> AccessKey:
    key = new_access_key(ACCOUNT)
    await faults.store.credentials.put_access_key(key)
    return key


async def found(credentials: Credentials, key: AccessKey) -> AccessKey | None:
    known = await credentials.find(key.access_key_id)
    return None if known is None else known.key


async def test_a_key_is_read_with_its_tenant(credentials: Credentials, key: AccessKey) -> None:
    known = await credentials.find(key.access_key_id)
    assert known is not None
    assert (known.key, known.tenant, known.principal) == (key, Tenant(ACCOUNT, "tests"), key.principal)
    assert credentials.access_keys.cached(key.access_key_id) is known
    assert known.usable


async def test_a_change_is_seen_at_once_here_and_within_a_second_by_other_processes(
    credentials: Credentials, other_process: Credentials, clock: Clock, key: AccessKey
) -> None:
    assert await found(other_process, key) == await found(credentials, key) == key
    revoked = await credentials.update_access_key(msgspec.structs.replace(key, active=False))
    assert await found(credentials, key) == revoked
    clock.now += 0.99
    other_process.access_keys.cached(key.access_key_id)
    clock.now += 0.01
    assert other_process.access_keys.cached(key.access_key_id) is None
    known = await other_process.find(key.access_key_id)
    assert known is not None
    assert not known.usable


async def test_a_deleted_key(
    credentials: Credentials, other_process: Credentials, clock: Clock, key: AccessKey
) -> None:
    await found(other_process, key)
    await found(credentials, key)
    assert await credentials.delete_access_key(key.access_key_id)
    assert await found(credentials, key) is None
    clock.now += 1
    assert await found(other_process, key) is None
    assert not await credentials.delete_access_key(key.access_key_id)


async def test_a_suspension_concerns_all_keys_of_the_tenant_and_no_others(
    credentials: Credentials, other_process: Credentials, clock: Clock, key: AccessKey
) -> None:
    api_key = ApiKey("k" * 16, b"d", ACCOUNT, new_principal_id())
    others = new_access_key(OTHER)
    await credentials.put_api_key(api_key)
    await credentials.put(others)
    for some in (credentials, other_process):
        for key_id in (key.access_key_id, others.access_key_id):
            assert await some.find(key_id) is not None
        assert await some.find_api_key(api_key.key_id) is not None
        assert await some.tenants.find(ACCOUNT) is not None
    await credentials.update_tenant(Tenant(ACCOUNT, "tests", state="suspended"))
    for some in (credentials, other_process):
        known, known_other = await some.find(key.access_key_id), await some.find(others.access_key_id)
        known_api_key, tenant = await some.find_api_key(api_key.key_id), await some.tenants.find(ACCOUNT)
        assert known is not None
        assert known_other is not None
        assert known_api_key is not None
        assert tenant is not None
        assert (known.usable, known_api_key.usable, tenant.state) == (False, False, "suspended")
        assert known_other.usable
        assert known.refusal().code == known_api_key.refusal().code == "OptInRequired"
        clock.now += 1


async def test_a_role(credentials: Credentials, other_process: Credentials, clock: Clock) -> None:
    role = TenantRole(ACCOUNT, "worker", "AROA")
    assert await credentials.find_role(ACCOUNT, "worker") is None
    await credentials.put_role(role)
    assert await credentials.find_role(ACCOUNT, "worker") == await other_process.find_role(ACCOUNT, "worker") == role
    newer = await credentials.update_role(msgspec.structs.replace(role, scopes=("send",)))
    assert await credentials.find_role(ACCOUNT, "worker") == newer
    assert await credentials.delete_role(ACCOUNT, "worker")
    assert await credentials.find_role(ACCOUNT, "worker") is None
    clock.now += 1
    assert await other_process.find_role(ACCOUNT, "worker") is None


async def test_a_change_of_unknown_outcome_is_looked_up(
    credentials: Credentials, faults: Faults, key: AccessKey
) -> None:
    await found(credentials, key)
    faults.fail("update_access_key", "after")
    with pytest.raises(Exception, match="after it took effect"):
        await credentials.update_access_key(msgspec.structs.replace(key, active=False))
    changed = await found(credentials, key)
    assert changed is not None
    assert not changed.active


@pytest.mark.parametrize(
    "malformed", ["", "short", "x" * 129, "AKIA/UNKNOWN/00000", "AKIAÜNKNOWN00000000", "A" * 16 + "\n"]
)
async def test_an_id_that_no_store_gives_out_is_not_looked_up(
    credentials: Credentials, faults: Faults, malformed: str
) -> None:
    assert await credentials.find(malformed) is None
    assert await credentials.find_api_key(malformed) is None
    assert faults.calls == []


# --- last uses -----------------------------------------------------------------------------------------------


async def test_uses_are_written_together_and_once_a_minute(
    credentials: Credentials, faults: Faults, key: AccessKey
) -> None:
    for second in range(59):
        credentials.used(key.access_key_id, 1_000.5 + second)
    credentials.used("another-key-of-the-account", 1_001)
    assert faults.calls.count("record_uses") == 0
    await credentials.close()
    assert faults.calls.count("record_uses") == 1
    assert await faults.store.credentials.key_uses([key.access_key_id]) == {key.access_key_id: 1_000}
    credentials.used(key.access_key_id, 1_060.5)
    await credentials.close()
    await credentials.close()
    assert faults.calls.count("record_uses") == 2
    assert await faults.store.credentials.key_uses([key.access_key_id]) == {key.access_key_id: 1_060}


async def test_last_uses_are_known_before_they_are_written(
    credentials: Credentials, faults: Faults, key: AccessKey
) -> None:
    await faults.store.credentials.record_uses({key.access_key_id: 900, "other": 901})
    credentials.used(key.access_key_id, 1_000.5)
    assert await credentials.last_uses([key.access_key_id, "other", "unused"]) == {
        key.access_key_id: 1_000,
        "other": 901,
    }
    await credentials.close()


@mock.patch("auth.lookup.FLUSH_SECONDS", 0)
async def test_uses_are_written_in_the_background(credentials: Credentials, faults: Faults, key: AccessKey) -> None:
    credentials.used(key.access_key_id, 1_000)
    while not await faults.store.credentials.key_uses([key.access_key_id]):
        await asyncio.sleep(0)


async def test_a_use_that_cannot_be_written_is_no_error_but_is_logged(
    credentials: Credentials, faults: Faults, key: AccessKey, caplog: pytest.LogCaptureFixture
) -> None:
    faults.fail("record_uses")
    credentials.used(key.access_key_id, 1_000)
    with caplog.at_level(logging.WARNING, "holdfast.auth"):
        await credentials.close()
    assert "the last use of 1 keys was not recorded" in caplog.text


async def test_only_so_many_uses_are_remembered(credentials: Credentials) -> None:
    for number in range(100):
        credentials.used(f"key-{number}", 1_000)
    assert len(credentials._recorded) <= 6
    await credentials.close()

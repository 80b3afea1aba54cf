"""Named data keys: created at first use, rotated, destroyed, with changes seen by other processes within a second."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from auth.credentials import Tenant
from auth.encryption import named_keys
from auth.encryption.data_keys import DataKeyMissing, DecryptionFailed
from auth.encryption.keyring import Keyring, MissingMasterKeys
from auth.encryption.master_keys import KeyringError, master_key_id, new_master_key
from auth.encryption.named_keys import DataKeyDestroyed, NamedKeyUnknown, TooManyNamedKeys, key_name
from metadata_service.sqlite.store import SQLiteStore
from metadata_service.store import StoreUnavailable
from tests.auth.clock import Clock
from tests.auth.encryption.conftest import MASTER, ONE, OTHER, keyring
from tests.behaviour.cases import resolve
from tests.metadata_service.faulty import Faults
from tests.tables import beside

REGION = "eu-west-1"
NAME = "alias/orders"


async def sealed(keys: Keyring, plain: bytes, name: str = NAME, account: str = ONE) -> bytes:
    return (await keys.named.ready(account, name)).encrypt(plain)


def key_id(whole: bytes) -> int:
    return int.from_bytes(whole[1:5], "big")


# --- names ---


NAMES = beside(__file__, "key_names.yaml")


@pytest.mark.parametrize(("text", "name"), resolve(NAMES, {"one": ONE, "other": OTHER}))
def test_a_key_is_named_by_its_id_or_its_arn(text: str, name: str) -> None:
    assert key_name(text, REGION, ONE) == name


# --- encrypting and decrypting ---


async def test_the_first_use_makes_one_key_for_concurrent_callers(store: SQLiteStore) -> None:
    rings = [keyring(store) for _ in range(3)]
    assert await rings[0].named.all(ONE) == []
    await asyncio.gather(*(ring.named.ready(ONE, NAME) for ring in rings for _ in range(5)))
    (key,) = await store.named_keys.named_keys()
    assert (key.account, key.name, len(key.versions)) == (ONE, NAME, 1)
    assert await store.data_keys.data_keys() == [], "and none of the tenant itself"
    whole = await sealed(rings[0], b"plain")
    assert key_id(whole) == key.versions[0].key_id
    for ring in (*rings, keyring(store)):
        assert await ring.decrypt(ONE, whole) == b"plain"


async def test_keys_are_apart_from_each_other_and_from_the_tenants_own(store: SQLiteStore) -> None:
    ring = keyring(store)
    whole = [
        await sealed(ring, b"0"),
        await sealed(ring, b"1", "other"),
        await sealed(ring, b"2", NAME, OTHER),
        (await ring.ready(ONE)).encrypt(b"3"),
    ]
    assert len({key_id(one) for one in whole}) == 4
    assert [await ring.decrypt(ONE, whole[place]) for place in (0, 1, 3)] == [b"0", b"1", b"3"]
    for each in (ring, keyring(store)):
        with pytest.raises(DataKeyMissing):
            await each.decrypt(ONE, whole[2])
        with pytest.raises(DecryptionFailed):
            await each.decrypt(ONE, whole[0][:-1] + bytes([whole[0][-1] ^ 1]))
    newer = (await keyring(store).ready(ONE)).encrypt(b"x")
    assert key_id(newer) == key_id(whole[3]), "the tenant's own key is no named one, however new that is"


async def test_nothing_shows_a_key(store: SQLiteStore) -> None:
    ring = keyring(store)
    await ring.named.ready(ONE, NAME)
    (key,) = await store.named_keys.named_keys()
    assert repr(key.versions[0].wrapped)[2:-1] not in repr(key)
    await ring.named.destroy(ONE, NAME)
    with pytest.raises(DataKeyDestroyed) as caught:
        await ring.named.ready(ONE, NAME)
    assert repr(key.versions[0].wrapped)[2:-1] not in str(caught.value)


async def test_no_version_encrypts_more_than_it_may_also_over_restarts(store: SQLiteStore) -> None:
    used: dict[int, int] = {}
    for _ in range(7):
        ring = keyring(store, encryptions_reserved=10, encryptions_max=35)
        for _ in range(13):
            version = key_id(await sealed(ring, b"x"))
            used[version] = used.get(version, 0) + 1
    assert sum(used.values()) == 7 * 13
    assert max(used.values()) <= 30
    (key,) = await store.named_keys.named_keys()
    assert [version.key_id for version in key.versions] == sorted(used)
    assert len(used) == 5


async def test_a_tenant_has_a_bounded_number_of_keys(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_keys, "NAMED_KEYS_MAX", 2)
    ring = keyring(store)
    for name in ("a", "b"):
        await ring.named.ready(ONE, name)
    await ring.named.destroy(ONE, "a")
    with pytest.raises(TooManyNamedKeys):
        await ring.named.ready(ONE, "c")
    await ring.named.ready(OTHER, "c")
    assert [key.name for key in await store.named_keys.named_keys(ONE)] == ["a", "b"]


async def test_a_tenant_that_is_gone_gets_no_key(store: SQLiteStore) -> None:
    await store.credentials.put_tenant(Tenant(ONE, "some", "deleting"))
    with pytest.raises(KeyringError, match="no data key can be created"):
        await keyring(store).named.ready(ONE, NAME)
    assert await store.named_keys.named_keys() == []


async def test_a_use_that_cannot_be_reserved_is_none(store: SQLiteStore) -> None:
    faults = Faults(store)
    ring = keyring(faults.store)
    faults.fail("create_named_key", "after")
    with pytest.raises(StoreUnavailable):
        await ring.named.ready(ONE, NAME)
    assert ring.named.cached(ONE, NAME) is None
    faults.heal()
    assert await ring.decrypt(ONE, await sealed(ring, b"x")) == b"x"
    assert len(await store.named_keys.named_keys()) == 1


# --- rotating ---


async def test_a_new_version_encrypts_and_the_old_one_still_decrypts(store: SQLiteStore) -> None:
    clock = Clock(0.0)
    ring, other_process = keyring(store), keyring(store, monotonic=clock)
    before = await sealed(ring, b"before")
    await other_process.named.ready(ONE, NAME)
    assert len((await ring.named.rotate(ONE, NAME)).versions) == 2
    after = await sealed(ring, b"after")
    assert key_id(after) != key_id(before)
    for each in (ring, other_process, keyring(store)):
        assert await each.decrypt(ONE, before) == b"before"
        assert await each.decrypt(ONE, after) == b"after"
    clock.now += 1.01
    assert other_process.named.cached(ONE, NAME) is None
    assert key_id(await sealed(other_process, b"x")) == key_id(after)


async def test_a_key_that_is_not_there_is_not_rotated(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = keyring(store)
    with pytest.raises(NamedKeyUnknown):
        await ring.named.rotate(ONE, NAME)
    await ring.named.ready(ONE, NAME)
    monkeypatch.setattr(named_keys, "VERSIONS_MAX", 2)
    await ring.named.rotate(ONE, NAME)
    with pytest.raises(TooManyNamedKeys):
        await ring.named.rotate(ONE, NAME)
    await ring.named.destroy(ONE, NAME)
    with pytest.raises(DataKeyDestroyed):
        await ring.named.rotate(ONE, NAME)


async def test_a_new_master_key_wraps_named_keys_too(store: SQLiteStore) -> None:
    ring = keyring(store)
    whole = await sealed(ring, b"plain")
    await ring.named.rotate(ONE, NAME)
    await sealed(ring, b"x", "gone")
    await ring.named.destroy(ONE, "gone")
    newer = new_master_key()
    rotated = keyring(store, newer, MASTER)
    assert await rotated.check() == 2
    assert await rotated.check() == 0
    alone = keyring(store, newer)
    assert await alone.check() == 0, "nothing of the destroyed one needs the old master key"
    assert await alone.decrypt(ONE, whole) == b"plain"
    wrapped = {
        version.master_id for key in await store.named_keys.named_keys() for version in key.versions if version.wrapped
    }
    assert wrapped == {master_key_id(newer)}
    with pytest.raises(MissingMasterKeys):
        await keyring(store).check()


async def test_keys_are_wrapped_anew_while_others_use_them(store: SQLiteStore) -> None:
    ring = keyring(store)
    await ring.named.ready(ONE, NAME)
    (known,) = await store.named_keys.named_keys()
    await store.named_keys.update_named_key(msgspec.structs.replace(known, encryptions=known.encryptions + 5))
    rotated = keyring(store, new_master_key(), MASTER)
    assert await rotated.named.rewrap(known) == 1
    (key,) = await store.named_keys.named_keys()
    assert (key.encryptions, key.versions[0].master_id) == (known.encryptions + 5, rotated.masters.primary)


# --- destroying ---


async def test_data_of_a_destroyed_key_cannot_be_read_and_its_name_is_not_reused(
    store: SQLiteStore, tmp_path: Path
) -> None:
    ring = keyring(store, clock=Clock(77.0))
    before = await sealed(ring, b"before")
    await ring.named.rotate(ONE, NAME)
    after, others = await sealed(ring, b"after"), await sealed(ring, b"others", "other")
    (key, _) = await store.named_keys.named_keys()
    gone = await ring.named.destroy(ONE, NAME)
    assert (gone.destroyed_s, [version.wrapped for version in gone.versions]) == (77, [b"", b""])
    assert await ring.named.destroy(ONE, NAME) == gone
    for each in (ring, keyring(store)):
        for whole in (before, after):
            with pytest.raises(DataKeyDestroyed, match="alias/orders of account 111111111111 was destroyed"):
                await each.decrypt(ONE, whole)
        with pytest.raises(DataKeyDestroyed):
            await each.named.ready(ONE, NAME)
        with pytest.raises(DataKeyDestroyed):
            await each.named.check(ONE, NAME)
        assert each.named.cached(ONE, NAME) is None
        assert await each.decrypt(ONE, others) == b"others"
    with pytest.raises(NamedKeyUnknown):
        await ring.named.destroy(ONE, "never used")
    await ring.named.check(ONE, "never used")
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    for version in key.versions:
        assert msgspec.json.encode(version.wrapped).strip(b'"') not in stored
    assert await keyring(store).check() == 0


async def test_other_processes_learn_of_it_within_a_second(store: SQLiteStore) -> None:
    clock = Clock(0.0)
    ring, other_process = keyring(store), keyring(store, monotonic=clock)
    whole = await sealed(other_process, b"x")
    await ring.named.destroy(ONE, NAME)
    assert other_process.named.cached(ONE, NAME) is not None
    clock.now += 1.01
    assert other_process.named.cached(ONE, NAME) is None
    with pytest.raises(DataKeyDestroyed):
        await other_process.named.ready(ONE, NAME)
    with pytest.raises(DataKeyDestroyed):
        await other_process.decrypt(ONE, whole)
    assert other_process.named._unwrapped == {}


@pytest.mark.parametrize("encryptions_max", [3, 100])
async def test_a_process_with_an_older_view_reserves_nothing_and_adds_no_version(
    store: SQLiteStore, encryptions_max: int
) -> None:
    clock = Clock(0.0)
    other_process = keyring(store, monotonic=clock, encryptions_reserved=2, encryptions_max=encryptions_max)
    for _ in range(2):
        await sealed(other_process, b"x")
    gone = await keyring(store).named.destroy(ONE, NAME)
    with pytest.raises(DataKeyDestroyed):
        await other_process.named.ready(ONE, NAME)
    assert await store.named_keys.named_keys() == [gone]


async def test_the_keys_of_a_tenant_go_with_it(store: SQLiteStore) -> None:
    ring = keyring(store)
    whole = await sealed(ring, b"x")
    await ring.ready(ONE)
    foreign = await sealed(ring, b"theirs", NAME, OTHER)
    assert await ring.destroy_tenant_keys(ONE) == 2
    for each in (ring, keyring(store)):
        with pytest.raises(DataKeyMissing):
            await each.decrypt(ONE, whole)
        assert await each.decrypt(OTHER, foreign) == b"theirs"

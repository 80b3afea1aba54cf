"""The keyring: encryption, counting, rotation, destruction."""

import asyncio
import os

import pytest

from auth.encryption import data_keys
from auth.encryption.keyring import Keyring, MissingMasterKeys
from auth.encryption.master_keys import KeyringError, LocalMasterKeys, WrapBroken, master_key_id, new_master_key
from metadata_service.sqlite.store import SQLiteStore
from metadata_service.store import StoreUnavailable
from tests.auth.encryption.conftest import MASTER, ONE, OTHER, keyring
from tests.metadata_service.faulty import Faults


async def sealed(keys: Keyring, plain: bytes, account: str = ONE, what: bytes = data_keys.MESSAGE) -> bytes:
    return (await keys.ready(account)).encrypt(plain, what)


# --- encryption and decryption ---


@pytest.mark.parametrize("plain", [b"", b"x", os.urandom(1 << 20)], ids=["empty", "one byte", "1 MiB"])
async def test_encrypted_data_decrypt(store: SQLiteStore, plain: bytes) -> None:
    ring = keyring(store)
    first, second = await sealed(ring, plain), await sealed(ring, plain)
    assert first != second
    assert len(first) == len(plain) + data_keys.OVERHEAD_BYTES
    assert await ring.decrypt(ONE, first) == await ring.decrypt(ONE, second) == plain
    assert await keyring(store).decrypt(ONE, first) == plain


async def test_it_opens_only_for_its_tenant_and_its_use(store: SQLiteStore) -> None:
    ring = keyring(store)
    secret = await sealed(ring, b"plain")
    await sealed(ring, b"other", OTHER)
    with pytest.raises(data_keys.DataKeyMissing, match=f"{OTHER} has no data key 1"):
        await ring.decrypt(OTHER, secret)
    with pytest.raises(data_keys.DecryptionFailed):
        await ring.decrypt(ONE, secret, b"secret")
    assert await ring.decrypt(ONE, await sealed(ring, b"plain", what=b"secret"), b"secret") == b"plain"


async def test_every_changed_bit_is_noticed(store: SQLiteStore) -> None:
    ring = keyring(store)
    whole = await sealed(ring, b"plain")
    for bit in range(len(whole) * 8):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises((data_keys.DecryptionFailed, data_keys.DataKeyMissing)) as caught:
            await ring.decrypt(ONE, bytes(changed))
        assert "plain" not in str(caught.value)
    for length in range(len(whole)):
        with pytest.raises(data_keys.DecryptionFailed):
            await ring.decrypt(ONE, whole[:length])


async def test_nothing_shows_a_key(store: SQLiteStore) -> None:
    ring = keyring(store)
    keys = await ring.ready(ONE)
    (stored,) = await store.data_keys.data_keys()
    data_key = await ring.masters.unwrap(stored.master_id, stored.wrapped, stored.context)
    assert len(data_key) == 32
    for shown in (repr(keys), repr(stored), repr(ring.masters)):
        assert repr(data_key)[2:-1] not in shown
        assert repr(stored.wrapped)[2:-1] not in shown


def test_nonces_are_not_repeated() -> None:
    nonces = {data_keys._nonces.next() for _ in range(5_000)}
    assert len(nonces) == 5_000
    assert {len(nonce) for nonce in nonces} == {12}


def test_a_forked_process_has_nonces_of_its_own() -> None:
    data_keys._nonces.next()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, data_keys._nonces.next())
        os._exit(0)
    os.waitpid(child, 0)
    child_secret = os.read(read, 12)
    os.close(read)
    os.close(write)
    assert child_secret not in {data_keys._nonces.next() for _ in range(300)}


# --- counting ---


async def test_the_first_use_makes_one_key_for_concurrent_callers(store: SQLiteStore) -> None:
    ring = keyring(store)
    assert ring.cached(ONE) is None
    several = await asyncio.gather(*(ring.ready(ONE) for _ in range(20)))
    assert len(set(map(id, several))) == 1
    assert ring.cached(ONE) is several[0]
    assert len(await store.data_keys.data_keys()) == 1


async def test_no_key_seals_more_than_it_may_also_over_restarts(store: SQLiteStore) -> None:
    used: dict[bytes, int] = {}
    for _ in range(7):  # each process reserves ahead and ends without returning the rest
        ring = keyring(store, encryptions_reserved=10, encryptions_max=35)
        for _ in range(13):
            key_id = (await sealed(ring, b"x"))[1:5]
            used[key_id] = used.get(key_id, 0) + 1
    assert sum(used.values()) == 7 * 13
    assert len(used) == 5  # 14 reservations, 3 of each key
    assert max(used.values()) <= 30
    assert data_keys.ENCRYPTIONS_MAX < 1 << 32


async def test_seals_that_are_not_reserved_are_not_made(store: SQLiteStore) -> None:
    ring = keyring(store, encryptions_reserved=3, encryptions_max=100)
    keys = await ring.ready(ONE, 3)
    assert ring.cached(ONE, 4) is None
    for _ in range(3):
        keys.encrypt(b"x")
    assert ring.cached(ONE) is None
    with pytest.raises(AssertionError):
        keys.encrypt(b"x")


async def test_memory_holds_the_keys_of_so_many_tenants(store: SQLiteStore) -> None:
    ring = keyring(store, tenants_max=3)
    accounts = [f"{number:012d}" for number in range(8)]
    seals = {account: await sealed(ring, account.encode(), account) for account in accounts}
    assert len(ring._tenants) == 3
    for account, seal in seals.items():
        assert await ring.decrypt(account, seal) == account.encode()
        assert await ring.decrypt(account, await sealed(ring, b"again", account)) == b"again"
    assert len(ring._tenants) == 3
    assert len(await store.data_keys.data_keys()) == 8


async def test_a_reservation_that_fails_seals_nothing(store: SQLiteStore) -> None:
    faults = Faults(store)
    ring = keyring(faults.store)
    faults.fail("reserve_seals", "after")
    with pytest.raises(StoreUnavailable):
        await ring.ready(ONE)
    assert ring.cached(ONE) is None
    faults.heal()
    assert await ring.decrypt(ONE, await sealed(ring, b"x")) == b"x"
    assert len(await store.data_keys.data_keys()) == 1


# --- rotating ---


async def test_a_new_data_key_seals_and_the_old_one_still_opens(store: SQLiteStore) -> None:
    ring, other_process = keyring(store), keyring(store)
    before = await sealed(ring, b"before")
    await other_process.ready(ONE)
    key_id = await ring.renew(ONE)
    after = await sealed(ring, b"after")
    assert int.from_bytes(after[1:5], "big") == key_id != int.from_bytes(before[1:5], "big")
    for each in (ring, other_process, keyring(store)):
        assert await each.decrypt(ONE, before) == b"before"
        assert await each.decrypt(ONE, after) == b"after"


async def test_a_new_master_key_wraps_all_data_keys_and_the_old_one_is_not_needed(store: SQLiteStore) -> None:
    ring = keyring(store)
    seals = {account: await sealed(ring, account.encode(), account) for account in (ONE, OTHER)}
    newer = new_master_key()
    rotated = keyring(store, newer, MASTER)
    assert await rotated.check() == 2
    assert await rotated.check() == 0
    assert {key.master_id for key in await store.data_keys.data_keys()} == {master_key_id(newer)}
    alone = keyring(store, newer)
    assert await alone.check() == 0
    for account, seal in seals.items():
        assert await alone.decrypt(account, seal) == await ring.decrypt(account, seal) == account.encode()


async def test_a_rotation_that_was_cut_off_is_ended_by_the_next_start(store: SQLiteStore) -> None:
    ring = keyring(store)
    seals = {account: await sealed(ring, account.encode(), account) for account in (ONE, OTHER)}
    newer = new_master_key()
    (first, _) = await store.data_keys.data_keys()
    half = keyring(store, newer, MASTER)
    data_key = await half.masters.unwrap(first.master_id, first.wrapped, first.context)
    await half._rewrap(first, data_key)
    assert len({key.master_id for key in await store.data_keys.data_keys()}) == 2
    assert await keyring(store, newer, MASTER).check() == 1
    for account, seal in seals.items():
        assert await keyring(store, newer).decrypt(account, seal) == account.encode()


# --- missing and wrong keys ---


async def test_missing_master_keys_are_named_and_nothing_is_changed(store: SQLiteStore) -> None:
    ring = keyring(store)
    for account in (ONE, OTHER):
        await ring.ready(account)
    newer = new_master_key()
    third = keyring(store, newer)
    await third.ready("333333333333")
    before = await store.data_keys.data_keys()
    with pytest.raises(MissingMasterKeys, match=f"{master_key_id(MASTER)} .needed by 2 accounts.") as caught:
        await third.check()
    assert caught.value.missing == {master_key_id(MASTER): {ONE, OTHER}}
    assert await store.data_keys.data_keys() == before


async def test_a_wrapped_key_of_another_tenant_is_refused(store: SQLiteStore) -> None:
    ring = keyring(store)
    await ring.ready(ONE)
    (key,) = await store.data_keys.data_keys()
    await store.data_keys.destroy_data_keys(ONE)
    await store.data_keys.add_data_key(type(key)(OTHER, key.key_id, key.master_id, key.wrapped, key.created_s))
    with pytest.raises(WrapBroken, match=f"data key 1 of account {OTHER} is damaged"):
        await keyring(store).check()
    with pytest.raises(WrapBroken):
        await keyring(store).ready(OTHER)


class Forgetful(LocalMasterKeys):
    """Wraps other data than it was given."""

    async def wrap(self, data_key: bytes, context: bytes) -> bytes:
        return await super().wrap(data_key[::-1], context)


async def test_a_key_that_was_wrapped_wrongly_is_never_stored(store: SQLiteStore) -> None:
    ring = Keyring(store, Forgetful([MASTER]))
    with pytest.raises(KeyringError, match="does not unwrap what it wrapped"):
        await ring.ready(ONE)
    assert await store.data_keys.data_keys() == []


# --- destroying ---


async def test_data_of_a_destroyed_tenant_cannot_be_decrypted(store: SQLiteStore) -> None:
    ring = keyring(store)
    own, others = await sealed(ring, b"mine"), await sealed(ring, b"others", OTHER)
    assert await ring.destroy_tenant_keys(ONE) == 1
    for each in (ring, keyring(store)):
        with pytest.raises(data_keys.DataKeyMissing):
            await each.decrypt(ONE, own)
        assert await each.decrypt(OTHER, others) == b"others"
    assert await ring.destroy_tenant_keys(ONE) == 0
    again = await sealed(ring, b"again")
    assert await ring.decrypt(ONE, again) == b"again"
    with pytest.raises(data_keys.DataKeyMissing):
        await ring.decrypt(ONE, own)

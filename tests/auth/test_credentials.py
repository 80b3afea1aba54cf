"""The cache of access keys."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from auth.credentials import AccessKey, Credentials, Tenant, check_access_key, check_account, new_access_key

ACCOUNT = "000000000000"


class Store:
    """A credential store in memory that counts look-ups, and lets them wait while ``gate`` is closed."""

    def __init__(self) -> None:
        self.keys: dict[str, AccessKey] = {}
        self.asked: list[str] = []
        self.at_once = 0
        self.most_at_once = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def get_access_key(self, access_key_id: str) -> AccessKey | None:
        self.asked.append(access_key_id)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await self.gate.wait()
        self.at_once -= 1
        return self.keys.get(access_key_id)

    async def put_access_key(self, key: AccessKey) -> None:
        self.keys[key.access_key_id] = key

    async def list_access_keys(self, account: str) -> list[AccessKey]:
        return [key for key in self.keys.values() if key.account == account]

    async def get_tenant(self, account: str) -> Tenant | None:
        return None

    async def put_tenant(self, tenant: Tenant) -> None: ...


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def credentials(store: Store, clock: Clock) -> Credentials:
    return Credentials(store, clock=clock, known_limit=3, unknown_limit=3, lookups_limit=2)


@pytest.fixture
def key(store: Store) -> AccessKey:
    key = new_access_key(ACCOUNT)
    store.keys[key.access_key_id] = key
    return key


async def test_a_key_is_looked_up_once(credentials: Credentials, store: Store, key: AccessKey) -> None:
    assert credentials.cached(key.access_key_id) is None
    assert await credentials.find(key.access_key_id) == key
    assert credentials.cached(key.access_key_id) == key
    assert await credentials.find(key.access_key_id) == key
    assert store.asked == [key.access_key_id]


async def test_a_key_made_inactive_elsewhere_is_noticed_in_time(
    credentials: Credentials, store: Store, clock: Clock, key: AccessKey
) -> None:
    await credentials.find(key.access_key_id)
    store.keys[key.access_key_id] = inactive = msgspec.structs.replace(key, active=False)
    clock.now += 59
    assert credentials.cached(key.access_key_id) == key
    clock.now += 1
    assert credentials.cached(key.access_key_id) is None
    assert await credentials.find(key.access_key_id) == inactive
    assert credentials.cached(key.access_key_id) == inactive


async def test_a_key_removed_elsewhere_is_noticed_in_time(
    credentials: Credentials, store: Store, clock: Clock, key: AccessKey
) -> None:
    await credentials.find(key.access_key_id)
    del store.keys[key.access_key_id]
    clock.now += 60
    assert await credentials.find(key.access_key_id) is None
    assert credentials.cached(key.access_key_id) is None


async def test_a_key_that_is_put_is_seen_at_once(credentials: Credentials, clock: Clock) -> None:
    key = new_access_key(ACCOUNT)
    assert await credentials.find(key.access_key_id) is None
    await credentials.put(key)
    assert credentials.cached(key.access_key_id) == key
    clock.now += 60
    assert await credentials.find(key.access_key_id) == key


async def test_an_unknown_id_is_remembered_for_a_while(credentials: Credentials, store: Store, clock: Clock) -> None:
    unknown = "AKIAUNKNOWN000000000"
    for _ in range(10):
        assert await credentials.find(unknown) is None
    assert len(store.asked) == 1
    clock.now += 5
    assert await credentials.find(unknown) is None
    assert len(store.asked) == 2


async def test_only_so_many_unknown_ids_are_remembered(credentials: Credentials) -> None:
    for number in range(10):
        await credentials.find(f"AKIAUNKNOWN{number:09}")
    assert len(credentials._unknown) == 3


async def test_only_so_many_keys_are_remembered(credentials: Credentials, store: Store) -> None:
    for _ in range(10):
        key = new_access_key(ACCOUNT)
        store.keys[key.access_key_id] = key
        await credentials.find(key.access_key_id)
    assert len(credentials._known) == 3
    assert credentials.cached(key.access_key_id) == key


@pytest.mark.parametrize(
    "malformed", ["", "short", "x" * 129, "AKIA/UNKNOWN/00000", "AKIAÜNKNOWN00000000", "A" * 16 + "\n"]
)
async def test_an_id_that_no_store_gives_out_is_not_looked_up(
    credentials: Credentials, store: Store, malformed: str
) -> None:
    assert await credentials.find(malformed) is None
    assert store.asked == []


async def test_strangers_cannot_flood_the_store(credentials: Credentials, store: Store) -> None:
    store.gate.clear()
    twins = [asyncio.ensure_future(credentials.find("AKIAUNKNOWN000000000")) for _ in range(5)]
    others = [asyncio.ensure_future(credentials.find(f"AKIAUNKNOWN{number:09}")) for number in range(1, 9)]
    while store.at_once < 2:
        await asyncio.sleep(0)
    store.gate.set()
    assert set(await asyncio.gather(*twins, *others)) == {None}
    assert store.asked.count("AKIAUNKNOWN000000000") == 1
    assert store.most_at_once == 2
    assert credentials._under_way == {}


async def test_a_caller_that_leaves_does_not_take_its_twin_along(
    credentials: Credentials, store: Store, key: AccessKey
) -> None:
    store.gate.clear()
    first, twin = (asyncio.ensure_future(credentials.find(key.access_key_id)) for _ in range(2))
    while not store.asked:
        await asyncio.sleep(0)
    first.cancel()
    store.gate.set()
    assert await twin == key


async def test_what_the_store_raises_is_raised_and_not_remembered(credentials: Credentials, key: AccessKey) -> None:
    class Down(Exception):
        pass

    async def down(access_key_id: str) -> AccessKey | None:
        raise Down

    credentials._store.get_access_key = down  # type: ignore[method-assign]
    with pytest.raises(Down):
        await credentials.find(key.access_key_id)
    del credentials._store.get_access_key
    assert await credentials.find(key.access_key_id) == key


def test_the_secret_is_in_no_repr() -> None:
    key = new_access_key(ACCOUNT)
    assert key.secret not in repr(key)
    assert key.secret not in f"{[key]} {key!s}"


def test_new_keys_differ_and_are_valid() -> None:
    keys = [new_access_key(ACCOUNT) for _ in range(50)]
    assert len({key.access_key_id for key in keys}) == len({key.secret for key in keys}) == 50
    for key in keys:
        check_access_key(key.access_key_id, key.secret)
        assert len(key.secret) == 40


def test_checks() -> None:
    assert check_account(ACCOUNT) == ACCOUNT
    for wrong in ["", "1", "0000000000000", "00000000000a", "٠" * 12]:
        with pytest.raises(ValueError, match="12 digits"):
            check_account(wrong)
    with pytest.raises(ValueError, match="access key id"):
        check_access_key("short", "s" * 40)
    for secret in ["short", "with a space in it", "s" * 129, "tab\tinside"]:
        with pytest.raises(ValueError, match="secret access key") as raised:
            check_access_key("AKIAEXAMPLE000000000", secret)
        assert secret not in str(raised.value)

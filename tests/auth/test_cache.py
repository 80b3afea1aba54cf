"""The cache through which requests see keys."""

import asyncio

import pytest

from auth.cache import Cache
from tests.auth.clock import Clock
from tests.servers.waiting import until


class Store:
    """Values by id; counts lookups, and blocks them while ``gate`` is closed."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {"known": "value"}
        self.asked: list[str] = []
        self.at_once = 0
        self.concurrent_max = 0
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def look_up(self, key_id: str) -> str | None:
        self.asked.append(key_id)
        self.at_once += 1
        self.concurrent_max = max(self.concurrent_max, self.at_once)
        value = self.values.get(key_id)
        await self.gate.wait()
        self.at_once -= 1
        if self.error is not None:
            raise self.error
        return value


class Down(Exception):
    pass


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def cache(store: Store, clock: Clock) -> Cache[str]:
    return Cache(store.look_up, name="tests", clock=clock, known_limit=3, unknown_limit=3, lookups_limit=2)


async def settled(cache: Cache[str]) -> None:
    await until(lambda: not cache._under_way)


async def test_a_value_is_looked_up_once(cache: Cache[str], store: Store) -> None:
    assert cache.cached("known") is None
    assert await cache.find("known") == "value"
    assert cache.cached("known") == "value"
    assert await cache.find("known") == "value"
    assert store.asked == ["known"]


async def test_a_value_in_use_is_refreshed_ahead_without_waiting(cache: Cache[str], store: Store, clock: Clock) -> None:
    await cache.find("known")
    for step in range(1, 10):
        store.values["known"] = f"value {step}"
        clock.now += 0.6
        assert cache.cached("known") == (f"value {step - 1}" if step > 1 else "value")
        assert cache.cached("known") is not None  # concurrent callers share the lookup
        await settled(cache)
        assert cache.cached("known") == f"value {step}"
    assert store.asked == ["known"] * 10


async def test_no_value_is_older_than_a_second(cache: Cache[str], store: Store, clock: Clock) -> None:
    await cache.find("known")
    store.values["known"] = "changed"
    clock.now += 0.999
    store.gate.clear()
    assert cache.cached("known") == "value"
    clock.now += 0.001
    assert cache.cached("known") is None
    waiting = asyncio.ensure_future(cache.find("known"))
    store.gate.set()
    assert await waiting == "changed"


async def test_the_age_counts_from_before_the_look_up(cache: Cache[str], store: Store, clock: Clock) -> None:
    store.gate.clear()
    finding = asyncio.ensure_future(cache.find("known"))
    await until(lambda: store.asked)
    clock.now += 1
    store.gate.set()
    assert await finding == "value"
    assert cache.cached("known") is None


async def test_a_value_removed_by_another_process_disappears(cache: Cache[str], store: Store, clock: Clock) -> None:
    await cache.find("known")
    del store.values["known"]
    clock.now += 0.6
    assert cache.cached("known") == "value"
    await settled(cache)
    assert cache.cached("known") is None
    assert await cache.find("known") is None


async def test_a_change_here_is_seen_at_once(cache: Cache[str], store: Store) -> None:
    await cache.find("known")
    assert await cache.find("new") is None
    store.values.update(known="changed", new="there")
    cache.forget("known")
    cache.forget("new")
    assert cache.cached("known") is None
    assert await cache.find("known") == "changed"
    assert await cache.find("new") == "there"
    store.values["known"] = "again"
    cache.forget_all(lambda value: value == "changed")
    assert cache.cached("new") == "there"
    assert await cache.find("known") == "again"


async def test_a_look_up_that_a_change_overtook_is_made_again(cache: Cache[str], store: Store) -> None:
    store.gate.clear()
    finding = asyncio.ensure_future(cache.find("known"))
    await until(lambda: store.asked)
    store.values["known"] = "changed"  # after the lookup has read
    cache.forget("known")
    store.gate.set()
    assert await finding == "changed"
    assert cache.cached("known") == "changed"


async def test_an_unknown_id_is_remembered_for_a_while(cache: Cache[str], store: Store, clock: Clock) -> None:
    for _ in range(10):
        assert await cache.find("unknown") is None
    assert len(store.asked) == 1
    clock.now += 0.9
    assert await cache.find("unknown") is None
    assert len(store.asked) == 1
    clock.now += 0.1
    assert await cache.find("unknown") is None
    assert len(store.asked) == 2


async def test_only_so_much_is_remembered(cache: Cache[str], store: Store) -> None:
    for number in range(10):
        store.values[f"k{number}"] = "value"
        await cache.find(f"k{number}")
        await cache.find(f"u{number}")
    assert len(cache._known) == len(cache._unknown) == 3
    assert cache.cached("k9") == "value"


async def test_strangers_cannot_flood_the_store(cache: Cache[str], store: Store) -> None:
    store.gate.clear()
    twins = [asyncio.ensure_future(cache.find("unknown")) for _ in range(5)]
    others = [asyncio.ensure_future(cache.find(f"unknown {number}")) for number in range(1, 9)]
    await until(lambda: store.at_once >= 2)
    store.gate.set()
    assert set(await asyncio.gather(*twins, *others)) == {None}
    assert store.asked.count("unknown") == 1
    assert store.concurrent_max == 2
    assert cache._under_way == {}


async def test_a_caller_that_leaves_does_not_take_its_twin_along(cache: Cache[str], store: Store) -> None:
    store.gate.clear()
    first, twin = (asyncio.ensure_future(cache.find("known")) for _ in range(2))
    await until(lambda: store.asked)
    first.cancel()
    store.gate.set()
    assert await twin == "value"


async def test_errors_of_the_store_are_raised_and_not_cached(cache: Cache[str], store: Store) -> None:
    store.error = Down()
    with pytest.raises(Down):
        await cache.find("known")
    store.error = None
    assert await cache.find("known") == "value"


async def test_a_store_that_fails_during_a_refresh_is_retried(cache: Cache[str], store: Store, clock: Clock) -> None:
    await cache.find("known")
    store.error = Down()
    clock.now += 0.6
    assert cache.cached("known") == "value"
    await settled(cache)
    assert cache.cached("known") == "value"
    await settled(cache)
    assert len(store.asked) == 3
    clock.now += 0.4
    with pytest.raises(Down):
        await cache.find("known")

"""Leaky buckets for users of the limits library: its storages, items and other strategies keep working."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import limits
import pytest
from hypothesis import given
from hypothesis import strategies as st
from limits.storage import MemcachedStorage, MemoryStorage, storage_from_string
from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter, SlidingWindowCounterRateLimiter

from ratelimit.strategy import LeakyBucketItem, LeakyBucketRateLimiter
from tests.auth.clock import Clock
from tests.servers.redis_server import RedisServer

SLOW = LeakyBucketItem(1, 1_000, burst=5)
"""A limit that does not drain within a test."""


@pytest.fixture(params=["memory", "redis"])
def storage(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "memory":
        yield storage_from_string("memory://")
    else:
        server: RedisServer = request.getfixturevalue("redis_server")
        made: Any = storage_from_string(server.url.replace("unix://", "redis+unix://"))
        yield made
        made.storage.close()


def hits(limiter: Any, item: limits.RateLimitItem, *identifiers: str, calls: int = 20, cost: int = 1) -> int:
    return sum(limiter.hit(item, *identifiers, cost=cost) for _ in range(calls))


def test_a_burst_and_no_more(storage: Any) -> None:
    limiter = LeakyBucketRateLimiter(storage)
    assert hits(limiter, SLOW, "a") == 5
    assert hits(limiter, SLOW, "b") == 5


def test_looking_takes_nothing(storage: Any) -> None:
    limiter = LeakyBucketRateLimiter(storage)
    assert all(limiter.test(SLOW, "a") for _ in range(20))
    assert limiter.test(SLOW, "a", cost=5)
    assert not limiter.test(SLOW, "a", cost=6)
    assert hits(limiter, SLOW, "a") == 5
    assert not limiter.test(SLOW, "a")


def test_a_refused_hit_takes_nothing(storage: Any) -> None:
    limiter = LeakyBucketRateLimiter(storage)
    assert hits(limiter, SLOW, "a", cost=3) == 1
    assert hits(limiter, SLOW, "a", cost=6) == 0
    assert hits(limiter, SLOW, "a", cost=2) == 1


def test_the_statistics(storage: Any) -> None:
    now = 0.0
    limiter = LeakyBucketRateLimiter(storage)
    stats = limiter.get_window_stats(SLOW, "a")
    assert stats.remaining == 5
    now = stats.reset_time
    limiter.hit(SLOW, "a", cost=2)
    stats = limiter.get_window_stats(SLOW, "a")
    assert stats.remaining == 3
    assert 1_990 < stats.reset_time - now < 2_100


def test_clearing_one_and_all(storage: Any) -> None:
    limiter = LeakyBucketRateLimiter(storage)
    for name in ("a", "b"):
        assert hits(limiter, SLOW, name) == 5
    limiter.clear(SLOW, "a")
    assert hits(limiter, SLOW, "a") == 5
    assert hits(limiter, SLOW, "b") == 0
    storage.reset()
    assert hits(limiter, SLOW, "b") == 5


def test_items_of_the_library_will_do(storage: Any) -> None:
    limiter = LeakyBucketRateLimiter(storage)
    assert hits(limiter, limits.parse("5 per hour"), "a") == 5


def test_the_other_strategies_go_on_with_the_same_storage_and_item(storage: Any) -> None:
    item = limits.parse("3 per hour")
    for strategy in (
        LeakyBucketRateLimiter,
        FixedWindowRateLimiter,
        MovingWindowRateLimiter,
        SlidingWindowCounterRateLimiter,
    ):
        assert hits(strategy(storage), item, strategy.__name__) == 3
    shared = LeakyBucketRateLimiter(storage)
    assert hits(shared, item, "same") == 3
    assert hits(FixedWindowRateLimiter(storage), item, "same") == 3
    assert hits(shared, item, "same") == 0


def test_a_drained_bucket_expires_in_redis(redis_server: RedisServer) -> None:
    storage: Any = storage_from_string(redis_server.url.replace("unix://", "redis+unix://"))
    LeakyBucketRateLimiter(storage).hit(SLOW, "a", cost=2)
    with redis_server.client as client:
        (key,) = client.keys()
        assert 1_900_000 < client.pttl(key) <= 2_000_001
    storage.storage.close()


def test_a_storage_that_cannot_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="MemcachedStorage"):
        LeakyBucketRateLimiter(MemcachedStorage.__new__(MemcachedStorage))


def test_a_burst_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        LeakyBucketItem(5, burst=0)


# --- virtual time ------------------------------------------------------------------------------------------


def made(clock: Callable[[], float]) -> tuple[LeakyBucketRateLimiter, MemoryStorage]:
    storage = MemoryStorage()
    return LeakyBucketRateLimiter(storage, clock), storage


@given(
    st.integers(1, 1_000), st.integers(1, 100), st.lists(st.tuples(st.floats(0, 3), st.integers(1, 30)), max_size=20)
)
def test_no_stretch_of_time_lets_more_through(amount: int, burst: int, steps: Sequence[tuple[float, int]]) -> None:
    clock = Clock(1_800_000_000.0)
    limiter, _ = made(clock)
    item = LeakyBucketItem(amount, 7, burst=burst)
    passed = []
    for pause, calls in steps:
        clock.now += pause
        passed.append((clock.now, hits(limiter, item, "a", calls=calls)))
    for i, (begin, _) in enumerate(passed):
        total = 0
        for end, count in passed[i:]:
            total += count
            assert total <= burst + amount / 7 * (end - begin) + 1e-2


@given(st.integers(1, 1_000), st.integers(1, 3), st.lists(st.floats(1.0001, 3), min_size=1, max_size=100))
def test_calls_below_the_rate_are_never_refused(amount: int, burst: int, pauses: Sequence[float]) -> None:
    clock = Clock(1_800_000_000.0)
    limiter, _ = made(clock)
    item = LeakyBucketItem(amount, 7, burst=burst)
    for pause in pauses:
        assert limiter.hit(item, "a")
        clock.now += pause * 7 / amount


def test_a_drained_bucket_is_dropped_from_memory() -> None:
    clock = Clock(1_800_000_000.0)
    limiter, storage = made(clock)
    item = LeakyBucketItem(1)
    for i in range(5_000):
        assert limiter.hit(item, str(i))
        clock.now += 0.1
    assert len(storage.storage) < 1_100

"""Limits shared through a real Redis: their accuracy, and their effect without it."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from ratelimit.address import check_redis, check_url, shown
from ratelimit.meter import BucketMeter
from ratelimit.shared import LEASE_SECONDS, SharedLimiter
from tests.servers.callers import share
from tests.servers.redis_server import RedisServer
from tests.servers.waiting import until

SLOW = 0.001
"""Rate at which nothing drains within a test."""


@asynccontextmanager
async def sharing(url: str, count: int = 1, **options: Any) -> AsyncIterator[list[SharedLimiter]]:
    options = {"heartbeat_seconds": 0.2, "probe_seconds": 0.05} | options
    limiters = [SharedLimiter(url, **options) for _ in range(count)]
    try:
        for limiter in limiters:
            await limiter.start()
        yield limiters
    finally:
        for limiter in limiters:
            await limiter.close()


async def admitted(limiter: SharedLimiter, *keys: tuple[str, float, float], calls: int = 50) -> int:
    meters = [limiter.meter(*key) for key in keys]
    return sum([await limiter.admit(meters) == 0 for _ in range(calls)])


# --- sharing -----------------------------------------------------------------------------------------------


async def test_two_processes_have_one_burst(redis_server: RedisServer) -> None:
    async with sharing(redis_server.url, 2) as (one, other):
        assert await admitted(one, ("a", SLOW, 10), calls=4) == 4
        assert await admitted(other, ("a", SLOW, 10)) == 6
        assert await admitted(one, ("a", SLOW, 10)) == 0
        assert await admitted(one, ("b", SLOW, 10)) == 10


async def test_a_refused_call_drains_no_other_bucket(redis_server: RedisServer) -> None:
    async with sharing(redis_server.url, 2) as (one, other):
        assert await admitted(one, ("wide", SLOW, 10), ("narrow", SLOW, 2)) == 2
        assert await admitted(other, ("wide", SLOW, 10)) == 8


async def test_a_refusal_has_the_time_to_retry_and_costs_no_round_trip(redis_server: RedisServer) -> None:
    async with sharing(redis_server.url) as (limiter,):
        meters = [limiter.meter("a", SLOW, 1)]
        assert await limiter.admit(meters) == 0
        assert await limiter.admit(meters) == pytest.approx(1 / SLOW, rel=0.01)
        wait = limiter.admit_now(meters)
        assert wait is not None
        assert wait == pytest.approx(1 / SLOW, rel=0.01)


async def test_calls_at_the_same_time_wait_for_one_draw(redis_server: RedisServer) -> None:
    async with sharing(redis_server.url) as (limiter,):
        meters = [limiter.meter("a", SLOW, 30)]
        with redis_server.client as client:
            client.config_resetstat()
            answers = await asyncio.gather(*(limiter.admit(meters) for _ in range(100)))
            draws: Any = client.info("commandstats")
        assert sum(answer == 0 for answer in answers) == 30
        assert draws["cmdstat_evalsha"]["calls"] <= 5


async def test_at_a_high_rate_most_calls_need_no_round_trip(redis_server: RedisServer) -> None:
    async with sharing(redis_server.url) as (limiter,):
        meters = [limiter.meter("a", 100_000, 100_000)]
        asked = 0
        for _ in range(20_000):
            if limiter.admit_now(meters) is None:
                asked += 1
                assert await limiter.admit(meters) == 0
        assert asked < 200


async def test_the_unused_part_of_a_lease_is_returned(redis_server: RedisServer) -> None:
    now, lease_seconds = 0.0, 1e6
    async with sharing(redis_server.url, clock=lambda: now, lease_seconds=lease_seconds) as (limiter,):
        meter = limiter.meter("a", SLOW, 40)
        with redis_server.client as client:

            def charged() -> float:
                return float(client.hget("holdfast:a", "level") or 0)

            for _ in range(5):  # each lease is larger than the one before
                assert await limiter.admit([meter]) == 0
            left = meter.burst - meter.level
            assert left > 1
            assert charged() == pytest.approx(5 + left, abs=0.01)
            now += 2 * lease_seconds
            assert await limiter.admit([meter]) == 0
            assert charged() == pytest.approx(6 + meter.burst - meter.level, abs=0.01)


async def test_every_token_is_charged_once_also_those_drawn_ahead(redis_server: RedisServer) -> None:
    async with sharing(redis_server.url, lease_seconds=1e6) as (limiter,):
        meter = limiter.meter("a", SLOW, 1_000)
        for _ in range(450):
            assert await limiter.admit([meter]) == 0
            await asyncio.sleep(0)
        await until(lambda: meter.flight is None)
        with redis_server.client as client:
            charged = float(client.hget("holdfast:a", "level") or 0)
        assert charged == pytest.approx(450 + meter.burst - meter.level, abs=0.1)


async def test_unused_keys_expire_in_redis(redis_server: RedisServer) -> None:
    async with sharing(redis_server.url) as (limiter,):
        assert await admitted(limiter, ("a", 50, 10), calls=3) == 3
        with redis_server.client as client:
            await until(lambda: client.exists("holdfast:a") == 0)
    with redis_server.client as client:
        await until(lambda: client.dbsize() == 0)


def test_three_real_processes_keep_one_rate(redis_server: RedisServer) -> None:
    """Within 5% over ten seconds, though each tries to use all of it."""
    rate, burst, processes, seconds = 400.0, 200.0, 3, 10.0
    shared = share(redis_server.url, rate, burst, processes, seconds)
    total = sum(shared.passed)
    assert total <= burst + rate * shared.seconds + processes * rate * LEASE_SECONDS
    assert shared.rate(burst) == pytest.approx(rate, rel=0.05), shared
    assert min(shared.passed) > total / processes / 4, "one process had next to nothing"


# --- without Redis -----------------------------------------------------------------------------------------


async def test_without_redis_each_process_has_its_share(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with sharing(redis_server.url, 3) as limiters:
        await until(lambda: all(limiter.processes == 3 for limiter in limiters))
        assert await admitted(limiters[0], ("a", SLOW, 30), calls=5) == 5
        redis_server.kill()
        with caplog.at_level(logging.WARNING, "holdfast.limits"):
            for limiter in limiters:
                assert await admitted(limiter, ("a", SLOW, 30)) == 10
                assert await admitted(limiter, ("b", SLOW, 30)) == 10
                meters = [limiter.meter("a", SLOW, 30)]
                assert limiter.admit_now(meters) == pytest.approx(3 / SLOW, rel=0.01)
            assert len(caplog.records) == 3
            assert "admits 1/3 of each limit" in caplog.text
            redis_server.start()
            await until(lambda: all(limiter.up for limiter in limiters))
            assert len(caplog.records) == 6
            assert caplog.text.count("answers again") == 3
        total = sum([await admitted(limiter, ("a", SLOW, 30)) for limiter in limiters])
        assert total == 30


async def test_a_repeated_outage_gives_no_further_burst(redis_server: RedisServer) -> None:
    async with sharing(redis_server.url, processes=1) as (limiter,):
        for expected in (10, 0):
            redis_server.kill()
            await until(lambda: not limiter.up)
            assert await admitted(limiter, ("a", SLOW, 10)) == expected
            redis_server.start()
            await until(lambda: limiter.up)


async def test_a_redis_that_hangs_holds_one_call_up_for_a_moment_only(redis_server: RedisServer) -> None:
    async with sharing(redis_server.url, heartbeat_seconds=1_000) as (limiter,):
        meters: Sequence[Any] = [limiter.meter("a", 1, 10)]
        assert await limiter.admit(meters) == 0
        redis_server.stall(60)
        asked = 0
        started_at = time.monotonic()
        while limiter.up:
            asked += limiter.admit_now(meters) is None
            assert await limiter.admit(meters) == 0
        assert asked == 1
        assert time.monotonic() - started_at < 20
        assert limiter.admit_now(meters) == 0


async def test_a_process_that_starts_without_redis_takes_the_setting_for_its_share(redis_server: RedisServer) -> None:
    redis_server.kill()
    async with sharing(redis_server.url, processes=5) as (limiter,):
        assert not limiter.up
        assert await admitted(limiter, ("a", SLOW, 30)) == 6
        redis_server.start()
        await until(lambda: limiter.up)
        assert await admitted(limiter, ("a", SLOW, 30)) == 30


async def test_a_flushed_redis_gives_one_burst_more_and_keeps_all_processes(redis_server: RedisServer) -> None:
    async with sharing(redis_server.url, 3, heartbeat_seconds=60) as limiters:
        assert [limiter.processes for limiter in limiters] == [1, 2, 3]
        for _ in range(2):
            total = sum([await admitted(limiter, ("a", SLOW, 30)) for limiter in limiters])
            assert total == 30
            redis_server.flush()
            for limiter in limiters:  # with Redis they also forget how long they were refused
                limiter.meter("a", SLOW, 30).refused_until = 0
        assert limiters[2].up
        await limiters[2]._beat()  # it finds itself alone
        redis_server.kill()
        assert await admitted(limiters[2], ("a", SLOW, 30)) == 10


async def test_processes_that_left_or_died_no_longer_share(redis_server: RedisServer) -> None:
    async with sharing(redis_server.url, 3, heartbeat_seconds=0.1) as (one, other, third):
        await until(lambda: one.processes == 3)
        await other.close()
        third._closing = True  # like a kill: its heartbeats stop without a farewell
        third._heart.cancel()  # type: ignore[union-attr]
        await until(lambda: one.processes == 1)


# --- addresses ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["memory://", "redis://h:1", "redis://h", "redis://:pw@h:1/2", "rediss://u:p@h:1", "unix:///run/redis.sock"]
)
def test_addresses(url: str) -> None:
    assert check_url(url) == url
    if url != "memory://":
        SharedLimiter(url)


@pytest.mark.parametrize(
    "url",
    ["", "memory", "redis", "redis://", "redis://h:0", "redis://h:x", "redis://h/db", "unix://path", "http://h:1"],
)
def test_an_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="redis://host:port/database"):
        check_url(url)


def test_a_password_is_not_shown() -> None:
    assert shown("redis://user:secret@host:1/0") == "redis://host:1/0"
    with pytest.raises(ValueError, match="not at 'redis://host:x'"):
        check_url("redis://user:secret@host:x")
    slips = (
        "redis//:secret@host",
        "redis:/:secret@h",
        "u:secret@redis://h",
        "redis://:secret",
        "redis://:a[secret]@h:1",
    )
    for url in slips:
        for check in (check_url, check_redis):
            with pytest.raises(ValueError, match="redis://host:port/database") as caught:
                check(url)
            assert "secret" not in str(caught.value)


def test_a_lease_is_no_more_than_a_part_of_the_burst() -> None:
    limiter = SharedLimiter("redis://localhost")
    assert limiter.meter("few a second", 10, 10).lease_max == 1
    assert limiter.meter("small burst", 10_000, 10).lease_max == 5
    assert limiter.meter("many", 10_000, 10_000).lease_max == 10_000 * LEASE_SECONDS
    assert isinstance(limiter.meter("many", 1, 1), BucketMeter)


async def test_closing_ends_also_when_the_client_swallows_the_cancellation(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter = SharedLimiter(redis_server.url, heartbeat_seconds=0.01)
    beating = asyncio.Event()

    async def deaf() -> None:
        beating.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    await limiter.start()
    monkeypatch.setattr(limiter, "_beat", deaf)
    await beating.wait()
    await asyncio.wait_for(limiter.close(), 10)

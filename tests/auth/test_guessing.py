"""Guessing of keys: counted, slowed, logged once, in bounded memory."""

import asyncio
import logging

import pytest

from auth import guessing
from auth.guessing import ALLOWED, DELAY_SECONDS_MAX, LEAK_PER_SECOND, Guesses
from tests.auth.clock import Clock

WRONG = "SignatureDoesNotMatch"


@pytest.fixture
def guesses(clock: Clock) -> Guesses:
    return Guesses(clock=clock)


def test_a_few_failures_cost_nothing_and_many_cost_more_and_more(guesses: Guesses) -> None:
    delays = [guesses.delay(WRONG, "192.0.2.1", f"key-{number}") for number in range(3 * ALLOWED)]
    assert delays[:ALLOWED] == [0.0] * ALLOWED
    assert 0 < delays[ALLOWED] < delays[ALLOWED + 1] < delays[-1] == DELAY_SECONDS_MAX
    assert guesses.delay(WRONG, "192.0.2.2", "another") == 0.0


def test_one_key_id_from_many_addresses_counts_as_well(guesses: Guesses) -> None:
    delays = [guesses.delay("InvalidClientTokenId", f"192.0.2.{number}", "AKIA") for number in range(2 * ALLOWED)]
    assert delays[ALLOWED - 1] == 0 < delays[ALLOWED]


def test_addresses_of_one_ipv6_network_are_one(guesses: Guesses) -> None:
    delays = [guesses.delay(WRONG, f"2001:db8::{number:x}", f"key-{number}") for number in range(2 * ALLOWED)]
    assert delays[-1] > 0
    assert guesses.delay(WRONG, "2001:db8:1::1", "another") == 0.0


def test_failures_leak_away(guesses: Guesses, clock: Clock) -> None:
    for _ in range(2 * ALLOWED):
        guesses.delay(WRONG, "192.0.2.1", "AKIA")
    assert guesses.delay(WRONG, "192.0.2.1", "AKIA") > 0
    clock.now += (ALLOWED + 2) / LEAK_PER_SECOND
    assert guesses.delay(WRONG, "192.0.2.1", "AKIA") == 0


@pytest.mark.parametrize("code", ["ExpiredToken", "OptInRequired", "MissingAuthenticationToken", "RequestExpired"])
def test_failures_that_are_no_guesses_do_not_count(guesses: Guesses, code: str) -> None:
    assert {guesses.delay(code, "192.0.2.1", "AKIA") for _ in range(3 * ALLOWED)} == {0.0}


def test_a_burst_is_reported_once(guesses: Guesses, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        with caplog.at_level(logging.WARNING, "holdfast.auth"):
            for _ in range(5 * ALLOWED):
                guesses.delay(WRONG, "192.0.2.1", "AKIA\nforged line")
                clock.now += 0.1
        (record,) = caplog.records
        assert "192.0.2.1" in record.getMessage()
        assert "\n" not in record.getMessage()
        caplog.clear()
        clock.now += 1_000


def test_memory_is_bounded(guesses: Guesses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guessing, "COUNTED_MAX", 10)
    for number in range(100):
        guesses.delay(WRONG, f"192.0.2.{number}", "k" * 10_000 + str(number))
    assert len(guesses._counts) == 10
    assert max(map(len, guesses._counts)) < 200


async def test_only_so_many_answers_wait(guesses: Guesses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guessing, "WAITING_MAX", 2)
    waiting = [asyncio.ensure_future(guesses.wait(60)) for _ in range(2)]
    await asyncio.sleep(0)
    assert await guesses.wait(60) is False
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert await guesses.wait(0) is True

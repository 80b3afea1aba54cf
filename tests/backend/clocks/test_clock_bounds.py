"""Clocks that are provably apart, and clocks that only seem so."""

import random

from backend.clocks.clock_bounds import OBSERVATIONS, ClockBounds
from metadata_service.models import Heartbeat

OTHERS = [2, 3]


def watched(
    offsets: dict[int, int], *, stored_ms: tuple[int, int], read_ms: tuple[int, int], seconds: int, seed: int = 1
) -> list[int]:
    """Return reports, check by check, for nodes with these clock offsets and durations of writes and reads."""
    chance = random.Random(seed)
    stored: dict[int, list[tuple[int, Heartbeat]]] = {}
    for log_id, offset in offsets.items():
        at, count = chance.randrange(1000), 0
        beats: list[tuple[int, Heartbeat]] = []
        while at < seconds * 1000:
            count += 1
            takes = chance.randint(*stored_ms)
            # A write becomes visible at some moment between its start and its end.
            beats.append((at + chance.randint(0, takes), Heartbeat(f"n{log_id}", log_id, 1, count, at + offset)))
            at += takes + 1000
        stored[log_id] = beats
    bounds, found, at = ClockBounds(), [], 0
    while at < seconds * 1000:
        took = chance.randint(*read_ms)
        seen_at = at + chance.randint(0, took)
        seen = [[beat for when, beat in one if when <= seen_at] for one in stored.values()]
        bounds.add([one[-1] for one in seen if one], at, at + took)
        found.append(bounds.ahead_ms(OTHERS))
        at += took + 500
    return found


def test_clocks_of_one_machine_are_never_apart_however_slow_the_metadata_are() -> None:
    """At a cluster's start, storing a heartbeat may take five seconds, and a read three."""
    for seed in range(50):
        assert not any(watched({2: 0, 3: 0}, stored_ms=(0, 5000), read_ms=(0, 3000), seconds=120, seed=seed))


def test_clocks_that_are_apart_are_proved_to_be() -> None:
    for offset in (-3_600_000, -4_000, 4_000, 3_600_000):
        found = watched({2: offset, 3: offset}, stored_ms=(5, 50), read_ms=(5, 50), seconds=30)
        assert abs(found[-1] - offset) < 1700
        assert all(abs(one) <= abs(offset) for one in found), "it is never said to be more"
        slow = watched({2: offset, 3: offset}, stored_ms=(0, 5000), read_ms=(0, 3000), seconds=120)
        assert all(0 <= one * (1 if offset > 0 else -1) <= abs(offset) for one in slow)


def test_the_lower_median_of_the_clocks_counts() -> None:
    assert watched({2: 60_000, 3: 0}, stored_ms=(5, 50), read_ms=(5, 50), seconds=30)[-1] == 0
    assert watched({2: 60_000}, stored_ms=(5, 50), read_ms=(5, 50), seconds=30)[-1] == 0


def test_a_clock_that_was_set_right_is_right_after_some_heartbeats() -> None:
    bounds = ClockBounds()
    for count in range(10):
        bounds.add([Heartbeat("b", 2, 1, count, count * 1000 + 60_000)], count * 1000, count * 1000)
    assert bounds.ahead_ms([2, 2]) == 60_000
    for count in range(10, 12 + OBSERVATIONS):
        bounds.add([Heartbeat("b", 2, 1, count, count * 1000)], count * 1000, count * 1000)
    assert bounds.ahead_ms([2, 2]) == 0
    assert bounds.ahead_ms([9]) == 0, "of which nothing is known"

"""The estimate of a batch's remaining time."""

import random
from datetime import date, timedelta

import pytest

from spark_analytics.progress import Estimate, Step

FIRST = date(2026, 11, 1)
MIB = 2**20


def seconds_of(step: Step, read_bytes: int, place: int) -> float:
    """Duration of a step on some machine: Spark is slow with the first, and calls get slower with their bytes."""
    if not read_bytes:
        return 0.05
    start = {0: 8.0, 1: 3.0}.get(place, 0.0)
    name, _ = step
    fixed, per_mib = (1.5, 0.4) if name == "calls" else (0.8, 0.05)
    return start + fixed + per_mib * read_bytes / MIB


def works(chance: random.Random) -> dict[str, dict[Step, int]]:
    days = [FIRST + timedelta(days) for days in range(30)]

    def month(calls: list[int], storage: list[int]) -> dict[Step, int]:
        return {
            (name, day): read_bytes
            for day, *both in zip(days, calls, storage, strict=False)
            for name, read_bytes in zip(("calls", "storage"), both, strict=True)
        }

    return {
        "even": month([50 * MIB] * 30, [2 * MIB] * 30),
        "growing": month([place * 20 * MIB for place in range(30)], [place * MIB for place in range(30)]),
        "shrinking": month([(30 - place) * 20 * MIB for place in range(30)], [MIB] * 30),
        "nothing new in the second half": month([50 * MIB] * 16 + [0] * 14, [2 * MIB] * 16 + [0] * 14),
        "nothing new in the first half": month([0] * 20 + [50 * MIB] * 10, [0] * 20 + [2 * MIB] * 10),
        "no records at first": month([0] * 15 + [80 * MIB] * 15, [0] * 15 + [2 * MIB] * 15),
        "a few large days": month([chance.choice([1, 2, 400]) * MIB for _ in range(30)], [MIB] * 30),
        "five days": month([40 * MIB] * 5, [MIB] * 5),
    }


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", list(works(random.Random(0))))
def test_it_is_right_within_a_factor_of_two_in_the_second_half(kind: str, seed: int) -> None:
    chance = random.Random(seed)
    work = works(chance)[kind]
    took = {}
    for place, (step, read_bytes) in enumerate(work.items()):
        took[step] = seconds_of(step, read_bytes, place) * chance.uniform(0.8, 1.25)
    estimate, total, passed = Estimate(work), sum(took.values()), 0.0
    judged = 0
    for step, seconds in took.items():
        estimate.add(step, seconds)
        passed += seconds
        remaining = total - passed
        if passed >= total / 2 and remaining > max(1, total / 50):  # what is shown is whole seconds
            estimated = estimate.remaining_seconds()
            assert estimated is not None
            assert remaining / 2 <= estimated <= remaining * 2, (step, estimated, remaining)
            judged += 1
    assert judged
    assert estimate.remaining_seconds() is None


def test_before_anything_was_made_it_is_not_known() -> None:
    estimate = Estimate({("calls", FIRST): 0, ("storage", FIRST): 10 * MIB})
    assert estimate.remaining_seconds() is None
    estimate.add(("calls", FIRST), 0.1)
    assert estimate.remaining_seconds() is None

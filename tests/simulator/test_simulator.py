"""The simulator's runs in ``make test``: what must never happen does not, in many seeds.

What they have found so far is in :mod:`tests.simulator.test_found`, each reduced to a case of its own.
"""

import re
from pathlib import Path

import pytest

from tests.runner.long import all_but
from tests.simulator.mutations.tables import ONE_NODE
from tests.simulator.world.world import simulate

SEEDS = 56
STEPS = 2000
ROTTEN_SEEDS = 32
AT_ONCE = 8

CAUGHT_WITHIN = 60
"""Seeds of 1,000 steps in which each mutation has to be noticed."""
NOTICED_SOON = (
    "answer_before_the_sync",
    "transfer_taken_twice",
    "delete_not_journaled",
    "claim_ends_early",
    "length_not_checked",
)
"""Mutations that ``make test`` has: one for durability, transfers, recovery, time and bounds each."""


@pytest.mark.parametrize("first", all_but((1, 9), range(1, SEEDS + 1, AT_ONCE)))
def test_seeds(first: int) -> None:
    for seed in range(first, min(first + AT_ONCE, SEEDS + 1)):
        try:
            simulate(seed, STEPS)
        except Exception as error:
            raise AssertionError(f"seed {seed}: python -m tests.simulator --first {seed} --seeds 1 --trace") from error


@pytest.mark.parametrize("first", all_but((1,), range(1, ROTTEN_SEEDS + 1, AT_ONCE)))
def test_rotten_seeds(first: int) -> None:
    """With bits that flip: each costs no more than it hit, and is said."""
    for seed in range(first, first + AT_ONCE):
        try:
            simulate(seed, STEPS // 2, rot=True)
        except Exception as error:
            raise AssertionError(
                f"seed {seed}: python -m tests.simulator --bit-flips --first {seed} --seeds 1"
            ) from error


def test_same_seed_same_run() -> None:
    """A run is determined by its seed."""
    digests = {simulate(seed, 400).digest for seed in (5, 5, 5)}
    assert len(digests) == 1
    assert simulate(6, 400).digest not in digests


@pytest.mark.parametrize("name", all_but(NOTICED_SOON, ONE_NODE))
def test_mutation_is_caught(name: str) -> None:
    for seed in range(1, CAUGHT_WITHIN + 1):
        with ONE_NODE[name].taken_out():
            try:
                simulate(seed, 1000, rot=ONE_NODE[name].bit_flips)
            except Exception:
                return
    pytest.fail(f"{name} was not noticed in {CAUGHT_WITHIN} seeds")


def test_the_page_lists_the_mutations() -> None:
    page = Path("docs/simulator.md").read_text().split("\n## Mutations\n", 1)[1].split("\n## ", 1)[0]
    assert set(re.findall(r"^\| `([a-z_]+)` \|", page, re.MULTILINE)) == set(ONE_NODE)

"""Runs with streams and groups: what must never happen does not, and without one of its rules it does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.runner.long import all_but
from tests.simulator.mutations.tables import RULES, STREAM_STEPS, STREAMS, noticed_with_streams
from tests.simulator.streams.cluster import StreamClusterWorld
from tests.simulator.streams.world import simulate_streams

SEEDS = 16
CLUSTER_SEEDS = (44, 45, 50, 53)
SHORT_SECONDS = 6.0
"""Virtual time of a cluster's run here."""
CAUGHT_WITHIN = 60
"""Seeds in which each mutation has to be noticed."""
NOTICED_SOON = ("append_answered_early", "bound_before_synced", "repeated_batch_stored", "old_generation_commits")


def _rows() -> dict[str, int]:
    """By mutation: the seed that noticed it, as the page has it."""
    page = Path("docs/simulator.md").read_text().split("## Streams and groups", 1)[1].split("\n## ", 1)[0]
    found = re.findall(r"^\| `([a-z_]+)` \|[^|]*\|[^|]*\| seed (\d+) \|$", page, re.MULTILINE)
    return {name: int(seed) for name, seed in found}


NOTICED = _rows()


@pytest.mark.parametrize("seed", all_but((1,), range(1, SEEDS + 1)))
def test_seeds_of_one_node(seed: int) -> None:
    assert simulate_streams(seed, STREAM_STEPS).counts["read"]


@pytest.mark.parametrize("seed", all_but((53,), CLUSTER_SEEDS))
def test_seeds_of_clusters(seed: int) -> None:
    assert StreamClusterWorld(seed).run(SHORT_SECONDS).counts["read"]


def test_same_seed_same_run() -> None:
    assert len({simulate_streams(seed, 200).digest for seed in (5, 5)}) == 1


@pytest.mark.parametrize("name", all_but(NOTICED_SOON, STREAMS))
def test_a_run_with_streams_notices(name: str) -> None:
    """The page's seed, or else the first one that does."""
    for seed in (NOTICED[name], *range(1, CAUGHT_WITHIN + 1)):
        if noticed_with_streams(name, seed) is not None:
            return
    pytest.fail(f"{name} was not noticed in {CAUGHT_WITHIN} seeds")


def test_the_page_lists_the_mutations_of_streams() -> None:
    assert NOTICED.keys() == STREAMS.keys()
    assert {one.rule for one in STREAMS.values() if one.rule} <= {rule.name for rule in RULES}

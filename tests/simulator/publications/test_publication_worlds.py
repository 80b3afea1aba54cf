"""Runs with publications: what must never happen does not, and without one of its rules it does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.runner.long import all_but
from tests.simulator.mutations.tables import PUBLICATIONS, RULES, STREAM_STEPS, noticed_with_publications
from tests.simulator.publications.cluster import PublicationClusterWorld
from tests.simulator.publications.world import simulate_publications

SEEDS = 24
CLUSTER_SEEDS = (1, 3, 7, 12)
SHORT_SECONDS = 6.0
"""Virtual time of a cluster's run here."""
CAUGHT_WITHIN = 60
"""Seeds in which each mutation has to be noticed."""
NOTICED_SOON = ("transfer_numbers_begin_anew", "publication_dropped_early", "duplicates_delivered")


def _rows() -> dict[str, int]:
    """By mutation: the seed that noticed it, as the page has it."""
    page = Path("docs/simulator.md").read_text().split("## Publications", 1)[1].split("\n## ", 1)[0]
    found = re.findall(r"^\| `([a-z_]+)` \|[^|]*\|[^|]*\| seed (\d+) \|$", page, re.MULTILINE)
    return {name: int(seed) for name, seed in found}


NOTICED = _rows()


@pytest.mark.parametrize("seed", all_but((1, 2), range(1, SEEDS + 1)))
def test_seeds_of_one_node_with_publications(seed: int) -> None:
    assert simulate_publications(seed, STREAM_STEPS).counts["fanned out"]


@pytest.mark.parametrize("seed", all_but((3,), CLUSTER_SEEDS))
def test_seeds_of_clusters_with_publications(seed: int) -> None:
    assert PublicationClusterWorld(seed).run(SHORT_SECONDS).counts["fanned out"]


def test_same_seed_same_publications() -> None:
    assert len({simulate_publications(seed, 200).digest for seed in (5, 5)}) == 1


@pytest.mark.parametrize("name", all_but(NOTICED_SOON, PUBLICATIONS))
def test_a_run_with_publications_notices(name: str) -> None:
    """The page's seed, or else the first one that does."""
    for seed in (NOTICED[name], *range(1, CAUGHT_WITHIN + 1)):
        if noticed_with_publications(name, seed) is not None:
            return
    pytest.fail(f"{name} was not noticed in {CAUGHT_WITHIN} seeds")


def test_the_page_lists_the_mutations_of_publications() -> None:
    assert NOTICED.keys() == PUBLICATIONS.keys()
    assert {one.rule for one in PUBLICATIONS.values() if one.rule} <= {rule.name for rule in RULES}

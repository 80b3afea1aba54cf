"""Rules are missed by ordinary seeds: nothing is chosen for them, and no trouble is aimed at the point.

``python -m tests.simulator --ordinary`` looks for the first seed that notices each.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.runner.long import all_but
from tests.simulator.mutations.focuses import focused
from tests.simulator.mutations.tables import ORDINARY, RULES, SEEDS_MAX, noticed_by, run_ordinary
from tests.simulator.world.cluster import SECONDS

PAGE = Path("docs/simulator.md")


def _rows() -> dict[str, dict[bool, int]]:
    """By mutation: the first seed of one node (False) and of a cluster (True) that noticed, as the page has them."""
    found: dict[str, dict[bool, int]] = {}
    text = PAGE.read_text().split("### Noticed by ordinary seeds", 1)[1].split("\n## ", 1)[0]
    for name, node, cluster in re.findall(r"^\| `([a-z_]+)` \|[^|]*\|[^|]*\|([^|]*)\|([^|]*)\|$", text, re.MULTILINE):
        found[name] = {
            kind: int(seed.strip().removeprefix("seed "))
            for kind, seed in ((False, node), (True, cluster))
            if seed.strip().startswith("seed ")
        }
    return found


NOTICED = _rows()


def test_the_page_has_each_rule() -> None:
    assert NOTICED.keys() == ORDINARY.keys()
    assert {one.rule for one in ORDINARY.values()} <= {rule.name for rule in RULES}
    assert all(NOTICED.values())
    for name, seeds in NOTICED.items():
        assert all(seed <= SEEDS_MAX for seed in seeds.values())
        assert not (False in seeds and "one node" not in ORDINARY[name].runs)
        assert not (True in seeds and "cluster" not in ORDINARY[name].runs)


@pytest.mark.timeout(1200)  # the search among all seeds, if the page's seed notices nothing any more
@pytest.mark.parametrize("name", all_but(["answered_before_it_is_synced", "epoch_stays"], sorted(ORDINARY)))
def test_an_ordinary_seed_notices(name: str) -> None:
    """The page's seed, of one node if that shows it, or else the first one that does."""
    cluster, first = min(NOTICED[name].items())
    for seed in (first, *range(1, SEEDS_MAX + 1)):
        if noticed_by(name, seed, cluster=cluster) is not None:
            return
    pytest.fail(f"{name} was not noticed in {SEEDS_MAX} seeds")


def test_ordinary_runs_of_a_cluster_find_nothing_with_all_rules_in_their_places() -> None:
    assert run_ordinary(1, cluster=True)["sent"]


def test_runs_with_two_focuses_find_nothing_with_all_rules_in_their_places() -> None:
    world, _ = focused(1, 2)
    assert world.run(SECONDS).counts["sent"]

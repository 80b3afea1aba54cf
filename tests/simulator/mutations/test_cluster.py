"""Rules of the journal are needed: taken out of a cluster, each is missed.

Here are those that take few and short runs to be noticed; ``python -m tests.simulator --mutations`` has all.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.runner.long import all_but
from tests.simulator.mutations.tables import CLUSTER, CLUSTER_SECONDS, FOCUSES, ONE_NODE, RULES, run_mutated
from tests.simulator.world.cluster import ClusterWorld

NOTICED_SOON = (
    "answered_before_the_row",
    "answered_out_of_order",
    "zombie_answers",
    "fence_read_too_early",
    "fence_read_of_one_machine",
    "commits_not_awaited",
    "seal_set_again",
    "all_answered_by_a_quorum",
    "weak_rows_written_weaker",
    "taken_twice",
    "mark_raised_too_early",
    "retires_with_messages",
    "served_while_it_is_handed_over",
    "taken_without_an_entry",
    "candidates_after_the_entries",
    "entries_read_as_they_were",
    "live_segment_dropped",
    "rows_live_for_a_while",
    "held_logs_answer",
    "held_segments_dropped",
    "swept_logs_do_not_say_so",
    "deletions_not_kept",
    "leftovers_not_collected",
)
RUNS_MAX = 24


@pytest.mark.parametrize("name", all_but(NOTICED_SOON[:4], NOTICED_SOON))
def test_rule_is_missed(name: str) -> None:
    assert any(run_mutated(name, seed) is not None for seed in range(1, RUNS_MAX + 1))


@pytest.mark.parametrize("name", ["fence_read_of_one_machine", "answered_out_of_order"])
def test_the_same_faults_have_no_effect_with_the_rule_in_place(name: str) -> None:
    assert run_mutated(name, 1, taken_out=False) is None


@pytest.mark.long
def test_a_focus_has_no_effect_in_another_scenario_than_its_mutations() -> None:
    """The model once alarmed: a purge, a moving message and a repeated FIFO send."""
    world = ClusterWorld(2, local=False, scenario="usual", focus=FOCUSES["dying_sources"].apply)
    assert world.run(CLUSTER_SECONDS).counts["sent"]


def test_each_rule_has_mutations_or_a_reason() -> None:
    mutated = {one.rule for one in (*CLUSTER.values(), *ONE_NODE.values()) if one.rule}
    for rule in RULES:
        assert rule.name in mutated or rule.why_not, rule.name
    assert mutated <= {rule.name for rule in RULES}
    assert all(one.rule for one in CLUSTER.values())


def test_the_page_lists_the_mutations() -> None:
    page = Path("docs/simulator.md").read_text()
    assert set(re.findall(r"^\| [A-Z][^|]* \| `([a-z_]+)` \|", page, re.MULTILINE)) == set(CLUSTER)

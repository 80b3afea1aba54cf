"""Rules of the journal are needed: taken out of a cluster, each is missed.

Here are those that take few and short runs to be noticed; ``python -m tests.simulator --mutations`` has all.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.simulator.mutations import one_node
from tests.simulator.mutations.cluster import MUTATIONS, run_mutated
from tests.simulator.mutations.rules import RULES

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
RUNS_MOST = 12


@pytest.mark.parametrize("name", NOTICED_SOON)
def test_rule_is_missed(name: str) -> None:
    assert any(run_mutated(name, seed) is not None for seed in range(1, RUNS_MOST + 1))


@pytest.mark.parametrize("name", ["fence_read_of_one_machine", "answered_out_of_order"])
def test_the_same_trouble_does_no_harm_with_the_rule_in_its_place(name: str) -> None:
    assert run_mutated(name, 1, taken_out=False) is None


def test_each_rule_has_its_mutations_or_a_reason() -> None:
    for rule in RULES:
        mine = [one for one in MUTATIONS.values() if one.rule == rule.name]
        assert mine or rule.node or rule.why_not, rule.name
        assert set(rule.node) <= set(one_node.MUTATIONS)
    assert {one.rule for one in MUTATIONS.values()} <= {rule.name for rule in RULES}


def test_the_page_lists_the_mutations() -> None:
    page = Path("docs/simulator.md").read_text()
    assert set(re.findall(r"^\| [A-Z][^|]* \| `([a-z_]+)` \|", page, re.MULTILINE)) == set(MUTATIONS)

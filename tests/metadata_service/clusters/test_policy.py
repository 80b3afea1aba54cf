"""Cluster choice for new queues, and splitting and draining of queues by rate."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata_service.clusters.policy import Cluster, Heat, NoCluster, SplitRule, choose, decide

NOW = 1000.0
RULE = SplitRule()


def clusters(*utilisations: float) -> list[Cluster]:
    return [Cluster(f"c{number}", used, NOW) for number, used in enumerate(utilisations)]


def test_all_processes_choose_the_same() -> None:
    some = clusters(0.3, 0.1, 0.4, 0.2)
    chosen = [choose(some, f"queue-{number}", now_s=NOW) for number in range(12)]
    assert chosen == [choose(some[::-1], f"queue-{number}", now_s=NOW) for number in range(12)]
    assert " ".join(chosen) == "c3 c1 c1 c0 c1 c3 c3 c0 c1 c3 c3 c0"


def test_the_less_used_of_two_is_chosen_and_the_most_used_of_all_never() -> None:
    counts = Counter(choose(clusters(0.1, 0.2, 0.3, 0.4), f"q{number}", now_s=NOW) for number in range(6000))
    assert counts["c0"] == pytest.approx(3000, rel=0.1)  # it wins each of the pairs that include it: 3 of 6
    assert counts["c1"] == pytest.approx(2000, rel=0.1)
    assert counts["c2"] == pytest.approx(1000, rel=0.1)
    assert counts["c3"] == 0


def test_equals_are_chosen_by_their_weights() -> None:
    some = [msgspec.structs.replace(cluster, weight=float(cluster.name[1:]) + 1) for cluster in clusters(0.1, 0.1, 0.1)]
    counts = Counter(choose(some, f"q{number}", now_s=NOW) for number in range(6000))
    assert [counts[f"c{number}"] for number in range(3)] == pytest.approx([1000, 2000, 3000], rel=0.12)


def test_old_reports_make_no_herd() -> None:
    """A thousand queues between two reports: none of the clusters gets more than twice its part."""
    some = clusters(*(0.2 + number / 100 for number in range(20)))
    counts = Counter(choose(some, f"q{number}", now_s=NOW) for number in range(1000))
    assert max(counts.values()) < 2.5 * 1000 / 20


def test_nodes_that_cannot_take_it_are_not_chosen() -> None:
    full, silent, retiring, fine = clusters(0.9, 0.1, 0.1, 0.8)
    silent = msgspec.structs.replace(silent, reported_s=NOW - 16)
    retiring = msgspec.structs.replace(retiring, state="retiring")
    assert {choose([full, silent, retiring, fine], f"q{number}", now_s=NOW) for number in range(50)} == {"c3"}
    with pytest.raises(NoCluster) as raised:
        choose([full, silent, retiring], "q", now_s=NOW)
    assert str(raised.value) == (
        "no backend cluster accepts new queues: c0 is at 90% utilisation; c1 has not reported for 16 s; "
        "c2 is being retired"
    )
    with pytest.raises(NoCluster, match="there is none"):
        choose([], "q", now_s=NOW)


def run(rates: list[tuple[float, float]], partitions: int = 1, step_s: float = 5) -> list[tuple[float, int]]:
    """Changes of the number of partitions, with their times, for (rate, seconds) in sequence."""
    heat, now, changes = Heat(), 0.0, []
    for rate, seconds in rates:
        end = now + seconds
        while now < end:
            heat, wanted = decide(heat, partitions, rate, now, RULE)
            if wanted != partitions:
                partitions = wanted
                changes.append((now, partitions))
            now += step_s
    return changes


def test_a_queue_that_stays_hot_is_split_to_what_it_needs() -> None:
    assert run([(4001, 600)]) == [(30, 2)]
    assert run([(4000, 600)]) == []
    assert run([(40_000, 600)]) == [(30, 16)]
    assert run([(10**7, 600)]) == [(30, 64)]


def test_a_moments_heat_splits_nothing() -> None:
    assert run([(4500, 25), (3000, 5)] * 50) == []


def test_a_cold_queue_is_drained_back_step_by_step() -> None:
    assert run([(40_000, 60), (100, 5000)]) == [(30, 16), (960, 8), (1860 + 5, 4), (2770, 2), (3675, 1)]
    assert run([(100, 890), (9000, 5)] * 20, partitions=2) == []


@given(st.floats(0, 10**6), st.integers(1, 64))
def test_a_steady_rate_ends_in_no_further_changes(rate: float, partitions: int) -> None:
    changes = run([(rate, 20_000)], partitions, step_s=100)
    numbers = [partitions, *(number for _, number in changes)]
    assert numbers in (sorted(numbers), sorted(numbers, reverse=True)), "never back and forth"
    final = numbers[-1]
    assert rate <= RULE.split_above * final * RULE.partition_rate or final == RULE.partitions_max
    assert final == 1 or rate >= RULE.drain_below * final / 2 * RULE.partition_rate


def test_marks_between_which_a_queue_would_swing_are_refused() -> None:
    with pytest.raises(ValueError, match="drain_below < aim < split_above"):
        SplitRule(drain_below=0.6)
    with pytest.raises(ValueError, match="drain_below < aim < split_above"):
        SplitRule(split_above=0.4)

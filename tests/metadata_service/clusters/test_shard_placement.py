"""Placement of shards: the moves of each round, and the termination of rounds."""

import math
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata_service.clusters.shard_placement import SLACK, LiveNode, Move, PlacementPlan, plan

SHARDS = 256
ALL = 1 << 30


def nodes(count: int, *draining: int) -> list[LiveNode]:
    return [LiveNode(f"n{number}", draining=number in draining) for number in range(count)]


def settled(live: list[LiveNode], present: dict[int, str] | None = None, shards: int = SHARDS) -> dict[int, str]:
    return plan(present or dict.fromkeys(range(shards)), live, limit=ALL).assignment


def bounds(live: list[LiveNode], shards: int) -> dict[str, tuple[int, int]]:
    staying = [node for node in live if not node.draining]
    total = sum(node.weight for node in staying)
    shares = {node.name: shards * node.weight / total for node in staying}
    return {
        name: (math.floor(share * (1 - SLACK) + 1e-9), math.ceil(share * (1 + SLACK) - 1e-9))
        for name, share in shares.items()
    }


def check(done: PlacementPlan, present: dict[int, str | None], live: list[LiveNode], limit: int) -> None:
    """Invariants of every plan, for nodes of which not all drain."""
    alive = {node.name: node for node in live}
    after: dict[int, str | None] = dict(present)
    for move in done.moves:
        assert after[move.shard] == move.source, "each shard moves once, from where it is"
        assert move.target != move.source
        assert not alive[move.target].draining
        after[move.shard] = move.target
        gone = move.source is None or move.source not in alive
        assert gone == (move.reason == "dead")
        if move.reason == "drain":
            assert move.source is not None
            assert alive[move.source].draining
    assert after == done.assignment
    assert [move.reason for move in done.moves] == sorted(
        (move.reason for move in done.moves), key=["dead", "drain", "balance"].index
    )
    forced = sum(move.reason == "dead" for move in done.moves)
    assert len(done.moves) <= max(limit, forced)
    if not done.left:
        load = Counter(done.assignment.values())
        assert {
            name: shards_min <= load[name] <= shards_max
            for name, (shards_min, shards_max) in bounds(live, len(present)).items()
        } == {node.name: True for node in live if not node.draining}


@given(
    st.lists(st.tuples(st.sampled_from([0.5, 1.0, 1.0, 2.0, 3.7]), st.booleans()), min_size=1, max_size=9),
    st.integers(1, 80),
    st.randoms(use_true_random=False),
    st.integers(0, 20),
)
def test_every_round_keeps_its_promises_and_rounds_end(
    made: list[tuple[float, bool]], shards: int, chance: Random, limit: int
) -> None:
    live = [LiveNode(f"n{number}", weight, draining) for number, (weight, draining) in enumerate(made)]
    live[0] = LiveNode("n0", live[0].weight)
    owners = [*(node.name for node in live), "dead", None]
    present: dict[int, str | None] = {shard: chance.choice(owners) for shard in range(shards)}
    first = plan(present, live, limit=limit)
    check(first, present, live, limit)
    assert first == plan(dict(reversed(present.items())), live[::-1], limit=limit)
    if limit == 0:
        assert all(move.reason == "dead" for move in first.moves)
        limit = 1
    rounds = 0
    while True:
        done = plan(present, live, limit=limit)
        check(done, present, live, limit)
        present = dict(done.assignment)
        if not done.left:
            break
        rounds += 1
        assert rounds <= 3 * shards
    assert plan(present, live, limit=limit) == PlacementPlan(done.assignment, (), 0)


def test_a_new_cluster_is_even() -> None:
    load = Counter(settled(nodes(12)).values())
    assert max(load.values()) / (SHARDS / 12) < 1.09
    assert len(load) == 12


def test_a_newcomer_takes_its_share_and_nothing_else_moves() -> None:
    before = settled(nodes(3))
    done = plan(before, nodes(4), limit=ALL)
    assert {move.target for move in done.moves} == {"n3"}
    assert {move.reason for move in done.moves} == {"balance"}
    shards_min, shards_max = bounds(nodes(4), SHARDS)["n3"]
    assert shards_min <= len(done.moves) <= shards_max


def test_a_drained_node_gives_up_all_and_nothing_else_moves() -> None:
    before = settled(nodes(4))
    leaving = {shard for shard, owner in before.items() if owner == "n1"}
    done = plan(before, nodes(4, 1), limit=ALL)
    assert {move.shard for move in done.moves} == leaving
    assert {move.reason for move in done.moves} == {"drain"}
    assert len({move.target for move in done.moves}) == 3


def test_the_shards_of_the_dead_go_first_and_wait_for_no_limit() -> None:
    before = settled(nodes(4))
    dead = {shard for shard, owner in before.items() if owner == "n0"}
    live = [node for node in nodes(5, 1) if node.name != "n0"]
    done = plan(before, live, limit=3)
    assert {move.shard for move in done.moves} == dead
    assert all(move == Move(move.shard, "n0", move.target, "dead") for move in done.moves)
    assert {move.target for move in done.moves} <= {"n2", "n3", "n4"}
    assert done.left > 0
    drained = plan(done.assignment, live, limit=3)
    assert [move.reason for move in drained.moves] == ["drain"] * 3
    assert [move.shard for move in drained.moves] == sorted(move.shard for move in drained.moves)


def test_the_limit_is_kept_until_all_is_done() -> None:
    present: dict[int, str | None] = dict(settled(nodes(3)))
    moved = 0
    while True:
        done = plan(present, nodes(6), limit=5)
        moved += len(done.moves)
        present = dict(done.assignment)
        if not done.left:
            break
        assert len(done.moves) == 5
    assert moved == len(plan(settled(nodes(3)), nodes(6), limit=ALL).moves)


def test_weights_count() -> None:
    load = Counter(settled([LiveNode("small"), LiveNode("large", 3.0)]).values())
    assert 61 <= load["small"] <= 68
    assert load["small"] + load["large"] == SHARDS


def test_each_shard_has_its_own_order_of_nodes() -> None:
    """So a node's shards spread over all others, in proportion to their weights."""
    live = [LiveNode("a"), LiveNode("b"), LiveNode("c", 2.0)]
    roomy = plan(dict.fromkeys(range(4000)), live, limit=0, slack=9.0).assignment
    first = Counter(roomy.values())
    assert first["a"] == pytest.approx(1000, rel=0.1)
    assert first["b"] == pytest.approx(1000, rel=0.1)
    without = plan(dict.fromkeys(range(4000)), live[1:], limit=0, slack=9.0).assignment
    assert all(without[shard] == owner for shard, owner in roomy.items() if owner != "a")
    orphans = Counter(without[shard] for shard, owner in roomy.items() if owner == "a")
    assert orphans["c"] == pytest.approx(2 * orphans["b"], rel=0.2)


def test_if_all_drain_they_keep_what_they_have_and_take_what_the_dead_had() -> None:
    before = settled(nodes(3))
    live = [LiveNode("n1", draining=True), LiveNode("n2", draining=True)]
    done = plan(before, live, limit=ALL)
    assert {move.source for move in done.moves} == {"n0"}
    assert {move.reason for move in done.moves} == {"dead"}


def test_without_nodes_nothing_moves() -> None:
    assert plan(settled(nodes(2)), [], limit=5) == PlacementPlan({}, (), SHARDS)


def test_fewer_shards_than_nodes() -> None:
    load = Counter(settled(nodes(9), shards=4).values())
    assert sorted(load.values()) == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("live", "limit", "message"),
    [
        ([LiveNode("a"), LiveNode("a")], 1, "same name"),
        ([LiveNode("a", 0.0)], 1, "weight of node 'a'"),
        ([LiveNode("a")], -1, "limit on movement"),
    ],
)
def test_impossible_plans(live: list[LiveNode], limit: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan({0: None}, live, limit=limit)

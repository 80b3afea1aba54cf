"""Runs of the simulated cluster in ``make test``.  Many more: ``python -m tests.simulator --cluster``."""

import msgspec
import pytest

from backend.cluster.member import CLOCK_SECONDS
from backend.engine.tokens import Tokens
from tests.simulator.checks.model import Violation
from tests.simulator.world.cluster import SECONDS, ClusterWorld, simulate_cluster
from tests.simulator.world.world import EPOCH

SEEDS = 12
AT_ONCE = 4


@pytest.mark.parametrize("local", [False, True], ids=["quorum", "local"])
@pytest.mark.parametrize("first", range(1, SEEDS + 1, AT_ONCE))
def test_seeds(first: int, local: bool) -> None:
    for seed in range(first, first + AT_ONCE):
        try:
            simulate_cluster(seed, 8.0, local=local)
        except Exception as error:
            again = f"python -m tests.simulator --cluster --first {seed} --seeds 1 --trace"
            raise AssertionError(f"seed {seed}: {again}") from error


def test_same_seed_same_run() -> None:
    digests = {simulate_cluster(3, 5.0, local=False).digest for _ in range(2)}
    assert len(digests) == 1


def test_a_zombie_finds_out_without_calls() -> None:
    """Its log was sealed in the middle of a hand-over, so it moves no shards, and it writes nothing: it must not go on
    telling whoever asks that there are no messages.  (Found by seed 2 of the zombies.)"""
    world = ClusterWorld(1, local=False, scenario="outages")

    def seal_behind_its_back() -> None:
        (node,) = [process.node for process in world.nodes.living() if process.name == "node0"]
        assert node is not None
        assert node._checkpointer is not None
        node._checkpointer._indeterminate = True
        entry = world.ledger.logs[node.ownership.log_id]
        sealed = msgspec.structs.replace(entry, state="sealed", sealed_seq=0, version=entry.version + 1)
        world.ledger.logs[entry.log_id] = sealed
        world.machines.set_state(entry.log_id, "sealed", sealed.version)
        for shard, known in world.ledger.shards.items():
            if known.owner_log == entry.log_id:
                other = next(one.log_id for one in world.ledger.logs.values() if one.state == "open")
                chain = (*known.chain, (other, known.epoch + 1, 1))
                world.ledger.shards[shard] = msgspec.structs.replace(
                    known, owner_log=other, epoch=known.epoch + 1, chain=chain, version=known.version + 1
                )

    world.begin()
    try:
        seal_behind_its_back()
        assert world.until(world.served_by_one, 30)
    finally:
        world.end()


def test_a_wrong_clock_of_a_node_is_reported() -> None:
    world = ClusterWorld(2, local=False, scenario="outages")
    world.nodes.offsets["node1"] = 3600.0
    world.begin()
    try:
        world.until(lambda: False, CLOCK_SECONDS / 2)
        assert not [report for report in world.reports if "clock" in report], "it may be set in its first minute"
        world.until(lambda: False, CLOCK_SECONDS)
    finally:
        world.end()
    reports_found = [report for report in world.reports if "clock" in report]
    assert len(reports_found) == 1
    assert "node1 is at least 359" in reports_found[0]
    assert "ahead of the cluster's time" in reports_found[0]


def test_two_nodes_go_on_by_the_clock_by_which_three_have_gone() -> None:
    """A third node had died: the lower of two clocks was an hour behind.  (Found by seed 102 of the wrong clocks.)"""
    world = ClusterWorld(2, local=False, scenario="outages")
    nodes = world.nodes
    nodes.offsets["node1"] = -3600.0

    def off_seconds() -> list[float]:
        clocks = [process.node.clock for process in nodes.living() if process.node is not None]
        return [abs(clock() / 1000 - EPOCH - world.loop.now) for clock in clocks]

    world.begin()
    try:
        assert world.until(lambda: len(off_seconds()) == len(nodes.names) and max(off_seconds()) < 2, 30)
        for name in set(nodes.names) - {"node0", "node1"}:
            nodes.gone.add(name)
            nodes.kill(nodes.processes[name])
        world.until(lambda: False, 20)
        assert len(off_seconds()) == 2
        assert max(off_seconds()) < 2
    finally:
        world.end()


@pytest.mark.parametrize("off_seconds", [3600.0, -3600.0])
@pytest.mark.parametrize("seed", [2, 5, 103, 111])
def test_a_clock_that_is_an_hour_off_ends_nothing_early_and_holds_nothing_back(seed: int, off_seconds: float) -> None:
    """Its shards move with messages in flight, and all nodes are killed and started.  (Found by these seeds.)"""
    world = ClusterWorld(seed, local=False, scenario="moving")
    world.nodes.offsets["node1"] = off_seconds
    world.all_die = 1.0
    world.run(15.0)


@pytest.mark.parametrize("seed", [22, 74, 139])
def test_a_node_with_a_wrong_clock_restarts_first(seed: int) -> None:
    """Messages were stored twice: a shard was opened an hour late by a node whose predecessor had taken it and died
    before its next heartbeat; and a start put its clock forward to the time of a shard that was an hour ahead.  A claim
    ended early: a node stepped its clock between giving a shard away and its new owner's opening it."""
    ClusterWorld(seed, local=False, clocks=True).run(SECONDS)


def test_ids_that_are_never_forgotten_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of deduplication are shorter than some runs, and their ids are used again."""
    remember = Tokens.remember

    def for_longer(tokens: Tokens, token: bytes, number: int, expires: int, digest: bytes = b"") -> None:
        remember(tokens, token, number, expires + 600_000, digest)

    monkeypatch.setattr(Tokens, "remember", for_longer)
    for seed in (8, 7, *range(20, 60)):
        try:
            ClusterWorld(seed, varied=True).run(15.0)
        except Violation:
            return
    pytest.fail("no seed has noticed")

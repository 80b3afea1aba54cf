"""Differences between runs beside their faults: sizes, limits, speeds and what clients do.

These come from a generator of their own, so that a seed whose run is chosen otherwise keeps its meaning.  Nothing here
is aimed at a rule: small and large values are drawn, so that limits are crossed.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, NamedTuple

from backend.journal.cassandra.table_interface import ROWS_MAX

if TYPE_CHECKING:
    from tests.simulator.world.cluster import ClusterWorld

BODY_BYTES_COMMON = 300
"""Length of many bodies that are not large."""
BODY_BYTES_MAX = 1 << 20


class NodeDraws(NamedTuple):
    """Draws of a run of one node."""

    segment_bytes: int
    row_bytes: int
    checkpoint_segments: int
    cost_seconds: float
    tick_seconds: float
    more_queues: int
    windows_seconds: tuple[int, ...]
    """Windows of deduplication ids and of retry tokens."""
    big_bodies: int
    """Number of messages with bodies near 1 MiB."""


def node_draws(seed: int) -> NodeDraws:
    random = Random(f"draws of {seed}")
    big = random.random() < 0.06
    return NodeDraws(
        segment_bytes=4 << 20 if big else random.choice((8, 16, 16, 32, 64, 256)) << 10,
        row_bytes=random.choice((512, 2 << 10, 8 << 10, 64 << 10)),
        checkpoint_segments=random.choice((1, 1, 2, 4, 8)),
        cost_seconds=random.choice((0.0, 0.00002, 0.0002)),
        tick_seconds=random.choice((0.0007, 0.0007, 0.005)),
        more_queues=random.choice((0, 0, 0, 5)),
        windows_seconds=random.choice(((2, 5), (2, 10, 60), (20, 60, 300))),
        big_bodies=random.choice((4, 12)) if big else 0,
    )


def vary(world: ClusterWorld) -> None:
    """Draw the sizes and speeds of a cluster's run, the actions of its clients, and the frequency of each fault."""
    random = Random(f"draws of {world.seed}")
    sessions = Random(f"sessions of {world.seed}")
    world.sessions, world.ledger.timed_out = sessions.random() < 0.5, sessions.choice((0.0, 0.02, 0.1))
    nodes, callers, machines, net = world.nodes, world.callers, world.machines, world.net
    world.loop.cost_seconds = random.choice((0.0, 0.000005, 0.00005))
    nodes.checkpoint_segments = random.choice((1, 1, 2, 4, 12))
    nodes.segment_bytes = random.choice((1, 4, 16, 64)) << 10
    nodes.segment_rows = random.choice((5, 16, 100, ROWS_MAX))
    nodes.wait_for_others = True
    nodes.idle_seconds = random.choice((0.05, 0.5))
    nodes.row_bytes = random.choice((256, 1 << 10, 4 << 10, 60 << 10))
    callers.pace = random.choice((0.05, 0.1, 0.2) if world.scenario == "slow" else (0.03, 0.05, 0.1))
    callers.visibility_seconds = random.choice(((5, 15, 30), (0, 2, 10)))
    callers.old_handles = random.choice((0.05, 0.15, 0.4))
    for call in callers.weights:
        callers.weights[call] *= random.choice((0.3, 1.0, 1.0, 2.0))
    callers.weights["move"] *= random.choice((0.0, 1.0, 4.0))
    if random.random() < 0.7:  # received again and again, and sent back: messages are on their way all the time
        callers.visibility_seconds = random.choice(((0,), (0, 1), (0, 0, 0, 5)))
        callers.weights.update(send=random.choice((8, 30)), receive=80, delete=random.choice((3, 10)))
        callers.weights["move"] = random.choice((4.0, 20.0, 20.0))
        world.pairs, world.receives_max = random.choice(((2, 3), (6,))), random.choice(((1, 2, 4), (1,)))
        world.always = frozenset({"dead"})
    machines.slow_seconds = random.choice((0.002, 0.01, 0.02))
    net.twice = random.choice((0.0, 0.1, 0.3))
    net.twice_seconds = random.choice((0.0, 0.5, 3.0))
    more = Random(f"windows and bodies of {world.seed}")
    world.catalog.window_seconds = more.choice((6, 6, 10, 20, 60))
    net.send_seconds_max = world.limits.call_seconds  # the caller has given up by then
    callers.ids_used_again = 0.2
    callers.big_bodies = more.choice((5, 12)) if more.random() < 0.1 else 0
    if callers.big_bodies:
        nodes.segment_bytes = max(nodes.segment_bytes, (4 if world.local else 1) << 20)
        world.always |= {"dead"}
    if world.scenario != "outages":  # there what may go wrong is all that it is
        _vary_faults(world, random, more)
        _vary_takeovers(world, Random(f"takeovers of {world.seed}"))


def _vary_faults(world: ClusterWorld, random: Random, more: Random) -> None:
    """Draw the frequency of each fault: some never occur, and two of them much more often than the others."""
    faults = world.troubles.faults
    if world.scenario != "zombies":
        for fault in faults:
            faults[fault] *= random.choice((0, 1, 1, 3))
        faults["map"] = max(1, faults["map"])
        world.troubles.pause = random.choice((1.0, 2.0, 4.0)) if world.troubles.pause else 0.0
    if world.local:
        faults["files"] = more.choice((0, 1, 3))
    usual = sum(faults.values())
    if not world.local:
        faults["lost_rows"] = usual * random.choice((0.3, 1.0))
        faults["zombie"] = faults.get("zombie", 0.0) + usual * random.choice((0.0, 0.3))
    for fault in random.sample(sorted(faults), 2):
        faults[fault] += usual
    world.troubles.brittle = random.choice((0.0, 0.0, 0.02, 0.1))


def _vary_takeovers(world: ClusterWorld, random: Random) -> None:
    """Draw how soon nodes are taken for dead, and how often shards return, or their new owner dies as well."""
    troubles = world.troubles
    if random.random() < 0.5:
        _hasten(world, random)
    usual = sum(troubles.faults.values())
    troubles.faults["ailing"] = usual * random.choice((0.0, 0.1, 0.5))
    troubles.faults["cascade"] = usual * random.choice((0.0, 0.1, 0.3))


def _hasten(world: ClusterWorld, random: Random) -> None:
    """Let faults be short and failures be detected soon, under load on fast machines.

    Most of the cluster is well at any time, and there is one kind of trouble: on the quorum journal mostly nodes that
    answer, and whose heartbeats do not arrive.
    """
    troubles, machines = world.troubles, world.machines
    world.haste = random.choice((0.2, 0.4))
    world.callers.pace = random.choice((0.015, 0.03))
    machines.slow_seconds, machines.late, machines.lost = random.choice((0.001, 0.003)), 0.01, 0.01
    troubles.pause, troubles.zombie_seconds = random.choice((1.0, 2.0)), 12.0
    other = random.choice(sorted(troubles.faults))
    main = random.choice(("zombie", "zombie", other)) if not world.local else other
    troubles.faults = {"map": 0.5, other: 1.0, main: 8.0}

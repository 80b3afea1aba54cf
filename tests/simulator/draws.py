"""Differences between runs beside their faults: sizes, limits, speeds and what clients do.

These come from a generator of their own, so that a seed whose run is chosen otherwise keeps its meaning.  Nothing here
is aimed at a rule: small and large values are drawn, so that limits are crossed.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, NamedTuple

from backend.journal.tables import ROWS_MOST

if TYPE_CHECKING:
    from tests.simulator.cluster import ClusterWorld

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
    """Draw the sizes and speeds of a cluster's run, what its clients do, and how often each fault comes."""
    random = Random(f"draws of {world.seed}")
    nodes, callers, machines, net = world.nodes, world.callers, world.machines, world.net
    world.loop.cost_seconds = random.choice((0.0, 0.000005, 0.00005))
    nodes.checkpoint_segments = random.choice((1, 1, 2, 4, 12))
    nodes.segment_bytes = random.choice((1, 4, 16, 64)) << 10
    nodes.segment_rows = random.choice((5, 16, 100, ROWS_MOST))
    nodes.wait_for_others = True
    nodes.idle_seconds = random.choice((0.05, 0.5))
    nodes.row_bytes = random.choice((256, 1 << 10, 4 << 10, 60 << 10))
    callers.pace = random.choice((0.05, 0.1, 0.2) if world.scenario == "slow" else (0.02, 0.03, 0.05, 0.1))
    callers.visibility_seconds = random.choice(((5, 15, 30), (0, 2, 10)))
    callers.old_handles = random.choice((0.05, 0.15, 0.4))
    for call in callers.weights:
        callers.weights[call] *= random.choice((0.3, 1.0, 1.0, 2.0))
    callers.weights["move"] *= random.choice((0.0, 1.0, 4.0))
    if random.random() < 0.7:  # few messages, received again and again: many of them become dead letters
        callers.visibility_seconds = random.choice(((0,), (0, 1), (0, 0, 0, 5)))
        callers.weights.update(send=30, receive=80, delete=10)
        world.always = frozenset({"dead"})
    machines.slow_seconds = random.choice((0.002, 0.01, 0.02))
    net.twice = random.choice((0.0, 0.1, 0.3))
    net.twice_seconds = random.choice((0.0, 0.5, 3.0))
    faults = world.troubles.faults
    if world.scenario == "outages":
        return  # what may go wrong is all that it is
    if world.scenario != "zombies":
        for fault in faults:
            faults[fault] *= random.choice((0, 1, 1, 3))
        faults["map"] = max(1, faults["map"])
        world.troubles.pause = random.choice((0.5, 1.0, 2.0, 4.0)) if world.troubles.pause else 0.0
    if not world.local:
        faults["lost_rows"] = sum(faults.values()) * random.choice((0.2, 1.0, 3.0))

"""Wrong wall clocks in a simulated cluster: ``python -m tests.simulator --cluster --clocks``.

One node's clock is off, or two nodes' are, by different times or in different directions; in some runs one is set in
the middle.  All nodes are killed together now and then, and at the end of each run; they come back together, or one
with a wrong clock comes first, and alone.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulator.world.cluster import ClusterWorld

OFF_SECONDS = (3600.0, -3600.0, 90.0, -90.0)
ALONE_SECONDS = (6.0, 20.0)
"""Delay after which the other nodes restart."""


def wrong_clocks(world: ClusterWorld) -> None:
    """Make some clocks of this world wrong, as its seed says."""
    chances = Random(f"clocks of {world.seed}")
    nodes = world.nodes
    wrong = chances.sample(nodes.names, 2 if len(nodes.names) > 3 and chances.random() < 0.3 else 1)
    for name, sign in zip(wrong, (1, -1), strict=False):
        nodes.offsets[name] = sign * chances.choice(OFF_SECONDS)
    if chances.random() < 0.2:
        world.loop.call_later(chances.uniform(3.0, 20.0), nodes.offsets.update, {wrong[0]: 0.0})
    nodes.first = wrong[0] if chances.random() < 0.6 else None
    nodes.alone_seconds = chances.choice(ALONE_SECONDS)
    world.all_die = 1.0
    if world.troubles.pause and world.scenario != "outages":
        world.troubles.faults["all"] = 2


async def let_the_first_be_alone(world: ClusterWorld, name: str) -> None:
    """Let the supervisor of a node wait if, after all were killed, another is to restart first."""
    nodes = world.nodes
    if nodes.first not in (None, name) and nodes.all_killed_at is not None:
        await asyncio.sleep(max(0.0, nodes.all_killed_at + nodes.alone_seconds - world.loop.now))

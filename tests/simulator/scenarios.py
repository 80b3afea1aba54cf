"""Scenarios: conditions made likely in some runs, so that rare combinations occur."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulator.world.cluster import ClusterWorld

QUORUM_FAULTS = {
    "kill": 4, "kill_manager": 1, "gone": 1, "stop": 5, "cut_store": 5, "cut": 3, "machine": 2, "wipe": 2, "outage": 1,
    "slow": 2, "drain": 3, "rolling": 1, "map": 3,
}  # fmt: skip
LOCAL_FAULTS = {
    "kill": 4, "kill_manager": 1, "gone": 1, "stop": 3, "drain": 4, "rolling": 1, "disk": 3, "metadata": 3, "power": 3,
    "map": 3,
}  # fmt: skip


def _usual(world: ClusterWorld) -> None:
    """All that can go wrong, more or less often."""


def _slow(world: ClusterWorld) -> None:
    """Rows, reads and transactions take long, and each machine has something else."""
    machines = world.machines
    machines.slow_seconds, machines.late, machines.lost, machines.repairs = 0.005, 0.1, 0.03, False
    world.ledger.late = 0.05
    world.troubles.pause = 1.5
    world.troubles.faults.update(outage=0, slow=0, kill=8, kill_manager=3, stop=4, cut_store=4, wipe=4)


def _moving(world: ClusterWorld) -> None:
    """Shards move all the time, and transactions take effect late."""
    world.ledger.late = 0.05
    world.troubles.pause = 0.7
    world.troubles.faults.update(outage=0, drain=12, rolling=4, stop=2)


def _quiet(world: ClusterWorld) -> None:
    """Little is written, so that a zombie is not found out by its own rows."""
    world.callers.pace = 0.3
    world.troubles.pause = 4.0
    world.callers.weights.update(send=12, receive=4, delete=2, change=0, count=40)
    world.troubles.faults.update(outage=0, two_views=30, stop=10)


def _zombies(world: ClusterWorld) -> None:
    """Nodes that are well lose their heartbeats, and answers to their reads of entries are late."""
    machines = world.machines
    machines.slow_seconds, machines.lost, machines.repairs = 0.005, 0.1, False
    machines.fence_seconds = world.random.choice((0.0, 0.3, 2.0))
    world.net.slow_seconds = 0.002
    world.troubles.pause = 3.0
    world.troubles.faults = {"zombie": 10, "kill": 1}


def _outages(world: ClusterWorld) -> None:
    """Only the store is away, for everybody: nobody is to fence anybody."""
    world.machines.late = world.machines.lost = world.net.late = world.net.lost = world.ledger.late = 0.0
    world.troubles.pause = 12.0
    world.troubles.faults = {"outage": 1}


def _maps(world: ClusterWorld) -> None:
    """Queues are split, drained and moved all the time, and some shards move as well."""
    world.spread = 1.0
    world.troubles.pause = 0.7
    world.troubles.faults = {"map": 12, "kill": 2, "drain": 2, "stop": 1, "slow": 1, "cut": 2}


SCENARIOS: dict[str, Callable[[ClusterWorld], None]] = {
    "usual": _usual, "slow": _slow, "moving": _moving, "quiet": _quiet, "zombies": _zombies, "outages": _outages,
    "maps": _maps,
}  # fmt: skip

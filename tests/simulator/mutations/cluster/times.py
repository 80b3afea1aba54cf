"""Rules of time, taken out."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest import mock

from backend.cluster.failure_detector import Clocks
from backend.serving.node_clock import SteadyClock
from backend.serving.shard_clock import ShardClock
from tests.simulator.mutations.cluster import focus
from tests.simulator.mutations.cluster.registry import mutation
from tests.simulator.world.cluster import ClusterWorld


@mutation("Time", scenario="moving", focus=focus.wrong_clocks)
def own_clock_at_a_takeover(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A node takes shards at the time of its own clock, whatever the others' say."""
    stack = ExitStack()
    for method in ("follow", "resume"):
        stack.enter_context(mock.patch.object(SteadyClock, method, return_value=None))
    stack.enter_context(_lead_forgotten())
    return stack


@mutation("Time", scenario="moving", focus=focus.clocks_behind)
def shards_stepped_with_their_node(world: ClusterWorld) -> AbstractContextManager[Any]:
    """The time of a node's shards jumps when it learns that its clock is wrong."""
    return mock.patch.object(ShardClock, "__call__", lambda clock: clock._node())


@mutation("Time", scenario="moving", focus=focus.clocks_behind)
def lead_forgotten_at_a_takeover(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A shard's new owner serves it at its own time, however far behind that the former one has served it."""
    return _lead_forgotten()


@mutation("Time", scenario="moving", focus=focus.wrong_clock_first)
def offset_forgotten_at_a_restart(world: ClusterWorld) -> AbstractContextManager[Any]:
    """All nodes were killed, and the first that comes back believes its clock, which was known to be wrong."""
    return mock.patch.object(SteadyClock, "resume", return_value=None)


def _lead_forgotten() -> AbstractContextManager[Any]:
    return mock.patch.object(Clocks, "shard_time_ms", lambda clocks, shard, former, time_ms, now_ms: time_ms)

"""Rules of time, taken out."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest import mock

from backend.clock import SteadyClock
from tests.simulator.cluster import ClusterWorld
from tests.simulator.cluster_mutations import focus
from tests.simulator.cluster_mutations.registry import mutation


@mutation("Time", scenario="moving", focus=focus.wrong_clocks)
def own_clock_at_a_takeover(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A node takes shards at the time of its own clock, whatever the others' say."""
    stack = ExitStack()
    stack.enter_context(mock.patch.object(SteadyClock, "go_to", return_value=None))
    stack.enter_context(mock.patch.object(SteadyClock, "follow", return_value=None))
    return stack

"""Rules of queues that are deleted, taken out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

from backend.api import Target
from backend.rpc.cluster_client import ClusterBackend
from backend.serving.incarnation import Incarnation
from backend.serving.orphan_collector import OrphanCollector
from tests.simulator.mutations.cluster import focus
from tests.simulator.mutations.cluster.registry import mutation
from tests.simulator.mutations.cluster.writing import not_durable
from tests.simulator.world.cluster import ClusterWorld


async def _check_nothing(self: OrphanCollector, target: Target) -> None:
    """Remains of deleted queues are not searched for."""


@mutation("Partitions 5", focus=focus.deletions)
def deletions_answered_when_they_are_noted(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A deletion is answered when the metadata have it, whatever the partitions have heard of it."""

    async def drop(self: ClusterBackend, target: Target) -> None:
        return None

    return mock.patch.object(ClusterBackend, "drop", drop)


@mutation("Partitions 5", focus=focus.dying_deleters)
@contextmanager
def deletions_not_kept(world: ClusterWorld) -> Iterator[None]:
    """A deletion is answered before its row is durable, and whoever recovers the partition does not hear of it."""
    real = Incarnation.drop

    async def drop(self: Incarnation, *rest: Any) -> None:
        with not_durable(self):
            await real(self, *rest)

    with (
        mock.patch.object(Incarnation, "drop", drop),
        mock.patch.object(OrphanCollector, "_check_partition", _check_nothing),
    ):
        yield


@mutation("Partitions 5", focus=focus.unreached_deleters)
def leftovers_not_collected(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A partition that was not told of its queue's deletion stays for ever."""
    return mock.patch.object(OrphanCollector, "_check_partition", _check_nothing)

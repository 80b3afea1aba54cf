"""Rules of queues with several partitions, taken out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

import msgspec

from backend.api import PartitionSettings, PartitionState, Target
from backend.engine import records
from backend.engine.queue import QueueCommands
from backend.rpc.cluster_client import ClusterBackend
from backend.serving.incarnation import Incarnation
from backend.serving.partition import OpenPartition
from frontend.queues import queues as frontend_queues
from metadata_service.clusters import partition_map
from metadata_service.models import Queue as StoredQueue
from tests.simulator.mutations.cluster import focus
from tests.simulator.mutations.cluster.registry import mutation
from tests.simulator.mutations.cluster.writing import not_durable
from tests.simulator.world.catalog import Catalog
from tests.simulator.world.cluster import ClusterWorld


@mutation("Partitions 1", scenario="maps", focus=focus.maps)
def tokens_go_anywhere(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A send with a token goes to the partitions in turn, as others do."""
    return mock.patch("frontend.queues.partitioned._of_token", lambda view, _: world.random.choice(view.open_parts))


@mutation("Partitions 1", scenario="maps", focus=focus.maps)
def partition_ids_used_again(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A new partition gets the id of one that has retired."""
    real = Catalog.new_partitions

    def new_partitions(self: Catalog, count: int) -> list[int]:
        used = {one.id for queue in self.queues.values() for one in queue.partitions}
        gone = sorted({one for queue in world.queues for one in queue.partitions} - used)
        return gone[:count] if len(gone) >= count else real(self, count)

    return mock.patch.object(Catalog, "new_partitions", new_partitions)


@mutation("Partitions 2", scenario="maps", focus=focus.splits)
def calls_by_old_maps(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A partition that knows a newer map serves callers that know an older one."""
    real = OpenPartition._check_version

    def check(self: OpenPartition, settings: Any, known: int) -> None:
        if settings.version < known:
            real(self, settings, known)

    return mock.patch.object(OpenPartition, "_check_version", check)


@mutation("Partitions 2", scenario="maps", focus=focus.parents_die)
def sends_before_the_tokens_are_here(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A new partition takes sends with tokens before it knows those of its parents."""
    return mock.patch.object(QueueCommands, "_check_awaiting", return_value=None)


@mutation("Partitions 2", scenario="maps", focus=focus.parents_die)
def tokens_not_handed_over(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A partition that others await hands nothing over."""
    return mock.patch.object(QueueCommands, "adopt", return_value=[])


@mutation("Partitions 2", scenario="maps", focus=focus.maps)
def retires_with_messages(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A partition that drains goes out of the map after a while, whatever it stores."""

    def retire(self: QueueCommands, now: int, linger_seconds: int) -> list[records.Record]:
        fold = self.fold
        fold.advance(now)
        settings = fold.settings
        assert settings is not None
        if settings.state != PartitionState.DRAINING or settings.routing is None:
            return []
        routing = msgspec.structs.replace(settings.routing, state=PartitionState.RETIRED)
        return [records.Configured(msgspec.structs.replace(settings, routing=routing))]

    return mock.patch.object(QueueCommands, "retire", retire)


@mutation("Partitions 3", scenario="maps", focus=focus.splits)
def fifo_queues_split(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A FIFO queue is split like any other: its groups go on elsewhere."""
    real = partition_map.split

    def split(queue: Any, ids: Any) -> Any:
        return real(msgspec.structs.replace(queue, attributes={}), ids)

    return mock.patch("backend.cluster.repartition.split", split)


@mutation("Partitions 3", scenario="maps", focus=focus.moved_partitions)
def successors_deliver_at_once(world: ClusterWorld) -> AbstractContextManager[Any]:
    """In a FIFO queue a partition delivers while the one that it has replaced still drains."""
    return mock.patch.object(frontend_queues, "received_from", lambda queue: list(queue.partitions))


@mutation("Partitions 5", focus=focus.purges)
def purges_answered_when_they_are_noted(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A purge is answered when the metadata have it, whatever the partitions have heard of it."""

    async def purge(self: ClusterBackend, target: Target, purge_id: int) -> None:
        return None

    return mock.patch.object(ClusterBackend, "purge", purge)


@mutation("Partitions 5", focus=focus.dying_purgers)
@contextmanager
def purges_not_kept(world: ClusterWorld) -> Iterator[None]:
    """A purge is answered before its row is durable, and whoever recovers the partition does not hear of it."""
    real, real_configure = Incarnation.purge, QueueCommands.configure

    async def purge(self: Incarnation, *rest: Any) -> None:
        with not_durable(self):
            await real(self, *rest)

    def configure(self: QueueCommands, settings: PartitionSettings) -> list[records.Record]:
        return real_configure(self, msgspec.structs.replace(settings, purge_id=0))

    with mock.patch.object(Incarnation, "purge", purge), mock.patch.object(QueueCommands, "configure", configure):
        yield


@mutation("Partitions 5", focus=focus.purges)
def purges_not_counted(world: ClusterWorld) -> AbstractContextManager[Any]:
    """The metadata give no purge a number of its own: the next one is taken for a repeat."""

    def purge(self: Catalog, queue_id: int, version: int) -> StoredQueue:
        queue = self._unchanged(queue_id, version)
        purged = msgspec.structs.replace(queue, purge_id=1, version=queue.version + 1)
        self.add(purged)
        return purged

    return mock.patch.object(Catalog, "purge", purge)

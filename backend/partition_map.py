"""Routing of a partition, computed from its queue's partition map."""

from __future__ import annotations

from backend.api import PartitionState, Routing
from metadata_service.clusters.partition_map import open_ones
from metadata_service.models import Queue


def routing_of(queue: Queue, partition: int) -> Routing | None:
    """Return a partition's routing for its settings; one that is no longer in the map is RETIRED."""
    if len(queue.partitions) == 1 and not queue.map_version and queue.partitions[0].id == partition:
        return None
    slots = tuple(one.slot for one in open_ones(queue.partitions))
    for one in queue.partitions:
        if one.id == partition:
            state = PartitionState.OPEN if one.state == "open" else PartitionState.DRAINING
            return Routing(queue.map_version, one.slot, slots, state, one.awaits)
    return Routing(queue.map_version, 0, slots, PartitionState.RETIRED)

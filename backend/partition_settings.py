"""Settings of the partitions of queues and topics, computed from their records, and targets of groups.  Pure, but for
the choice of a random partition.

Frontends, nodes and managers compute them in the same way: a frontend sends them to the node, and a node that does not
know a partition yet reads the queue from the metadata.
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Protocol

import msgspec

from backend.api import AckLevel, PartitionSettings, PartitionState, Routing, Target
from backend.engine.token_slots import slot_of_name
from backend.stream_api import StreamSettings
from metadata_service.arn import QueueArn
from metadata_service.clusters.partition_map import open_ones
from metadata_service.models import Queue
from metadata_service.queue_settings import (
    ACK_LEVEL,
    DELIVERY_GUARANTEE,
    MAXIMUM_BYTES,
    MAXIMUM_MESSAGES,
    is_fifo,
    number,
)
from metadata_service.stream_settings import StreamOptions, options
from metadata_service.streams import Stream, group_id, group_partition

GROUP_VERSION = 1
"""Version of the settings of consumer groups: they are the same for all."""


class PartitionDefaults(Protocol):
    """Settings of the service that hold for every queue."""

    @property
    def region(self) -> str: ...

    @property
    def in_flight_limit(self) -> int:
        """Maximum number of messages in flight per queue."""

    @property
    def deduplication_window_seconds(self) -> int: ...

    @property
    def send_retry_window_seconds(self) -> int: ...


def partition_settings(queue: Queue, defaults: PartitionDefaults) -> dict[int, PartitionSettings]:
    """Return the settings of the queue's partitions by id; the queue's limits are divided among the open ones."""
    shared = _shared_settings(queue, defaults)
    return {one.id: _of_partition(shared, queue, one.id) for one in queue.partitions}


def settings_of_partition(queue: Queue, partition: int, defaults: PartitionDefaults) -> PartitionSettings:
    """Return the settings of one partition; one that is no longer in the map is RETIRED."""
    return _of_partition(_shared_settings(queue, defaults), queue, partition)


def routing_of(queue: Queue, partition: int) -> Routing | None:
    """Return a partition's routing for its settings; one that is no longer in the map is RETIRED."""
    if len(queue.partitions) == 1 and not queue.map_version and queue.partitions[0].id == partition:
        return None
    slots = tuple(one.slot for one in open_ones(queue.partitions))
    for one in queue.partitions:
        if one.id == partition:
            state = PartitionState.OPEN if one.state == "open" else PartitionState.DRAINING
            return Routing(queue.map_version, one.slot, slots, state, one.pending_token_sources)
    return Routing(queue.map_version, 0, slots, PartitionState.RETIRED)


def target_for_message(queue: Queue, group: str | None) -> Target:
    """Return the target for a message from another queue: the partition of its group, or a random open one."""
    if len(queue.partitions) == 1:
        return target_of(queue, queue.partitions[0].id)
    ids = {one.slot: one.id for one in open_ones(queue.partitions)}
    if is_fifo(queue.attributes):
        partition = ids[slot_of_name(group or "", list(ids))]
    else:
        partition = random.choice(list(ids.values()))
    return target_of(queue, partition)


def target_of(queue: Queue, partition: int) -> Target:
    return Target(partition, queue.queue_id, queue.version)


def _shared_settings(queue: Queue, defaults: PartitionDefaults) -> PartitionSettings:
    """Settings that all partitions of the queue have in common, with the id 0."""
    stored = queue.attributes
    shares = len(open_ones(queue.partitions))
    return PartitionSettings(
        partition=0,
        queue_id=queue.queue_id,
        version=queue.version,
        arn=str(QueueArn(defaults.region, queue.account, queue.name)),
        handle_key=queue.handle_key,
        fifo=is_fifo(stored),
        retention_seconds=number(stored, "MessageRetentionPeriod"),
        delay_seconds=number(stored, "DelaySeconds"),
        in_flight_limit=-(-defaults.in_flight_limit // shares),
        token_window_seconds=defaults.deduplication_window_seconds,
        purge_id=queue.purge_id,
        retry_window_seconds=defaults.send_retry_window_seconds,
        messages_max=-(-number(stored, MAXIMUM_MESSAGES) // shares),
        bytes_max=-(-number(stored, MAXIMUM_BYTES) // shares),
        at_most_once=stored.get(DELIVERY_GUARANTEE) == "at-most-once",
        ack_level=AckLevel[stored.get(ACK_LEVEL, "quorum").upper()],
    )


def _of_partition(shared: PartitionSettings, queue: Queue, partition: int) -> PartitionSettings:
    return msgspec.structs.replace(shared, partition=partition, routing=routing_of(queue, partition))


# --- topics ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _options(settings: tuple[tuple[str, str], ...]) -> StreamOptions:
    return options(dict(settings))


def options_of(stream: Stream) -> StreamOptions:
    """Settings of a topic that have an effect."""
    return _options(tuple(stream.settings.items()))


def settings_of_stream_partition(stream: Stream, number_in_stream: int) -> StreamSettings:
    """Return the settings of a topic's partition, by its number in the topic."""
    chosen = options_of(stream)
    return StreamSettings(
        partition=stream.partition_ids[number_in_stream],
        stream_id=stream.stream_id,
        version=stream.version,
        account=stream.account,
        topic=stream.name,
        topic_id=stream.topic_id,
        number=number_in_stream,
        retention_ms=chosen.retention_ms,
        retention_bytes=chosen.retention_bytes,
        has_retention=chosen.has_retention,
        append_time=chosen.append_time,
        batch_bytes_max=chosen.batch_bytes_max,
        ack_level=AckLevel[chosen.ack_level.upper()],
    )


def target_of_group(account: str, name: str, cluster: int) -> Target:
    """Return the target of calls for a consumer group, which is in this backend cluster."""
    return Target(group_partition(account, name, cluster), group_id(account, name), GROUP_VERSION)

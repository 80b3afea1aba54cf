"""The interface of a running incarnation to the work on its shards: checkpoints, hand-over and taking of shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from backend.journal.interface import Log
from backend.serving.partition import OpenPartition
from backend.serving.payload_cache import PayloadCache
from backend.serving.shards import Shard, Shards
from backend.serving.stream_partition import StreamPartition
from backend.serving.writer import PartitionWriter


class Served(Protocol):
    """An incarnation (:class:`backend.incarnation.Incarnation`)."""

    @property
    def log(self) -> Log: ...

    @property
    def shards(self) -> Shards: ...

    @property
    def partitions(self) -> Mapping[int, OpenPartition]:
        """Served partitions of queues, by id."""

    @property
    def payload_cache(self) -> PayloadCache: ...

    @property
    def writer(self) -> PartitionWriter: ...

    def opened(self, partitions: Sequence[OpenPartition], streams: Sequence[StreamPartition]) -> None:
        """Start serving these partitions."""

    def close_shard(self, shard: Shard) -> None:
        """Stop serving the shard, for its hand-over."""

    def reopen_shard(self, shard: Shard) -> None:
        """Serve the shard again, because its hand-over failed."""

"""The queues of a simulated cluster, as its metadata have them, with their maps, and the actor that changes these.

A read or a change is decided at one moment; how it gets there, and what goes wrong on the way, is whose process asks
(:class:`tests.simulator.checks.ledger.HostEntries`, :class:`tests.simulator.world.store.SimStore`).
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Protocol, TypeVar, cast

import msgspec

from backend.api import Peer
from backend.lookups import Resolver
from backend.resolver import StoreResolver
from frontend.queues.queues import Queues
from frontend.services import Services
from frontend.settings import FrontendSettings
from metadata_service.arn import QueueArn
from metadata_service.clusters.partition_map import with_partitions
from metadata_service.models import Partition, Queue
from metadata_service.nodes.cached_client import MetadataClient
from metadata_service.store import ConditionFailed, QueueNotFound

T = TypeVar("T")

ACCOUNT = "000000000000"
SETTINGS = FrontendSettings(encryption=False)


def arn_of(name: str) -> str:
    return str(QueueArn(SETTINGS.region, ACCOUNT, name))


class Catalog:
    """All queues."""

    def __init__(self, first_partition: int, changed: Callable[[Queue], None]) -> None:
        """``changed`` is called with each change of a queue when it takes effect."""
        self.queues: dict[int, Queue] = {}
        self.deleted: dict[int, Queue] = {}
        """Others, as they were last."""
        self.window_seconds = 60
        """Length of the windows of deduplication ids and of retry tokens."""
        self._next_partition = first_partition
        self._changed = changed

    @property
    def settings(self) -> FrontendSettings:
        """Settings of all frontends."""
        seconds = self.window_seconds
        return replace(SETTINGS, deduplication_window_seconds=seconds, send_retry_window_seconds=seconds)

    def new_partitions(self, count: int) -> list[int]:
        first = self._next_partition
        self._next_partition += count
        return list(range(first, first + count))

    def add(self, queue: Queue) -> None:
        """Keep this, in the place of what was kept of the queue."""
        self.queues[queue.queue_id] = queue
        self._changed(queue)

    def named(self, name: str) -> Queue:
        for queue in self.queues.values():
            if queue.name == name:
                return queue
        raise QueueNotFound(name)

    def delete(self, queue_id: int) -> Queue:
        queue = self.deleted[queue_id] = self.there(queue_id)
        del self.queues[queue_id]
        self._changed(msgspec.structs.replace(queue, version=queue.version + 1))
        return queue

    def last(self, queue_id: int) -> Queue:
        """A queue as it is, or as it was last."""
        return self.queues.get(queue_id) or self.deleted[queue_id]

    def update(self, queue_id: int, version: int, partitions: Sequence[Partition]) -> Queue:
        queue = self._unchanged(queue_id, version)
        changed = msgspec.structs.replace(with_partitions(queue, partitions), version=version + 1)
        self.add(changed)
        return changed

    def purge(self, queue_id: int, version: int) -> Queue:
        queue = self._unchanged(queue_id, version)
        purged = msgspec.structs.replace(queue, purge_id=queue.purge_id + 1, version=queue.version + 1)
        self.add(purged)
        return purged

    def there(self, queue_id: int) -> Queue:
        queue = self.queues.get(queue_id)
        if queue is None:
            raise QueueNotFound(str(queue_id))
        return queue

    def _unchanged(self, queue_id: int, version: int) -> Queue:
        queue = self.there(queue_id)
        if queue.version != version:
            raise ConditionFailed(f"queue {queue.name!r} has version {queue.version}, not {version}")
        return queue


class Asks(Protocol):
    """Function with which a process has the metadata decide something."""

    async def decided(self, decide: Callable[[], T], *, changes: bool) -> T: ...


class HostQueues:
    """The catalog, as one process reaches it.  As much of a :class:`~metadata_service.store.QueueStore` as is used."""

    def __init__(self, catalog: Catalog, asks: Asks) -> None:
        self._catalog = catalog
        self._asks = asks

    @property
    def settings(self) -> FrontendSettings:
        return self._catalog.settings

    async def new_partition_ids(self, cluster: int, count: int) -> list[int]:
        assert cluster == 0
        return await self._asks.decided(lambda: self._catalog.new_partitions(count), changes=True)

    async def get_queue(self, account: str, name: str) -> Queue:
        assert account == ACCOUNT
        return await self._asks.decided(lambda: self._catalog.named(name), changes=False)

    async def get_queue_by_id(self, queue_id: int) -> Queue | None:
        return await self._asks.decided(lambda: self._catalog.queues.get(queue_id), changes=False)

    async def update_queue(
        self, queue_id: int, version: int, *, now_ms: int, partitions: Sequence[Partition] | None = None
    ) -> Queue:
        assert partitions is not None
        return await self._asks.decided(lambda: self._catalog.update(queue_id, version, partitions), changes=True)

    async def begin_purge(self, queue_id: int, *, now_ms: int, interval_seconds: float) -> Queue:
        assert not interval_seconds
        while True:
            # A change takes effect, late or not, only on what it was computed from: so does the stores' own.
            queue = await self._asks.decided(lambda: self._catalog.there(queue_id), changes=False)
            with contextlib.suppress(ConditionFailed):
                return await self._asks.decided(partial(self._catalog.purge, queue_id, queue.version), changes=True)

    async def delete_queue(self, queue_id: int, *, now_ms: int) -> Queue:
        return await self._asks.decided(lambda: self._catalog.delete(queue_id), changes=True)


def queues_over(metadata: MetadataClient, backend: Peer, settings: FrontendSettings) -> Queues:
    """A frontend's view of queues: looked up in the metadata, called at this backend."""
    services = SimpleNamespace(settings=settings, metadata=metadata, backend=backend, naming=bytes(32))
    return Queues(cast(Services, services))


def resolver_over(store: HostQueues) -> Resolver:
    """A node's lookups of queues in the metadata."""
    return StoreResolver(store, store.settings)

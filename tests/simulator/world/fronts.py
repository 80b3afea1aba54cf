"""The frontends of a simulated cluster: what is in them between a call and the backend, as it is."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from backend import api
from backend.cluster.repartition import Splits
from backend.rpc.cluster_client import ClusterBackend
from frontend.queues.queues import Queues
from frontend.queues.view import QueueView
from metadata_service.models import Queue
from metadata_service.nodes.cached_client import MetadataClient
from metadata_service.store import QueueNotFound, QueueStore
from tests.simulator.world.catalog import ACCOUNT, HostQueues, queues_over, resolver_over
from tests.simulator.world.hosts import Host


class Front(Host):
    """One start of a frontend.  What it knows of a queue may be old, as it is there."""

    backend: ClusterBackend
    queues: Queues
    splits: Splits
    """Those who change maps sit with it."""

    def __init__(self, name: str, store: HostQueues) -> None:
        super().__init__(name)
        self._store = store
        self._metadata = MetadataClient(cast(QueueStore, store))

    def begin(self, backend: ClusterBackend) -> None:
        store = self._store
        self.backend = backend
        self.queues = queues_over(self._metadata, backend, store.settings)
        self.splits = Splits(store, backend, resolver_over(store), lambda: 0)

    async def stored(self, queue_id: int) -> Queue:
        """A queue as the metadata have it now."""
        queue = await self._store.get_queue_by_id(queue_id)
        if queue is None:
            raise QueueNotFound(str(queue_id))
        return queue

    def hear_of(self, queue: Queue) -> None:
        """Drop a changed queue from the cache, as an invalidation message, which may be lost, would."""
        self._metadata.outdate(queue.account, queue.name, queue.queue_id, queue.version)

    async def view_of(self, arn: str) -> QueueView:
        view = await self.queues.by_arn(arn, ACCOUNT)
        if view is None:
            raise QueueNotFound(arn)
        return view

    async def _call(self, arn: str, make: Callable[[api.Target], api.PartitionCommand[api.Answer]]) -> api.Answer:
        view = await self.view_of(arn)
        return await self.queues.call(view, make(view.target))

    async def send(self, arn: str, messages: Sequence[api.NewMessage]) -> list[api.SendResult]:
        return await self._call(arn, lambda target: api.Send(target, messages))

    async def receive(self, arn: str, options: api.ReceiveOptions) -> list[api.ReceivedMessage]:
        view = await self.view_of(arn)
        options = msgspec.structs.replace(options, dead_letter=await self.queues.dead_letter(view))
        return await self.queues.call(view, api.Receive(view.target, options))

    async def delete(self, arn: str, handles: Sequence[str]) -> list[api.HandleOutcome]:
        return await self._call(arn, lambda target: api.Delete(target, handles))

    async def change_visibility(self, arn: str, changes: Sequence[tuple[str, int]]) -> list[api.HandleOutcome]:
        return await self._call(arn, lambda target: api.ChangeVisibility(target, changes))

    async def counters(self, arn: str) -> api.Counters:
        return await self._call(arn, api.CountMessages)

    async def purge(self, arn: str) -> None:
        queue = await self._metadata.begin_purge((await self.view_of(arn)).queue, now_ms=0, interval_seconds=0)
        view = self.queues.view(queue)
        await self.queues.call(view, api.Purge(view.target, queue.purge_id))

    async def delete_queue(self, arn: str) -> None:
        """As an answer says it: no partition has anything of it any more."""
        queue = await self._metadata.delete((await self.view_of(arn)).queue, now_ms=0)
        await self.queues.drop(self.queues.view(queue))

    async def start_move(self, arn: str) -> Any:
        return await self._call(arn, lambda target: api.StartMove(target, None, 0))

    async def cancel_a_move(self, arn: str) -> None:
        view = await self.view_of(arn)
        tasks = await self.queues.call(view, api.ListMoves(view.target))
        if tasks:
            await self.queues.call(view, api.CancelMove(view.target, tasks[0].task_id))

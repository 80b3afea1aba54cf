"""The frontends of a simulated cluster: what is in them between a call and the backend, as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from backend.api import Counters, HandleOutcome, NewMessage, Receive, ReceivedMessage, SendResult
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
        """It is told that a queue has changed: a hint, which may be lost."""
        self._metadata.outdate(queue.account, queue.name, queue.queue_id, queue.version)

    async def _view(self, arn: str) -> QueueView:
        view = await self.queues.by_arn(arn, ACCOUNT)
        if view is None:
            raise QueueNotFound(arn)
        return view

    async def send(self, arn: str, messages: Sequence[NewMessage]) -> list[SendResult]:
        return await self.queues.run(await self._view(arn), self.backend.send, messages)

    async def receive(self, arn: str, command: Receive) -> list[ReceivedMessage]:
        view = await self._view(arn)
        command = msgspec.structs.replace(command, dead_letter=await self.queues.dead_letter(view))
        return await self.queues.run(view, self.backend.receive, command)

    async def delete(self, arn: str, handles: Sequence[str]) -> list[HandleOutcome]:
        return await self.queues.run(await self._view(arn), self.backend.delete, handles)

    async def change_visibility(self, arn: str, changes: Sequence[tuple[str, int]]) -> list[HandleOutcome]:
        return await self.queues.run(await self._view(arn), self.backend.change_visibility, changes)

    async def counters(self, arn: str) -> Counters:
        return await self.queues.run(await self._view(arn), self.backend.counters)

    async def purge(self, arn: str) -> None:
        queue = await self._metadata.begin_purge((await self._view(arn)).queue, now_ms=0, interval_seconds=0)
        await self.queues.run(self.queues.view(queue), self.backend.purge, queue.purge_id)

    async def delete_queue(self, arn: str) -> None:
        """As an answer says it: no partition has anything of it any more."""
        queue = await self._metadata.delete((await self._view(arn)).queue, now_ms=0)
        await self.queues.drop(self.queues.view(queue))

    async def start_move(self, arn: str) -> Any:
        return await self.queues.run(await self._view(arn), self.backend.start_move, None, 0)

    async def cancel_a_move(self, arn: str) -> None:
        view = await self._view(arn)
        tasks = await self.queues.run(view, self.backend.list_moves)
        if tasks:
            await self.queues.run(view, self.backend.cancel_move, tasks[0].task_id)

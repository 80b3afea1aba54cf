"""The frontends of a simulated cluster: what is in them between a call and the backend, as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from backend.api import Counters, HandleOutcome, NewMessage, Receive, Received, Stored
from backend.cluster import ClusterBackend
from backend.splits import Splits
from frontend.sqs.queues import Queues, QueueView
from tests.simulator.catalog import ACCOUNT, HostQueues, queues_over, resolver_over
from tests.simulator.hosts import Host


class Front(Host):
    """One start of a frontend.  What it knows of a queue may be old, as it is there."""

    backend: ClusterBackend
    queues: Queues
    splits: Splits
    """Those who change maps sit with it."""

    def begin(self, backend: ClusterBackend, store: HostQueues) -> None:
        self.backend = backend
        self.queues = queues_over(store, backend)
        self.splits = Splits(store, backend, resolver_over(store, backend), lambda: 0)

    async def _view(self, arn: str) -> QueueView:
        view = await self.queues.by_arn(arn, ACCOUNT)
        assert view is not None
        return view

    async def send(self, arn: str, messages: Sequence[NewMessage]) -> list[Stored]:
        return await self.queues.run(await self._view(arn), self.backend.send, messages)

    async def receive(self, arn: str, command: Receive) -> list[Received]:
        view = await self._view(arn)
        command = msgspec.structs.replace(command, dead_letter=await self.queues.dead_letter(view))
        return await self.queues.run(view, self.backend.receive, command)

    async def delete(self, arn: str, handles: Sequence[str]) -> list[HandleOutcome]:
        return await self.queues.run(await self._view(arn), self.backend.delete, handles)

    async def change_visibility(self, arn: str, changes: Sequence[tuple[str, int]]) -> list[HandleOutcome]:
        return await self.queues.run(await self._view(arn), self.backend.change_visibility, changes)

    async def counters(self, arn: str) -> Counters:
        return await self.queues.run(await self._view(arn), self.backend.counters)

    async def start_move(self, arn: str) -> Any:
        return await self.queues.run(await self._view(arn), self.backend.start_move, None, 0)

    async def cancel_a_move(self, arn: str) -> None:
        view = await self._view(arn)
        tasks = await self.queues.run(view, self.backend.list_moves)
        if tasks:
            await self.queues.run(view, self.backend.cancel_move, tasks[0].task_id)

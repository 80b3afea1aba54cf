"""A node whose journal is on tables in memory, for tests that control the tables' answers."""

import asyncio
from collections.abc import Collection
from pathlib import Path
from random import Random
from typing import Any

from backend.api import Peer
from backend.journal.cassandra.journal import CassandraJournal
from backend.journal.cassandra.log import CassandraLogSettings
from backend.journal.cassandra.table_interface import StateRead
from backend.node import Node, NodeSettings
from metadata_service.sqlite.store import SQLiteStore
from metadata_service.store import EntryStore
from tests.backend.nodes import NodeMachine, RestartableNode
from tests.simulator.world.quorum import Machines, QuorumTables


class OpenTables(QuorumTables):
    """Tables of logs that are never taken over while their writers live."""

    def __init__(self) -> None:
        super().__init__(Machines(Random(1)))

    def read_state(self, log_id: int, done: StateRead) -> None:
        asyncio.get_running_loop().call_soon(done, "open")


class SharedTables(QuorumTables):
    """Tables of one process on machines that several use; its fence is the state of the log's real entry."""

    def __init__(self, machines: Machines, entries: EntryStore) -> None:
        super().__init__(machines)
        self._entries = entries
        self._reads: set[asyncio.Task[None]] = set()

    def read_state(self, log_id: int, done: StateRead) -> None:
        async def read() -> None:
            (state,) = [entry.state for entry in await self._entries.logs() if entry.log_id == log_id]
            done(state)

        task = asyncio.get_running_loop().create_task(read())
        self._reads.add(task)
        task.add_done_callback(self._reads.discard)


class QuorumMachine(NodeMachine):
    """The nodes of several machines on tables in memory."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.tables = Machines(Random(1))

    async def start(self, name: str, shards: Collection[int] = (), peers: Peer | None = None, cluster: int = 0) -> Node:
        tables = SharedTables(self.tables, self.store.entries)
        # A node that serves nobody does not notice that it was taken for dead.
        log = CassandraLogSettings(segment_bytes=self.segment_bytes, idle_seconds=3600.0)
        node = self.nodes[name] = await Node.start_on(
            lambda: CassandraJournal(tables, log),
            self.store.entries,
            self.resolver,
            settings=NodeSettings(name, shards=shards, cluster=cluster),
            peers=peers,
        )
        return node


class QuorumNode(RestartableNode):
    log = CassandraLogSettings(segment_bytes=1 << 14, idle_seconds=0.05)

    def __init__(self, folder: Path, tables: OpenTables, **settings: Any) -> None:
        super().__init__(folder, **settings)
        self.tables = tables

    async def start(self) -> None:
        self.store = SQLiteStore(self.folder / "metadata.db")
        self.node = await Node.start_on(
            lambda: CassandraJournal(self.tables, self.log),
            self.store.entries,
            self.resolver,
            settings=self.settings,
            streams=self.resolver,
        )

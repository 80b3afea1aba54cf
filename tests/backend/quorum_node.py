"""A node whose journal is on tables in memory, for tests that control the tables' answers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

from backend.journal.cassandra.journal import CassandraJournal
from backend.journal.cassandra.log import CassandraLogSettings
from backend.journal.cassandra.table_interface import StateRead
from backend.node import Node
from metadata_service.sqlite.store import SQLiteStore
from tests.backend.nodes import RestartableNode
from tests.simulator.world.quorum import Machines, QuorumTables


class OpenTables(QuorumTables):
    """Tables of logs that are never taken over while their writers live."""

    def __init__(self) -> None:
        super().__init__(Machines(Random(1)))

    def read_state(self, log_id: int, done: StateRead) -> None:
        asyncio.get_running_loop().call_soon(done, "open")


class QuorumNode(RestartableNode):
    def __init__(self, folder: Path, tables: OpenTables) -> None:
        super().__init__(folder)
        self.tables = tables

    async def start(self) -> None:
        self.store = SQLiteStore(self.folder / "metadata.db")
        log = CassandraLogSettings(segment_bytes=1 << 14, idle_seconds=0.05)
        self.node = await Node.start_on(
            lambda: CassandraJournal(self.tables, log), self.store, self.resolver, settings=self.settings
        )

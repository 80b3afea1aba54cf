"""Conformance of the local journal, and of the one on Cassandra over tables in memory."""

from collections.abc import Coroutine
from random import Random
from typing import Any

import pytest

from backend.journal.cassandra.journal import CassandraJournal
from backend.journal.cassandra.log import CassandraLogSettings
from backend.journal.local.journal import LocalJournal
from metadata_service.models import LogEntry
from tests.backend.journal.conformance import JournalConformance
from tests.backend.journal.support import ROOT, SMALL, sim_disk, virtual
from tests.simulator.world.quorum import Machines, QuorumTables

SMALL_ROWS = CassandraLogSettings(segment_bytes=8192, segment_rows=10, row_bytes=2048, pending_bytes=16384)


class LocalWorld:
    def __init__(self) -> None:
        self.disk = sim_disk()

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        virtual(main)

    def journal(self) -> LocalJournal:
        return LocalJournal(self.disk, ROOT, SMALL)

    async def set_state(self, entry: LogEntry, state: str) -> None:
        """Set the state; the fence is the log's lock."""

    async def kill(self) -> None:
        self.disk.kill()


class QuorumWorld:
    """World in which some writes are late, some are lost, and the outcome of some is not known."""

    def __init__(self) -> None:
        self.machines = Machines(Random(3), lost=0.05, late=0.05)
        self.version = 0

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        virtual(main)

    def journal(self) -> CassandraJournal:
        return CassandraJournal(QuorumTables(self.machines), SMALL_ROWS)

    async def set_state(self, entry: LogEntry, state: str) -> None:
        self.version += 1
        self.machines.set_state(entry.log_id, state, self.version)

    async def kill(self) -> None:
        """Kill the writer; requests that it has sent still arrive."""


class TestLocal(JournalConformance):
    @pytest.fixture
    def world(self) -> LocalWorld:
        return LocalWorld()


class TestQuorum(JournalConformance):
    @pytest.fixture
    def world(self) -> QuorumWorld:
        return QuorumWorld()

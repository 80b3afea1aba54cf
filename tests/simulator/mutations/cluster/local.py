"""Rules of local files, taken out."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from backend.journal.local.journal import LocalJournal
from metadata_service.models import LogEntry
from tests.simulator.mutations.cluster import focus
from tests.simulator.mutations.cluster.registry import mutation
from tests.simulator.world.cluster import ClusterWorld
from tests.simulator.world.disk import SimDisk


@mutation("Local files", local=True, focus=focus.stopped_owners)
def lock_not_asked(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A log is taken over although the process that holds its lock lives: it may have been stopped."""
    real = SimDisk.lock

    def lock(self: SimDisk, path: str) -> int:
        file = self._names.get(path)
        if file is not None:
            file.locked_by = None
        return real(self, path)

    return mock.patch.object(SimDisk, "lock", lock)


@mutation("Local files", local=True, focus=focus.power_after_seals)
def local_tail_not_rewritten(world: ClusterWorld) -> AbstractContextManager[Any]:
    """Recovery builds on rows that it has read from the page cache and the disk never got."""

    async def finalize(self: LocalJournal, entry: LogEntry, end: Any) -> None:
        return None

    return mock.patch.object(LocalJournal, "finalize", finalize)

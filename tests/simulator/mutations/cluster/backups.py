"""Rules of backups (``docs/decisions/0019-logs-are-held-for-a-backup.md``), taken out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

from backend.recovery.checkpointer import Checkpointer
from holdfast.backup.cassandra_moment import ClusterHold
from metadata_service.models import BackupPin
from tests.simulator.mutations.cluster import focus
from tests.simulator.mutations.cluster.registry import mutation
from tests.simulator.world.cluster import ClusterWorld


@mutation("Backups", focus=focus.backups)
@contextmanager
def held_logs_answer(world: ClusterWorld) -> Iterator[None]:
    """A log that is held answers all the same."""
    world.ledger.holds_seen = False
    yield


@mutation("Backups", focus=focus.slow_backups)
def holds_taken_to_have_lasted(world: ClusterWorld) -> AbstractContextManager[Any]:
    """Nobody asks whether the holds were there until the end."""
    real = ClusterHold.release

    async def release(self: ClusterHold, name: str) -> bool:
        await real(self, name)
        return True

    return mock.patch.object(ClusterHold, "release", release)


@mutation("Backups", focus=focus.backups)
def held_segments_dropped(world: ClusterWorld) -> AbstractContextManager[Any]:
    """Sweeps do not ask what backups hold."""

    async def backups(self: Checkpointer) -> list[BackupPin]:
        return []

    return mock.patch.object(Checkpointer, "_backups", backups)

"""The out-cluster manager (:mod:`metadata_service.clusters.manager`) as part of a process.

On many machines it is a process of its own (:mod:`holdfast.process.manager_role`), on one machine it runs in each of
several backends.  It has no state of its own: any number of candidates may run, of which the elected one acts.
"""

from __future__ import annotations

import asyncio

from backend.api import BackendError, Peer
from backend.cluster.repartition import LINGER_SECONDS, Splits
from backend.lookups import Resolver
from holdfast.process.node import now_ms
from holdfast.process.serve import log
from holdfast.settings import Settings
from metadata_service.clusters.directory import ClusterDirectory
from metadata_service.clusters.election import Election
from metadata_service.clusters.manager import Manager, MapChangeFailed
from metadata_service.clusters.policy import SplitRule
from metadata_service.store import MetadataStore, StoreError


class Managing:
    """A candidate in the manager's election, from :meth:`start` to :meth:`close`."""

    def __init__(
        self,
        metadata: MetadataStore,
        fleet: ClusterDirectory,
        peer: Peer,
        resolver: Resolver,
        name: str,
        rule: SplitRule | None,
    ) -> None:
        """Set up a candidate.

        ``peer`` calls the nodes of all clusters.  The ``fleet`` is not started yet, and is closed here.  ``rule``:
        None: only an operator splits and drains queues.
        """
        self._fleet = fleet
        self._election = Election(metadata.clusters, name, listed=True)
        self._manager = Manager(
            metadata, fleet, self._election, BackendMapChanges(metadata.queues, peer, resolver, now_ms), rule=rule
        )
        self._working: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the candidate.  Raises :class:`~metadata_service.store.StoreError`, if the metadata cannot be read."""
        await self._fleet.start()
        self._working = asyncio.get_running_loop().create_task(self._manager.run(), name="the out-cluster manager")

    async def close(self) -> None:
        """Stop; another candidate can be elected at once."""
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait([self._working])
            try:
                await self._election.resign()
            except StoreError as error:
                log.warning("the next manager has to wait for the failure detection of this one: %s", error)
        await self._fleet.close()


class BackendMapChanges(Splits):
    """Implements :class:`metadata_service.clusters.manager.MapChanges`."""

    async def finish(self, queue_id: int, *, linger_seconds: int = LINGER_SECONDS) -> bool:
        try:
            return await super().finish(queue_id, linger_seconds=linger_seconds)
        except BackendError as error:
            raise MapChangeFailed(str(error) or type(error).__name__) from error


def rule_of(settings: Settings) -> SplitRule | None:
    """Return the rule for splitting queues by their rates; None: never split."""
    return SplitRule(partition_rate=settings.partition_rate) if settings.partition_rate else None

"""Distribution of the queues that push over the frontends.

While there are such queues, each frontend reports periodically as a candidate
(:mod:`metadata_service.clusters.election`), and each queue is pushed by the live candidate that rendezvous hashing
selects.  There is no lease: for a moment two frontends may push a queue, which share its messages as any two consumers
do.  A frontend that ends resigns; the queues of one that is killed are taken over :data:`LIVE_SECONDS` after its last
report.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final, Protocol

from frontend.push import instruments
from frontend.push.endpoint import Endpoints
from frontend.push.queue_pusher import PushContext, QueuePusher
from frontend.services import Services
from metadata_service.clusters.election import Election
from metadata_service.models import Candidate, ManagerEntry
from metadata_service.store import ClusterRegistry, QueueStore, StoreError
from telemetry.metrics import Registry

STAND_SECONDS: Final = 2.0
ASK_PART: Final = 20
"""The queues that push are listed again after this many times the time that it took, so that many of them cost no more
than a small part of the store's time; and after :data:`STAND_SECONDS` at the earliest."""
ASK_SECONDS_MAX: Final = 60.0
LIVE_SECONDS: Final = 25.0
"""Time without a report after which a candidate counts as ended: two reports may be late."""
DRAIN_SECONDS: Final = 5.0
"""Time limit for calls in progress when the process ends."""
HANDOVER_SECONDS: Final = 60.0
"""Time limit for calls in progress when another frontend pushes the queue: no call takes longer."""

logger = logging.getLogger("holdfast.push")

_Name = tuple[str, str]
"""Account and name of a queue."""


class _Office:
    """Adapter of :class:`metadata_service.clusters.election.Office` to the pushers' entry."""

    def __init__(self, store: ClusterRegistry) -> None:
        self._store = store
        self.entry = ManagerEntry()
        """Entry at the last read."""

    async def manager(self) -> ManagerEntry:
        self.entry = await self._store.pushers()
        return self.entry

    async def update_manager(self, entry: ManagerEntry) -> ManagerEntry:
        self.entry = await self._store.update_pushers(entry)
        return self.entry


class PushStore(Protocol):
    """The parts of the metadata that pushers use (:class:`metadata_service.store.MetadataStore`)."""

    @property
    def queues(self) -> QueueStore: ...

    @property
    def clusters(self) -> ClusterRegistry: ...


class Pushers:
    """Pushes this frontend's part of the queues, from :meth:`start` to :meth:`close`."""

    def __init__(
        self,
        services: Services,
        store: PushStore,
        endpoints: Endpoints,
        name: str,
        *,
        alone: bool,
        election: Election | None = None,
    ) -> None:
        """``name``: this process's, unique among the candidates.  ``alone``: there are no other frontends."""
        self._services = services
        self._store = store
        self._endpoints = endpoints
        self._name = name
        self._office = _Office(store.clusters)
        self._election = (
            None
            if alone
            else election
            or Election(self._office, name, title="the first of the processes that push messages", listed=True)
        )
        self._standing = False
        self._live = _Live()
        self.context = PushContext(services, endpoints)
        self._queues: list[_Name] = []
        """All queues that push."""
        self._ask_due = 0.0
        self._pushers: dict[_Name, QueuePusher] = {}
        self._stopping: set[asyncio.Task[None]] = set()
        self._running: asyncio.Task[None] | None = None
        self._failing = False
        self._closed = False

    def start(self) -> None:
        self._running = asyncio.get_running_loop().create_task(self._run(), name="the pushers of queues")

    async def close(self) -> None:
        """Stop receiving, wait a moment for the calls in progress, and let other frontends push at once.  May be
        called more than once."""
        if self._closed:
            return
        self._closed = True
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        for name in list(self._pushers):
            self._stop(name, DRAIN_SECONDS)
        if self._stopping:
            _, late = await asyncio.wait(self._stopping, timeout=2 * DRAIN_SECONDS)
            for task in late:
                task.cancel()
        await self.context.close()
        if self._election is not None and self._standing:
            try:
                await self._election.resign()
            except StoreError as error:
                logger.warning("this process's queues are not pushed until others notice that it has ended: %s", error)
        self._endpoints.close()

    def register_metrics(self, registry: Registry) -> None:
        instruments.register(
            registry,
            lambda: len(self._pushers),
            lambda: sum(one.paused for one in self._pushers.values()),
            lambda: self.context.calls,
        )

    async def _run(self) -> None:
        while True:
            try:
                await self.turn()
            except StoreError as error:
                # The queues that are pushed go on: a second pusher does no harm.
                if not self._failing:
                    logger.error("it cannot be read now which queues push their messages: %s", error)
                self._failing = True
            except Exception:
                logger.exception("it cannot be read now which queues push their messages")
            else:
                self._failing = False
            await asyncio.sleep(STAND_SECONDS)

    async def turn(self) -> None:
        """Start and stop pushers as necessary; to be called every other second.  Raises :class:`StoreError`."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now >= self._ask_due:
            self._queues = await self._active(await self._store.queues.push_queues())
            took = loop.time() - now
            self._ask_due = now + min(ASK_SECONDS_MAX, max(STAND_SECONDS, ASK_PART * took))
        own = await self._own()
        for name in own:
            pusher = self._pushers.get(name)
            if pusher is not None and pusher.ended:
                self._stop(name, DRAIN_SECONDS)
                pusher = None
            if pusher is None:
                pusher = self._pushers[name] = QueuePusher(self.context, *name)
                pusher.start()
        for name in self._pushers.keys() - own:
            self._stop(name, HANDOVER_SECONDS)

    async def _active(self, queues: list[_Name]) -> list[_Name]:
        """Queues of active tenants."""
        active = {}
        for account in {account for account, _ in queues}:
            tenant = await self._services.credentials.store.get_tenant(account)
            active[account] = tenant is not None and tenant.state == "active"
        return [name for name in queues if active[name[0]]]

    async def _own(self) -> set[_Name]:
        """Queues that this process has to push."""
        if self._election is None:
            return set(self._queues)
        if not self._queues:
            if self._standing:
                await self._election.resign()
                self._standing = False
            return set()
        self._standing = True
        await self._election.stand()
        live = self._live.names(self._office.entry.candidates, _now())
        if self._name not in live:
            return set()
        return {name for name in self._queues if owner_of(name, live) == self._name}

    def _stop(self, name: _Name, seconds: float) -> None:
        pusher = self._pushers.pop(name)
        stopping = asyncio.get_running_loop().create_task(pusher.stop(seconds), name="end of a pusher")
        self._stopping.add(stopping)
        stopping.add_done_callback(self._stopping.discard)


def _now() -> float:
    return asyncio.get_running_loop().time()


class _Live:
    """Candidates that report.  Times of other machines are only compared with earlier ones of the same machine."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[tuple[str, int], float]] = {}
        """The last report of each candidate, and when it was first seen here."""

    def names(self, candidates: Iterable[Candidate], now: float) -> list[str]:
        seen: dict[str, tuple[tuple[str, int], float]] = {}
        for one in candidates:
            if one.gone_ms:
                continue
            report, known = (one.start, one.time_ms), self._seen.get(one.name)
            seen[one.name] = known if known is not None and known[0] == report else (report, now)
        self._seen = seen
        return [name for name, (_, at) in seen.items() if now - at < LIVE_SECONDS]


def owner_of(queue: _Name, candidates: Iterable[str]) -> str:
    """The candidate that pushes a queue, by rendezvous hashing."""
    text = f"{queue[0]}/{queue[1]}"

    def weight(name: str) -> bytes:
        return blake2b(f"{text}\0{name}".encode(), digest_size=8).digest()

    return max(candidates, key=weight)

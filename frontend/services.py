"""The frontend's dependencies: settings, clock, and the services behind it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from auth.audit import AuditLog
from auth.encryption.keyring import Keyring
from auth.lookup import Credentials
from auth.tokens.jwts import TokenIssuer
from auth.tokens.service_keys import ServiceKeys
from auth.tokens.sessions import Sessions
from backend.api import Backend
from billing.lake.uploader import UsageUploader
from billing.metering.meter import Meter
from billing.reports.reader import Reader
from frontend.http.bodies import Room
from frontend.http.long_polls import LongPolls
from frontend.settings import FrontendSettings
from metadata_service.clusters.directory import ClusterDirectory
from metadata_service.models import ClusterReport
from metadata_service.nodes.cached_client import MetadataClient
from metadata_service.nodes.cached_streams import StreamClient
from metadata_service.nodes.cached_topics import TopicClient
from ratelimit.limiter import BaseLimiter, Limiter

if TYPE_CHECKING:
    from auth.tokens.oidc import Oidc
    from frontend.alarms.alarms import Alarms
    from frontend.document_jobs import Documents
    from telemetry.metrics import Registry
    from telemetry.spans import Tracing


class AlarmEvaluator(Protocol):
    """Evaluates alarms (:class:`frontend.alarm_keeper.Keeper`)."""

    def start(self) -> None: ...

    async def close(self) -> None: ...


class UsagePublisher(Protocol):
    """Publishes usage records to a topic (:class:`frontend.usage_stream.UsageStream`)."""

    def start(self) -> None:
        """Start, once the backend can be called."""

    async def close(self) -> None: ...


class MessagePusher(Protocol):
    """Pushes messages of queues (:class:`frontend.push.pushers.Pushers`)."""

    def start(self) -> None: ...

    def register_metrics(self, registry: Registry) -> None: ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class Services:
    """All dependencies of operations; created once by the code that composes the process."""

    settings: FrontendSettings
    credentials: Credentials
    metadata: MetadataClient
    backend: Backend
    clock: Callable[[], float] = time.time
    """Seconds since the epoch: for signatures, and for the times of queues."""
    streams: StreamClient | None = None
    """Streams (Kafka's topics); None: there are none."""
    topics: TopicClient | None = None
    """Topics of SNS's protocol; None: there are none."""
    polls: LongPolls = field(default_factory=LongPolls)
    serving: Callable[[], bool] = lambda: True
    """Function that returns True while the backend takes calls."""
    damaged: Callable[[], int] = lambda: 0
    """Function that counts stored data that cannot be served because the journal is damaged."""
    audit: AuditLog | None = None
    """Audit log; None: none is kept."""
    keyring: Keyring | None = None
    """Keyring; None: messages are not encrypted."""
    limiter: BaseLimiter[Any] = field(default_factory=Limiter)
    """Counts calls against the rates of tenants."""
    oidc: Oidc | None = None
    """Trusted outside issuer; None: none."""
    naming: bytes = b""
    """Secret of the service, the same in all processes and at each start: the key for hashes of deduplication ids."""
    bodies: Room = field(default_factory=Room)
    meter: Meter | None = None
    """Meters answered calls; None: not metered."""
    uploader: UsageUploader | None = None
    """Uploads usage to the lake; None: another process does."""
    publisher: UsagePublisher | None = None
    """Publishes uploaded usage as a stream too; None: it is not published, or by another process."""
    lake: Reader | None = None
    """Reader of summed usage; None: there is none."""
    documents: Documents | None = None
    """Jobs that make documents of invoices; None: usage is not metered."""
    tracing: Tracing | None = None
    """Creates spans of calls; None: tracing is off."""
    fleet: ClusterDirectory | None = None
    """Directory of backend clusters, over which new queues are distributed; None: there is just one."""
    alone: Callable[[], Awaitable[ClusterReport]] | None = None
    """Report of the backend if it is in this process."""
    alarms: Alarms | None = None
    """Alarms of tenants on their queues; None: there are none."""
    keeper: AlarmEvaluator | None = None
    """Evaluates alarms, unless another process does."""
    pusher: MessagePusher | None = None
    """Pushes messages of queues; None: none are pushed."""
    sessions: Sessions = field(init=False)
    tokens: TokenIssuer = field(init=False)

    def __post_init__(self) -> None:
        store = self.credentials.store
        self.sessions = Sessions(ServiceKeys(store, "session", clock=self.clock))
        self.tokens = TokenIssuer(ServiceKeys(store, "token", clock=self.clock))

    async def close(self) -> None:
        """Write pending data and release everything except the backend and the metadata."""
        await self.stop_publishing()
        if self.documents is not None:
            await self.documents.close()
        if self.pusher is not None:
            await self.pusher.close()
        if self.keeper is not None:
            await self.keeper.close()
        if self.alarms is not None:
            await self.alarms.close()
        await self.limiter.close()
        await self.credentials.close()
        if self.oidc is not None:
            await self.oidc.close()
        if self.audit is not None:
            self.audit.close()
        if self.uploader is not None:
            await self.uploader.close()
        if self.meter is not None:
            await self.meter.close()
        if self.tracing is not None:
            await self.tracing.close()

    async def stop_publishing(self) -> None:
        """Publish no more usage: the backend is about to be closed."""
        if self.publisher is not None:
            await self.publisher.close()

    def now_ms(self) -> int:
        return int(self.clock() * 1000)

    def clusters_for(self, account: str, name: str, partitions: int) -> list[int]:
        """Choose the backend clusters for a new queue's partitions, by number.

        Raises :class:`~metadata_service.clusters.policy.NoCluster`.
        """
        if self.fleet is None:
            return [0] * partitions
        key = f"{account}/{name}"
        return [self.fleet.assign(f"{key}/{place}" if place else key) for place in range(partitions)]

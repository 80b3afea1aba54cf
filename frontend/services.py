"""What the frontend works with: settings, clock, and the services behind it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from auth.audit import AuditLog
from auth.jwts import Tokens
from auth.keyring import Keyring
from auth.lookup import Credentials
from auth.service_keys import ServiceKeys
from auth.sessions import Sessions
from backend.api import Backend
from billing.meter import Meter
from billing.reader import Reader
from billing.sealer import Sealer
from frontend.bodies import Room
from frontend.polls import LongPolls
from frontend.settings import FrontendSettings
from metadata_service.client import MetadataClient
from metadata_service.fleet import Fleet
from metadata_service.models import ClusterReport
from ratelimit.limiter import BaseLimiter, Limiter

if TYPE_CHECKING:
    from auth.oidc import Oidc
    from frontend.alarms.alarms import Alarms
    from frontend.alarms.keeper import Keeper
    from telemetry.spans import Tracing


@dataclass(slots=True)
class Services:
    """Everything that operations use; made once, by whoever composes the process."""

    settings: FrontendSettings
    credentials: Credentials
    metadata: MetadataClient
    backend: Backend
    clock: Callable[[], float] = time.time
    """Seconds since the epoch: for signatures, and for the times of queues."""
    polls: LongPolls = field(default_factory=LongPolls)
    serving: Callable[[], bool] = lambda: True
    """Whether the backend takes calls now."""
    damaged: Callable[[], int] = lambda: 0
    """How much of what is stored cannot be served, because the journal is damaged there."""
    audit: AuditLog | None = None
    """None: no audit log is kept."""
    keyring: Keyring | None = None
    """None: messages are not encrypted."""
    limiter: BaseLimiter[Any] = field(default_factory=Limiter)
    """Counts calls against the rates of tenants."""
    oidc: Oidc | None = None
    """None: no outside issuer is trusted."""
    naming: bytes = b""
    """A secret of the service, the same in all processes and at each start: deduplication ids are hashed with it."""
    bodies: Room = field(default_factory=Room)
    meter: Meter | None = None
    """Counts what is answered; None: nobody does."""
    sealer: Sealer | None = None
    """Brings what was counted to the lake; None: another process does."""
    lake: Reader | None = None
    """What was made of the usage that was counted; None: none is."""
    tracing: Tracing | None = None
    """Makes spans of calls; None: nobody does."""
    fleet: Fleet | None = None
    """The backend clusters, among which new queues are shared out; None: there is just one."""
    alone: Callable[[], Awaitable[ClusterReport]] | None = None
    """Where the backend is in this process: what there is to tell of it."""
    alarms: Alarms | None = None
    """Those of tenants on their queues; None: there are none."""
    keeper: Keeper | None = None
    """Looks after alarms, unless another process does."""
    sessions: Sessions = field(init=False)
    tokens: Tokens = field(init=False)

    def __post_init__(self) -> None:
        store = self.credentials.store
        self.sessions = Sessions(ServiceKeys(store, "session", clock=self.clock))
        self.tokens = Tokens(ServiceKeys(store, "token", clock=self.clock))

    async def close(self) -> None:
        """Write what remains and let go of all that is behind, but for the backend and the metadata."""
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
        if self.sealer is not None:
            await self.sealer.close()
        if self.meter is not None:
            await self.meter.close()
        if self.tracing is not None:
            await self.tracing.close()

    def now_ms(self) -> int:
        return int(self.clock() * 1000)

    def clusters_for(self, account: str, name: str, partitions: int) -> list[int]:
        """The numbers of the backend clusters for a new queue's partitions.

        Raises :class:`~metadata_service.clusters.NoCluster`.
        """
        if self.fleet is None:
            return [0] * partitions
        key = f"{account}/{name}"
        return [self.fleet.assign(f"{key}/{place}" if place else key) for place in range(partitions)]

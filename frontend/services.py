"""What the frontend works with: settings, clock, and the services behind it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from auth.audit import AuditLog
from auth.keyring import Keyring
from auth.lookup import Credentials
from backend.api import Backend
from frontend.polls import LongPolls
from frontend.settings import FrontendSettings
from metadata_service.client import MetadataClient
from ratelimit.limiter import BaseLimiter, Limiter


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
    audit: AuditLog | None = None
    """None: no audit log is kept."""
    keyring: Keyring | None = None
    """None: messages are not encrypted."""
    limiter: BaseLimiter[Any] = field(default_factory=Limiter)
    """Counts calls against the rates of tenants."""

    def now_ms(self) -> int:
        return int(self.clock() * 1000)

"""What the frontend works with: settings, clock, and the services behind it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from auth.audit import AuditLog
from auth.credentials import AccessKey
from backend.api import Backend
from frontend.polls import LongPolls
from frontend.settings import FrontendSettings
from metadata_service.client import MetadataClient


class Keys(Protocol):
    """Access keys (:class:`auth.credentials.Credentials`)."""

    def cached(self, access_key_id: str) -> AccessKey | None:
        """The key, if it is known without waiting."""

    async def find(self, access_key_id: str) -> AccessKey | None:
        """The key, active or not; None if there is none."""


@dataclass(slots=True)
class Services:
    """Everything that operations use; made once, by whoever composes the process."""

    settings: FrontendSettings
    keys: Keys
    metadata: MetadataClient
    backend: Backend
    clock: Callable[[], float] = time.time
    """Seconds since the epoch: for signatures, and for the times of queues."""
    polls: LongPolls = field(default_factory=LongPolls)
    serving: Callable[[], bool] = lambda: True
    """Whether the backend takes calls now."""
    audit: AuditLog | None = None
    """None: no audit log is kept."""

    def now_ms(self) -> int:
        return int(self.clock() * 1000)

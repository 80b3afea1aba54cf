"""Dependencies of every operation besides its call."""

from __future__ import annotations

import logging

from backend.api import Backend
from frontend.queues.encryption import Seals
from frontend.queues.queues import Queues
from frontend.request.access import Access
from frontend.request.retries import Retries
from frontend.request.throttle import Throttle
from frontend.request.unacknowledged_sends import UnacknowledgedSends
from frontend.services import Services
from metadata_service.nodes.cached_client import MetadataClient


class Context:
    """The services, and objects derived from them."""

    __slots__ = (
        "access",
        "backend",
        "log",
        "metadata",
        "queues",
        "retries",
        "seals",
        "services",
        "throttle",
        "unacknowledged",
    )

    def __init__(self, services: Services) -> None:
        self.services = services
        self.backend: Backend = services.backend
        self.metadata: MetadataClient = services.metadata
        self.queues = Queues(services)
        self.retries = Retries(self.queues, services.backend, services.settings.send_retry_window_seconds)
        self.unacknowledged = UnacknowledgedSends(self.retries)
        self.seals = Seals(services.keyring)
        self.access = Access(services, self.queues)
        self.throttle = Throttle(services)
        self.log = logging.getLogger("holdfast.sqs")

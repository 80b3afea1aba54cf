"""Dependencies of every operation besides its call."""

from __future__ import annotations

import logging

from backend.api import Backend
from frontend.access import Access
from frontend.dedup import Retries
from frontend.services import Services
from frontend.sqs.queues import Queues
from frontend.sqs.seals import Seals
from frontend.throttle import Throttle
from frontend.unawaited import Unawaited
from metadata_service.client import MetadataClient


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
        "unawaited",
    )

    def __init__(self, services: Services) -> None:
        self.services = services
        self.backend: Backend = services.backend
        self.metadata: MetadataClient = services.metadata
        self.queues = Queues(services)
        self.retries = Retries(self.queues, services.backend, services.settings.send_retry_window_seconds)
        self.unawaited = Unawaited(self.retries)
        self.seals = Seals(services.keyring)
        self.access = Access(services, self.queues)
        self.throttle = Throttle(services)
        self.log = logging.getLogger("holdfast.sqs")

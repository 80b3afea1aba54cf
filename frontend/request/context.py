"""The actions of SQS, and what each needs besides its call."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import msgspec

from frontend.queues.encryption import MessageEncryption, Render
from frontend.queues.queues import Queues
from frontend.queues.view import QueueView
from frontend.request.access import Access
from frontend.request.request import Call, Members
from frontend.request.retries import Retries
from frontend.request.throttle import Throttle
from frontend.request.unacknowledged_sends import UnacknowledgedSends
from frontend.services import Services
from metadata_service.nodes.cached_client import MetadataClient


class Context:
    """The services, and objects derived from them."""

    __slots__ = (
        "access",
        "encryption",
        "log",
        "metadata",
        "queues",
        "retries",
        "services",
        "throttle",
        "unacknowledged",
    )

    def __init__(self, services: Services, render: Render) -> None:
        """``render``: makes messages of what topics delivered."""
        self.services = services
        self.metadata: MetadataClient = services.metadata
        self.queues = Queues(services)
        self.retries = Retries(self.queues, services.settings.send_retry_window_seconds)
        self.unacknowledged = UnacknowledgedSends(self.retries)
        self.encryption = MessageEncryption(services.keyring, render, encrypts=services.settings.encryption)
        self.access = Access(services, self.queues)
        self.throttle = Throttle(services)
        self.log = logging.getLogger("holdfast.sqs")


class SqsAction(msgspec.Struct, frozen=True, kw_only=True):
    """An action of SQS."""

    name: str
    audited: bool = False
    """True for administration: what changes more than single messages is answered after its audit record."""


class QueueAction(SqsAction, frozen=True, kw_only=True):
    """An action on a queue, which is found first.

    It is possible without a signature if the queue's policy allows all callers.
    """

    run: Callable[[Context, Call, QueueView, Members], Awaitable[Members | None]]
    sends: bool = False
    """True if it creates messages, and their queue if the settings say so."""


class AccountAction(SqsAction, frozen=True, kw_only=True):
    """An action that does not name a queue by its URL."""

    run: Callable[[Context, Call, Members], Awaitable[Members | None]]
    at_queue_url: bool = True
    """False if it is invalid for the endpoint, as in SQS, when sent to the URL of a queue."""

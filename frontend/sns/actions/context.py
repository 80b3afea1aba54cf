"""Needs of SNS's actions besides their call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from auth.principal import Scope
from frontend.request.context import Context
from frontend.request.request import Call, Members
from frontend.sns.actions.access import TopicAccess
from frontend.sns.messages.signing import SigningKeys
from frontend.sns.topics.deliveries import DeliveryPlanner, PublicationSender
from frontend.sns.topics.notifications import NotificationCounter
from frontend.sns.topics.view import Topics
from metadata_service.nodes.cached_topics import TopicClient


class SnsContext:
    """The services, and objects derived from them."""

    __slots__ = ("access", "base", "notifications", "planner", "sender", "services", "signing", "topics")

    def __init__(self, base: Context, client: TopicClient, sender: PublicationSender) -> None:
        self.base = base
        """Context of SQS's actions."""
        self.services = base.services
        self.topics = Topics(base.services, base.queues, client)
        self.access = TopicAccess(base.services, self.topics)
        self.planner = DeliveryPlanner(base.services, base.queues, base.throttle)
        self.notifications = NotificationCounter(base.services, base.queues)
        self.signing = SigningKeys(base.services.credentials.store, clock=base.services.clock)
        self.sender = sender


class SnsAction(msgspec.Struct, frozen=True, kw_only=True):
    """An action of SNS."""

    name: str
    run: Callable[[SnsContext, Call, Members], Awaitable[Members | None]]
    audited: bool = False
    """True for administration: it is answered after its audit record."""
    limit: Scope = "manage"
    """Class of the call in the limits of the caller's account."""
    unsigned: bool = False
    """True if it is possible without a signature, by something that only its caller knows."""

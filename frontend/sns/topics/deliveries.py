"""The deliveries of a publication: the queues that it goes to, decided before it is stored.

For each confirmed subscription of a topic the filter policy is evaluated; the queue has to exist, and its policy has to
let the topic in.  What cannot be delivered goes to the subscription's dead-letter queue, on the same conditions, or is
dropped and counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

import msgspec

from auth.policies.policies import Decision, ServicePrincipal
from frontend.queues.queues import Queues
from frontend.queues.view import QueueView
from frontend.request.request import Call, Members, Retry
from frontend.services import Services
from frontend.sns.filters.message import FilterMessage
from frontend.sns.messages.publication import PublicationContent, PublishedMessage
from frontend.sns.topics.policies import SERVICE_NAME
from frontend.sns.topics.view import SubscriptionView, TopicView
from frontend.sqs.protocol.limits import MESSAGE_ATTRIBUTES_MAX
from metadata_service.arn import QueueArn
from telemetry.metrics import Counter, Registry

TURN = 100
"""Number of subscriptions that are evaluated before other calls get their turn."""

DELIVERIES = Counter(
    "holdfast_topic_deliveries_total",
    "Deliveries of publications that were decided, by outcome: queued; or, for what could not be delivered, "
    "dead_letter (to the subscription's dead-letter queue) or dropped.",
    labels=("outcome",),
    series_max=4,
)
_SNS = ServicePrincipal(SERVICE_NAME)


class PlannedDelivery(msgspec.Struct, frozen=True):
    """One queue that a publication is to be delivered to."""

    queue: QueueView
    subscription_id: bytes
    raw: bool
    """True if the message is delivered as it was published, without SNS's JSON."""
    dead_letter: bool = False
    """True if the queue is the subscription's dead-letter queue."""


class PreparedPublication(msgspec.Struct, frozen=True):
    """A publication with all that is needed to store it."""

    content: PublicationContent
    """Content to be encrypted and stored: for the topic's owner, under :attr:`TopicView.key_name`."""
    deliveries: tuple[PlannedDelivery, ...]
    group: str | None
    deduplication_id: str
    """Deduplication id of a publication to a FIFO topic, given or computed of its message; otherwise empty."""
    size: int
    """Bytes that count towards limits."""


class PublicationOutcome(NamedTuple):
    """Outcome of storing a publication."""

    message_id: str
    """Id of the publication, also of one that was not stored because its deduplication id was seen."""
    sequence_number: str | None
    """20 digits, for FIFO topics."""


class PublicationSender(Protocol):
    """Stores publications, and carries them to their queues."""

    async def retry_of(self, call: Call, topic: TopicView, members: Members) -> Retry | None:
        """The token of a call that publishes; None: it has none.  Raises InvalidParameterValue."""

    async def publish(
        self, call: Call, topic: TopicView, publications: Sequence[PreparedPublication]
    ) -> Sequence[PublicationOutcome | Exception]:
        """Store publications to one topic durably; each is then delivered exactly once to each of its queues.

        A call with a token (:attr:`Call.retry`) takes effect once, however often it arrives.  Outcomes are in the
        order of the publications; an exception, an :class:`SqsError` or one of the backend's, is that of a publication
        that was not stored.  Raises such an error if none was.
        """

    async def confirm(self, topic: TopicView, queue: QueueView, body: str) -> None:
        """Send a message that asks for the confirmation of a subscription to its queue.  Raises the backend's
        errors."""


class DeliveryPlanner:
    """Decides the deliveries of publications."""

    def __init__(self, services: Services, queues: Queues) -> None:
        self._clock = services.clock
        self._region = services.settings.region
        self._queues = queues

    async def plan(
        self, topic: TopicView, subscriptions: Sequence[SubscriptionView], message: PublishedMessage
    ) -> tuple[PlannedDelivery, ...]:
        """The deliveries of a publication to a topic with these subscriptions."""
        filtered = FilterMessage(message.attributes, message.message)
        found: list[PlannedDelivery] = []
        for count, one in enumerate(subscriptions, 1):
            if one.filter is None or one.filter.matches(filtered):
                delivery = await self._delivery(topic, one, message)
                if delivery is not None:
                    found.append(delivery)
            if count % TURN == 0:
                await asyncio.sleep(0)
        return tuple(found)

    async def permitted_queue(self, topic: TopicView, named: QueueArn) -> QueueView | None:
        """The queue with this ARN if it exists, and its policy lets the topic in."""
        view = await self.queue(named)
        return view if view is not None and self.lets_in(topic, view) else None

    async def queue(self, named: QueueArn) -> QueueView | None:
        """The queue with this ARN; None if there is none here."""
        return await self._queues.named(named)

    def lets_in(self, topic: TopicView, queue: QueueView) -> bool:
        """True if the policy of a queue lets a topic send to it."""
        policy = queue.policy
        if policy is None:
            return False
        facts = self._facts(topic, queue.queue.account)
        return policy.decide(_SNS, "SendMessage", queue.arn, facts) is Decision.ALLOWED

    async def _delivery(
        self, topic: TopicView, one: SubscriptionView, message: PublishedMessage
    ) -> PlannedDelivery | None:
        raw_fits = len(message.attributes) <= MESSAGE_ATTRIBUTES_MAX
        if raw_fits or not one.raw:
            queue = await self.permitted_queue(topic, one.queue)
            if queue is not None and message.size <= queue.message_bytes_max:
                DELIVERIES.add("queued")
                return PlannedDelivery(queue, one.subscription.subscription_id, one.raw)
        if one.dead_letter is not None:
            queue = await self.permitted_queue(topic, one.dead_letter)
            if queue is not None and message.size <= queue.message_bytes_max:
                DELIVERIES.add("dead_letter")
                return PlannedDelivery(queue, one.subscription.subscription_id, one.raw and raw_fits, dead_letter=True)
        DELIVERIES.add("dropped")
        return None

    def _facts(self, topic: TopicView, account: str) -> Callable[[str], str | None]:
        def facts(key: str) -> str | None:
            match key:
                case "aws:sourcearn":
                    return str(topic.arn)
                case "aws:sourceaccount" | "aws:sourceowner":
                    return topic.arn.account
                case "aws:principalisawsservice" | "aws:viaawsservice" | "aws:securetransport":
                    return "true"
                case "aws:principalservicename":
                    return SERVICE_NAME
                case "aws:currenttime":
                    return datetime.fromtimestamp(self._clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                case "aws:epochtime":
                    return str(int(self._clock()))
                case "aws:requestedregion":
                    return self._region
                case "aws:resourceaccount":
                    return account
            return None

        return facts


def register(registry: Registry) -> None:
    """Register the metrics of deliveries."""
    registry.add(DELIVERIES)

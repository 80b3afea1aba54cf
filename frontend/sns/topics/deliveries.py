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
from frontend.sns.messages.publication import PublicationContent, PublishedMessage
from frontend.sns.topics.audiences import SubscriptionView, TopicAudience
from frontend.sns.topics.policies import SERVICE_NAME
from frontend.sns.topics.selection import SubscriptionSelector
from frontend.sns.topics.view import TopicView
from frontend.sqs.protocol.limits import MESSAGE_ATTRIBUTES_MAX
from metadata_service.arn import QueueArn
from metadata_service.topics import is_hidden
from telemetry.metrics import Counter, Registry

TURN = 100
"""Number of deliveries that are decided before other calls get their turn."""

DECISIONS_MAX = 20_000
"""Maximum number of decisions of queues' policies in memory."""
READS = 20
"""Number of subscriptions whose queues are read at the same time, where they are not cached."""

DELIVERIES = Counter(
    "holdfast_topic_deliveries_total",
    "Deliveries of publications that were decided, by outcome: queued; or, for what could not be delivered, "
    "dead_letter (to the subscription's dead-letter queue) or dropped.",
    labels=("outcome",),
    series_max=4,
)
_SNS = ServicePrincipal(SERVICE_NAME)


class _NotCached(Exception):
    """A queue has to be read from the store."""


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

    async def confirm(self, topic: TopicView, queue: QueueView, subscription_id: bytes, body: str) -> None:
        """Send a message that asks for the confirmation of a subscription to its queue.  Raises the backend's
        errors."""


class DeliveryPlanner:
    """Decides the deliveries of publications."""

    def __init__(self, services: Services, queues: Queues) -> None:
        self._metadata = services.metadata
        self._clock = services.clock
        self._region = services.settings.region
        self._queues = queues
        self._selector = SubscriptionSelector()
        self._let_in: dict[tuple[int, int, int], bool] = {}
        """Decisions of queues' policies, by the queue's id and version, and the topic's id."""

    async def plan(
        self, topic: TopicView, audience: TopicAudience, message: PublishedMessage
    ) -> tuple[PlannedDelivery, ...]:
        """The deliveries of a publication to a topic with these subscriptions.  Raises InvalidParameter."""
        planned: list[PlannedDelivery | None] = []
        unread: list[tuple[int, SubscriptionView]] = []
        for place, one in enumerate(await self._selector.select(audience, message)):
            try:
                planned.append(self._delivery(topic, one, message, self._known_queue))
            except _NotCached:
                planned.append(None)
                unread.append((place, one))
            if place % TURN == TURN - 1:
                await asyncio.sleep(0)
        for start in range(0, len(unread), READS):
            some = unread[start : start + READS]
            read = await asyncio.gather(*(self._queues_of(one) for _, one in some))
            for (place, one), queues in zip(some, read, strict=True):
                planned[place] = self._delivery(topic, one, message, queues.get)
        return tuple(one for one in planned if one is not None)

    async def permitted_queue(self, topic: TopicView, named: QueueArn) -> QueueView | None:
        """The queue with this ARN if it exists, and its policy lets the topic in."""
        view = await self.queue(named)
        return view if view is not None and self.lets_in(topic, view) else None

    async def queue(self, named: QueueArn) -> QueueView | None:
        """The queue with this ARN; None if there is none here."""
        if named.region != self._region or is_hidden(named.name):
            return None
        queue = await self._metadata.find(named.account, named.name)
        return None if queue is None else self._queues.view(queue)

    def _known_queue(self, named: QueueArn) -> QueueView | None:
        """The queue with this ARN; None if there is none here.  Raises :class:`_NotCached`."""
        if named.region != self._region or is_hidden(named.name):
            return None
        queue = self._metadata.cached(named.account, named.name)
        if queue is not None:
            return self._queues.view(queue)
        if self._metadata.known_absent(named.account, named.name):
            return None
        raise _NotCached

    async def _queues_of(self, one: SubscriptionView) -> dict[QueueArn, QueueView | None]:
        """The queues that a subscription's messages may go to, as far as they exist."""
        names = [one.queue] if one.dead_letter is None else [one.queue, one.dead_letter]
        return {named: await self.queue(named) for named in names}

    def lets_in(self, topic: TopicView, queue: QueueView) -> bool:
        """True if the policy of a queue lets a topic send to it."""
        policy = queue.policy
        if policy is None:
            return False
        key = (queue.queue.queue_id, queue.queue.version, topic.topic.topic_id)
        known = self._let_in.get(key)
        if known is not None:
            return known
        facts = _Facts(topic, queue.queue.account, self._region, self._clock)
        result = policy.decide(_SNS, "SendMessage", queue.arn, facts) is Decision.ALLOWED
        if not facts.momentary:
            if len(self._let_in) >= DECISIONS_MAX:
                self._let_in.clear()
            self._let_in[key] = result
        return result

    def _delivery(
        self,
        topic: TopicView,
        one: SubscriptionView,
        message: PublishedMessage,
        find: Callable[[QueueArn], QueueView | None],
    ) -> PlannedDelivery | None:
        """The delivery for a subscription; None: the message is dropped."""
        raw_fits = len(message.attributes) <= MESSAGE_ATTRIBUTES_MAX
        if raw_fits or not one.raw:
            queue = find(one.queue)
            if queue is not None and message.size <= queue.message_bytes_max and self.lets_in(topic, queue):
                DELIVERIES.add("queued")
                return PlannedDelivery(queue, one.subscription.subscription_id, one.raw)
        if one.dead_letter is not None:
            queue = find(one.dead_letter)
            if queue is not None and message.size <= queue.message_bytes_max and self.lets_in(topic, queue):
                DELIVERIES.add("dead_letter")
                return PlannedDelivery(queue, one.subscription.subscription_id, one.raw and raw_fits, dead_letter=True)
        DELIVERIES.add("dropped")
        return None


class _Facts:
    """The facts of a delivery for the policy of its queue."""

    __slots__ = ("_account", "_clock", "_region", "_topic", "momentary")

    def __init__(self, topic: TopicView, account: str, region: str, clock: Callable[[], float]) -> None:
        """``account``: that of the queue."""
        self._topic = topic
        self._account = account
        self._region = region
        self._clock = clock
        self.momentary = False
        """True once the time was asked for, so that the decision is that of this moment."""

    def __call__(self, key: str) -> str | None:
        match key:
            case "aws:sourcearn":
                return str(self._topic.arn)
            case "aws:sourceaccount" | "aws:sourceowner":
                return self._topic.arn.account
            case "aws:principalisawsservice" | "aws:viaawsservice" | "aws:securetransport":
                return "true"
            case "aws:principalservicename":
                return SERVICE_NAME
            case "aws:currenttime":
                self.momentary = True
                return datetime.fromtimestamp(self._clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            case "aws:epochtime":
                self.momentary = True
                return str(int(self._clock()))
            case "aws:requestedregion":
                return self._region
            case "aws:resourceaccount":
                return self._account
        return None


def register(registry: Registry) -> None:
    """Register the metrics of deliveries."""
    registry.add(DELIVERIES)

"""The deliveries of a publication: the queues that it goes to, decided before it is stored.

For each confirmed subscription of a topic the filter policy is evaluated; the queue has to exist, and its policy has to
let the topic in.  What cannot be delivered goes to the subscription's dead-letter queue, on the same conditions, or is
dropped and counted.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

import msgspec

from auth.credentials import Tenant
from auth.policies.policies import Decision, ServicePrincipal
from frontend.queues.queues import Queues
from frontend.queues.view import QueueView
from frontend.request.request import Call
from frontend.request.throttle import Throttle
from frontend.services import Services
from frontend.sns.messages.publication import PublicationContent, PublishedMessage
from frontend.sns.topics.audiences import SubscriptionView, TopicAudience
from frontend.sns.topics.outcomes import DecidedOutcomes, DeliveryFailure
from frontend.sns.topics.plans import (
    DeliveryPlan,
    PlannedDelivery,
    StandingPlan,
    delivery_plan,
    planned_delivery,
)
from frontend.sns.topics.policies import SERVICE_NAME
from frontend.sns.topics.selection import SubscriptionSelector
from frontend.sns.topics.view import TopicView
from frontend.sqs.protocol.limits import MESSAGE_ATTRIBUTES_MAX
from metadata_service.arn import QueueArn
from metadata_service.nodes.cached_client import NamedByClients
from metadata_service.topics import Subscription, is_hidden

TURN = 100
"""Number of deliveries that are decided before other calls get their turn."""

DECISIONS_MAX = 20_000
"""Maximum number of decisions of queues' policies in memory."""
READS = 20
"""Number of subscriptions whose queues are read at the same time, where they are not cached."""

_SNS = ServicePrincipal(SERVICE_NAME)


class _NotCached(Exception):
    """A queue has to be read from the store."""


class PreparedPublication(msgspec.Struct, frozen=True):
    """A publication with all that is needed to store it."""

    content: PublicationContent
    """Content to be encrypted and stored: for the topic's owner, under :attr:`TopicView.key_name`."""
    plan: DeliveryPlan
    group: str | None
    deduplication_id: str
    """Deduplication id of a publication to a FIFO topic, given or computed of its message; otherwise empty."""
    size: int
    """Bytes that count towards limits."""
    is_signed: bool
    """True if its notification has to be signed before it is stored."""


class PublicationOutcome(msgspec.Struct, frozen=True):
    """Outcome of storing a publication."""

    message_id: str
    """Id of the publication, also of one that was not stored because its deduplication id was seen."""
    sequence_number: str | None
    """20 digits, for FIFO topics."""
    repeated: bool = False
    """True if it was stored before, by the same call or with its deduplication id, and is not stored again."""


class PublicationSender(Protocol):
    """Stores publications, and carries them to their queues."""

    async def publish(
        self, call: Call, topic: TopicView, outbox: QueueView, publications: Sequence[PreparedPublication]
    ) -> Sequence[PublicationOutcome | Exception]:
        """Store publications to one topic durably, in its outbox; each is then delivered exactly once to each of its
        queues.

        A call with a token (:attr:`Call.retry`) takes effect once, however often it arrives.  Outcomes are in the
        order of the publications; an exception, an :class:`SqsError` or one of the backend's, is that of a publication
        that was not stored.  Raises such an error if none was.
        """

    async def confirm(self, topic: TopicView, queue: QueueView, body: str) -> None:
        """Send a message that asks for the confirmation of a subscription to its queue.  Raises the backend's
        errors."""


class DeliveryPlanner:
    """Decides the deliveries of publications."""

    def __init__(self, services: Services, queues: Queues, throttle: Throttle) -> None:
        self._metadata = services.metadata
        self._named = NamedByClients(services.metadata)
        self._tenants = services.credentials.tenants
        self._throttle = throttle
        self._clock = services.clock
        self._region = services.settings.region
        self._queues = queues
        self.selector = SubscriptionSelector()
        """Selection by filter policies."""
        self._let_in: dict[tuple[int, int, int], bool] = {}
        """Decisions of queues' policies, by the queue's id and version, and the topic's id."""

    def cached_plan(self, audience: TopicAudience, message: PublishedMessage) -> DeliveryPlan | None:
        """The deliveries of a publication if they are those of an earlier one; None: ask :meth:`plan`."""
        standing = audience.standing_plan
        if standing is None or message.size > standing.size_max or len(message.attributes) > MESSAGE_ATTRIBUTES_MAX:
            return None
        cached = self._metadata.cached
        for one in standing.plan.deliveries:
            queue = one.queue.queue
            if cached(queue.account, queue.name) is not queue:
                return None  # its policy, its limit or its partitions may have changed
        return standing.plan

    async def plan(self, topic: TopicView, audience: TopicAudience, message: PublishedMessage) -> DeliveryPlan:
        """The deliveries of a publication to a topic with these subscriptions."""
        outcomes = DecidedOutcomes()
        planned: list[PlannedDelivery | None] = []
        unread: list[tuple[int, SubscriptionView, DeliveryFailure | None]] = []
        known = partial(self._known_destination, topic, message)
        selection = await self.selector.select(topic.topic.account, audience, message, outcomes)
        every: list[tuple[SubscriptionView, DeliveryFailure | None]] = [(one, None) for one in selection.matching]
        every += [(one, DeliveryFailure.FILTER_POLICY) for one in selection.undecided]
        for place, (one, failure) in enumerate(every):
            try:
                planned.append(_delivery(one, message, known, outcomes, failure))
            except _NotCached:
                planned.append(None)
                unread.append((place, one, failure))
            if place % TURN == TURN - 1:
                await asyncio.sleep(0)
        for start in range(0, len(unread), READS):
            some = unread[start : start + READS]
            read = await asyncio.gather(*(self._destinations(topic, message, one) for _, one, _ in some))
            for (place, one, failure), found in zip(some, read, strict=True):
                planned[place] = _delivery(one, message, found.__getitem__, outcomes, failure)
        plan = delivery_plan([one for one in planned if one is not None], outcomes)
        audience.standing_plan = self._standing(topic, audience, plan)
        return plan

    def _standing(self, topic: TopicView, audience: TopicAudience, plan: DeliveryPlan) -> StandingPlan | None:
        """The plan as that of later publications; None: something has to be decided for each of them."""
        if plan.outcomes is not None or audience.filtered or audience.exact:
            return None
        size_max = sys.maxsize
        for one in plan.deliveries:
            if one.is_pushed:
                continue
            queue = one.queue.queue
            if queue.account != topic.topic.account or self._decision(topic, one.queue) not in self._let_in:
                return None
            size_max = min(size_max, one.queue.message_bytes_max)
        return StandingPlan(plan, size_max)

    async def permitted_queue(self, topic: TopicView, named: QueueArn) -> QueueView | None:
        """The queue with this ARN if it exists, and its policy lets the topic in."""
        view = await self.queue(named)
        return view if view is not None and self.lets_in(topic, view) else None

    async def dead_letter_queue(self, topic: TopicView, size: int, named: QueueArn) -> QueueView | DeliveryFailure:
        """The queue with this ARN if it takes a message of this size now, also by the state of its account."""
        queue = None if is_hidden(named.name) else await self.queue(named)
        failure = self._refusal(topic, queue, size)
        if failure is not None or queue is None:
            return failure or DeliveryFailure.ABSENT
        return await self._account_refusal(queue.queue.account) or queue

    async def is_active(self, account: str) -> bool:
        """True if this account exists and is not suspended."""
        return await self._active_tenant(account) is not None

    async def _active_tenant(self, account: str) -> Tenant | None:
        tenant = self._tenants.cached(account) or await self._tenants.find(account)
        return tenant if tenant is not None and tenant.state == "active" else None

    async def _account_refusal(self, account: str) -> DeliveryFailure | None:
        """Reason why the queues of an account take no message; None: there is none."""
        tenant = await self._active_tenant(account)
        if tenant is None:
            return DeliveryFailure.SUSPENDED
        return None if await self._throttle.may_store(tenant) else DeliveryFailure.OVER_QUOTA

    async def queue(self, named: QueueArn) -> QueueView | None:
        """The queue with this ARN; None if there is none here."""
        if named.region != self._region:
            return None
        queue = await self._named.find(named.account, named.name)
        return None if queue is None else self._queues.view(queue)

    async def hidden_queue(self, subscription: Subscription) -> QueueView | None:
        """The hidden queue of a subscription; None: it has none, or was deleted."""
        if subscription.queue_name is None:
            return None
        return await self._hidden_queue(subscription.topic_account, subscription.queue_name)

    async def _hidden_queue(self, account: str, name: str) -> QueueView | None:
        queue = await self._metadata.find(account, name)
        return None if queue is None else self._queues.view(queue)

    def _known_queue(self, named: QueueArn) -> QueueView | None:
        """The queue with this ARN, or a hidden one; None if there is none here.  Raises :class:`_NotCached`."""
        if named.region != self._region and not is_hidden(named.name):
            return None
        queue = self._metadata.cached(named.account, named.name)
        if queue is not None:
            return self._queues.view(queue)
        if self._metadata.known_absent(named.account, named.name):
            return None
        raise _NotCached

    def lets_in(self, topic: TopicView, queue: QueueView) -> bool:
        """True if the policy of a queue lets a topic send to it."""
        policy = queue.policy
        if policy is None:
            return False
        key = self._decision(topic, queue)
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

    def _decision(self, topic: TopicView, queue: QueueView) -> tuple[int, int, int]:
        """Key of a decision, as long as it does not depend on the time."""
        return queue.queue.queue_id, queue.queue.version, topic.topic.topic_id

    def _known_destination(
        self, topic: TopicView, message: PublishedMessage, named: QueueArn
    ) -> QueueView | DeliveryFailure:
        """The queue with this ARN if it takes the message.  Raises :class:`_NotCached`."""
        queue = self._known_queue(named)
        if queue is None or queue.queue.account != topic.topic.account:
            failure = self._refusal(topic, queue, message.size)
            if failure is not None:
                return failure
            raise _NotCached  # the account has to be checked, too
        return self._refusal(topic, queue, message.size) or queue

    def _refusal(self, topic: TopicView, queue: QueueView | None, size: int) -> DeliveryFailure | None:
        """Reason why a queue takes no message of this size, apart from its account's state; None: there is none."""
        if queue is None:
            return DeliveryFailure.ABSENT
        if is_hidden(queue.queue.name):
            return None  # it is its topic's own, and takes all messages
        if not self.lets_in(topic, queue):
            return DeliveryFailure.DENIED
        return DeliveryFailure.TOO_LARGE if size > queue.message_bytes_max else None

    async def _destinations(
        self, topic: TopicView, message: PublishedMessage, one: SubscriptionView
    ) -> dict[QueueArn, QueueView | DeliveryFailure]:
        """The queues that a subscription's messages may go to, or the reasons why they do not take this one."""
        names = [one.queue] if one.dead_letter is None else [one.queue, one.dead_letter]
        return {named: await self._destination(topic, message, named) for named in names}

    async def _destination(
        self, topic: TopicView, message: PublishedMessage, named: QueueArn
    ) -> QueueView | DeliveryFailure:
        if is_hidden(named.name):
            queue = await self._hidden_queue(named.account, named.name)
        else:
            queue = await self.queue(named)
        failure = self._refusal(topic, queue, message.size)
        if failure is not None or queue is None:
            return failure or DeliveryFailure.ABSENT
        account = queue.queue.account
        if account == topic.topic.account:
            return queue  # its state and its quota were checked when the publication was let in
        return await self._account_refusal(account) or queue


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


def _delivery(
    one: SubscriptionView,
    message: PublishedMessage,
    find: Callable[[QueueArn], QueueView | DeliveryFailure],
    outcomes: DecidedOutcomes,
    failure: DeliveryFailure | None,
) -> PlannedDelivery | None:
    """The delivery to a subscription's queue, or to its dead-letter queue; None: the message is dropped.

    ``failure``: the reason why the delivery fails that is known before its queue is found.

    ``find`` returns a queue that takes the message, or the reason why it does not; its errors are raised before an
    outcome is counted.
    """
    raw_fits = len(message.attributes) <= MESSAGE_ATTRIBUTES_MAX
    # an endpoint of HTTP gets no attributes with a raw message
    takes_all = raw_fits or not one.raw or is_hidden(one.queue.name)
    queue = failure or (find(one.queue) if takes_all else DeliveryFailure.TOO_MANY_ATTRIBUTES)
    if not isinstance(queue, DeliveryFailure):
        return planned_delivery(queue, one.subscription.subscription_id, one.raw)
    dead_letter = None if one.dead_letter is None else find(one.dead_letter)
    outcomes.failures[queue] = outcomes.failures.get(queue, 0) + 1
    if is_hidden(one.queue.name):
        protocol = one.subscription.protocol
        outcomes.failed_pushes[protocol] = outcomes.failed_pushes.get(protocol, 0) + 1
    if dead_letter is None:
        return None
    if isinstance(dead_letter, DeliveryFailure):
        outcomes.redrive_failed += 1
        return None
    outcomes.redriven += 1
    return planned_delivery(dead_letter, one.subscription.subscription_id, one.raw and raw_fits, dead_letter=True)

"""Pushes to the endpoints of topics' subscriptions, in SNS's form.

The hidden queue of a subscription has what its topic has delivered, and messages about the subscription itself, which
ask for its confirmation or say that it has ended.  What is not delivered goes to the subscription's dead-letter queue,
in the form in which the endpoint would have got it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import Final

import msgspec

from backend.api import NewMessage, ReceivedMessage, Send
from frontend.push.request import PushRequest
from frontend.push.target import PushTarget
from frontend.queues import payload
from frontend.queues.encryption import MessageEncryption
from frontend.queues.payload import Payload
from frontend.queues.queues import Queues
from frontend.queues.view import QueueView
from frontend.request.throttle import Throttle
from frontend.services import Services
from frontend.sns.messages import rendering
from frontend.sns.messages.arn import SubscriptionArn, TopicArn
from frontend.sns.publishing import NotificationPayload
from frontend.sns.topics import subscription_attributes
from frontend.sns.topics.deletion import delete_subscription_of
from frontend.sns.topics.deliveries import DeliveryPlanner
from frontend.sns.topics.delivery_policies import CONTENT_TYPE, RetryPolicy, effective_delivery
from frontend.sns.topics.notifications import NotificationCounter
from frontend.sns.topics.outcomes import DeliveryFailure
from frontend.sns.topics.plans import DeliveryProtocol
from frontend.sns.topics.view import Topics, TopicView
from frontend.sqs.protocol.limits import MESSAGE_ATTRIBUTES_MAX
from metadata_service import arn
from metadata_service.nodes.cached_topics import TopicClient
from metadata_service.queue_settings import SUBSCRIBED_TOPIC
from metadata_service.store import ConditionFailed, SubscriptionNotFound
from metadata_service.topics import Subscription, subscription_id_of

CONCURRENCY: Final = 100
"""Maximum number of calls of an endpoint at once."""
TIMEOUT_SECONDS: Final = 15
"""Time limit of a call (Amazon SNS Developer Guide, "Make sure your endpoint is ready")."""
USER_AGENT: Final = "Amazon Simple Notification Service Agent"
TOO_MANY_REQUESTS: Final = 429


class SubscriptionRetries(msgspec.Struct, frozen=True):
    """The retries of a delivery policy, for errors that are not the endpoint's final answer."""

    policy: RetryPolicy

    def delay(self, attempts: int, status: int | None) -> float | None:
        """Delay as in :class:`~frontend.push.target.DeliveryPolicy`: none after 4xx other than 429."""
        if status is not None and 400 <= status < 500 and status != TOO_MANY_REQUESTS:
            return None
        return self.policy.delay(attempts)

    def total_seconds(self, call_seconds: float) -> float | None:
        return self.policy.total_seconds + (self.policy.num_retries + 1) * call_seconds


class SubscriptionTarget(PushTarget, frozen=True, kw_only=True):
    """The endpoint of a subscription."""

    topic: TopicView
    subscription: Subscription
    content_type: str
    """Content type of notifications."""


class _Control(msgspec.Struct, frozen=True):
    """The used members of a message about the subscription."""

    type: str = msgspec.field(name="Type")
    message_id: str = msgspec.field(name="MessageId")
    token: str = msgspec.field(name="Token")


_decode_control = msgspec.json.Decoder(_Control).decode


class SubscriptionFormat:
    """Format of the hidden queues of subscriptions (:class:`~frontend.push.format.PushFormat`)."""

    def __init__(self, services: Services, queues: Queues, encryption: MessageEncryption) -> None:
        self._services = services
        self._queues = queues
        self._encryption = encryption
        self._planner = DeliveryPlanner(services, queues, Throttle(services))
        self._counter = NotificationCounter(services, queues)
        self._topics = None if services.topics is None else Topics(services, queues, services.topics)

    async def close(self) -> None:
        """Report the counts of deliveries."""
        await self._counter.close()

    async def find_target(self, view: QueueView) -> PushTarget | None:
        """The target of a subscription.  One that was not confirmed in time is deleted."""
        topics, subscription_id = self._topics, subscription_id_of(view.queue.name)
        name = view.queue.attributes.get(SUBSCRIBED_TOPIC)
        if topics is None or subscription_id is None or name is None:
            return None
        named = topics.arn(view.queue.account, name)
        topic = await topics.find(named)
        found = None if topic is None else await _cached(topics.client, topic, subscription_id)
        if topic is None or found is None:  # the cache may be older than the subscription
            current = await self._current(topics, named, subscription_id)
            if current is None:
                return None
            topic, found = current
        if subscription_attributes.has_expired(found, self._services.clock()):
            with suppress(ConditionFailed):  # it got another token, or was confirmed
                await delete_subscription_of(self._services, topics.client, self._queues, found, unchanged=True)
                return None
        return _target(topic, found, suspended=not await self._planner.is_active(found.owner))

    async def build_request(
        self, view: QueueView, target: PushTarget, message: ReceivedMessage, stored: Payload
    ) -> PushRequest | None:
        assert isinstance(target, SubscriptionTarget)
        control = None if message.subscription is not None else _decode_control(stored.body)
        newer: SubscriptionTarget | None = None
        if not _is_current(target.subscription, control):
            assert self._topics is not None
            current = await self._current(self._topics, target.topic.arn, target.subscription.subscription_id)
            if current is None or not _is_current(current[1], control):
                return None
            target = newer = _target(*current)
        subscription_arn = str(SubscriptionArn(target.topic.arn, target.subscription.subscription_id))
        headers = {
            "User-Agent": USER_AGENT,
            "x-amz-sns-topic-arn": str(target.topic.arn),
        }
        if control is not None:
            headers |= {
                "Content-Type": CONTENT_TYPE,
                "x-amz-sns-message-type": control.type,
                "x-amz-sns-message-id": control.message_id,
            }
            if control.type == rendering.UNSUBSCRIBED:
                headers["x-amz-sns-subscription-arn"] = subscription_arn
            return PushRequest(headers, stored.body.encode(), newer)
        assert isinstance(stored, NotificationPayload)
        headers |= {
            "Content-Type": target.content_type,
            "x-amz-sns-message-type": rendering.NOTIFICATION,
            "x-amz-sns-message-id": stored.message_id,
            "x-amz-sns-subscription-arn": subscription_arn,
        }
        if message.raw:
            headers["x-amz-sns-rawdelivery"] = "true"
        return PushRequest(headers, stored.body.encode(), newer)

    def delivered(self, target: PushTarget, message: ReceivedMessage, stored: Payload) -> None:
        self._count(target, stored, delivered=True)

    async def give_up(
        self, view: QueueView, target: PushTarget, message: ReceivedMessage, stored: Payload
    ) -> Callable[[], None]:
        """Send a notification to the subscription's dead-letter queue, if there is one that takes it."""
        assert isinstance(target, SubscriptionTarget)
        assert self._topics is not None
        if message.subscription is None:
            return _count_nothing
        current = await self._current(self._topics, target.topic.arn, target.subscription.subscription_id)
        if current is None:
            return _count_nothing
        target = _target(*current)  # its dead-letter queue may have been set since the message was received
        text = subscription_attributes.dead_letter_arn(target.subscription.attributes)
        named = None if text is None else arn.parse(text)
        if named is None:
            return partial(self._count_failure, target, stored, None if text is None else False)
        size = stored.published_bytes if isinstance(stored, NotificationPayload) else len(message.payload)
        queue = await self._planner.dead_letter_queue(target.topic, size, named)
        if isinstance(queue, DeliveryFailure):
            return partial(self._count_failure, target, stored, False)
        if len(stored.attributes) > MESSAGE_ATTRIBUTES_MAX:
            stored = msgspec.structs.replace(stored, attributes=(), attributes_md5=None)
        encrypt = await self._encryption.ready(queue)
        # If this process ends before the message is deleted, the next attempt is likely to be within the window in
        # which the queue recognizes the token.
        token = blake2b(view.token_key + message.message_id.encode(), digest_size=32).digest()
        dead = NewMessage(encrypt(payload.encode(as_payload(stored))), retry=token)
        await self._queues.call(queue, Send(queue.target, [dead]))
        return partial(self._count_failure, target, stored, True)

    def _count_failure(self, target: PushTarget, stored: Payload, redriven: bool | None) -> None:
        """Count a notification that was given up; ``redriven``: None if it has no dead-letter queue."""
        self._count(target, stored, delivered=False)
        if redriven is not None:
            self._count(target, stored, delivered=redriven, dead_letter=True)

    def _count(self, target: PushTarget, stored: Payload, *, delivered: bool, dead_letter: bool = False) -> None:
        """Count the outcome of a notification, or of its move to the dead-letter queue."""
        assert isinstance(target, SubscriptionTarget)
        if isinstance(stored, NotificationPayload):
            protocol: DeliveryProtocol = "https" if target.subscription.protocol == "https" else "http"
            self._counter.count(
                target.topic.topic,
                "dead-letter" if dead_letter else protocol,
                delivered=delivered,
                size=stored.published_bytes,
            )

    async def _current(
        self, topics: Topics, named: TopicArn, subscription_id: bytes
    ) -> tuple[TopicView, Subscription] | None:
        """The topic and the subscription as they are stored now; None: one of them was deleted."""
        topic = await topics.find(named, fresh=True)
        if topic is None:
            return None
        try:
            return topic, await topics.client.get_subscription(topic.topic, subscription_id)
        except SubscriptionNotFound:
            return None


def _count_nothing() -> None:
    """Count no message: it was not one of the topic's, or its subscription was deleted."""


def as_payload(stored: Payload) -> Payload:
    """The message as a queue stores it."""
    return Payload(*(getattr(stored, name) for name in Payload.__struct_fields__))


def _is_current(subscription: Subscription, control: _Control | None) -> bool:
    """True if a message is to be delivered: a notification while the subscription is confirmed; another with the token
    that it has now."""
    return not subscription.pending if control is None else control.token == subscription.token


async def _cached(client: TopicClient, topic: TopicView, subscription_id: bytes) -> Subscription | None:
    """The topic's subscription with this id, of those that are cached."""
    subscriptions = await client.subscriptions(topic.topic)
    place = bisect_left(subscriptions, subscription_id, key=lambda one: one.subscription_id)
    found = subscriptions[place] if place < len(subscriptions) else None
    return found if found is not None and found.subscription_id == subscription_id else None


def _target(topic: TopicView, subscription: Subscription, *, suspended: bool = False) -> SubscriptionTarget:
    effective = effective_delivery(topic.topic.attributes, subscription.attributes)
    return SubscriptionTarget(
        url=subscription.endpoint,
        concurrency=CONCURRENCY,
        timeout_seconds=TIMEOUT_SECONDS,
        policy=SubscriptionRetries(effective.retries),
        calls_per_second=effective.receives_per_second,
        suspended=suspended,
        topic=topic,
        subscription=subscription,
        content_type=effective.content_type,
    )

"""Views of topics and subscriptions: their parsed attributes, and the queues that store publications."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from auth.encryption.named_keys import key_name
from auth.policies.policies import Policy
from frontend.queues.queues import Queues
from frontend.queues.view import QueueView
from frontend.services import Services
from frontend.sns.messages.arn import SubscriptionArn, TopicArn
from frontend.sns.messages.publication import TopicRules
from frontend.sns.protocol.errors import CONCURRENT_ACCESS, topic_does_not_exist
from frontend.sns.topics import attributes, policies
from frontend.sns.topics.audiences import AudienceCache, TopicAudience
from frontend.sqs.protocol.errors import SqsError
from metadata_service.nodes.cached_topics import TopicClient
from metadata_service.store import ConditionFailed, QueueNotFound, TopicNotFound
from metadata_service.topics import Subscription, Topic, hidden_queue_name

_TRIES = 8
_VIEWS_MAX = 10_000


class TopicView(msgspec.Struct, frozen=True):
    """A topic with its parsed attributes."""

    topic: Topic
    arn: TopicArn
    arn_text: str
    outbox_name: str
    """Name of the hidden queue that stores the topic's publications."""
    rules: TopicRules
    policy: Policy | None
    """Compiled policy; None: only the owning account has access."""
    signature_version: str
    key_name: str
    """Name of the data key for publications; empty: the tenant's own key, or none."""

    @property
    def fifo(self) -> bool:
        return self.rules.fifo


class TopicUpdate(NamedTuple):
    """A change of a topic's record; None: unchanged."""

    attributes: dict[str, str] | None = None
    tags: dict[str, str] | None = None


class Topics:
    """Looks up topics, their subscriptions, and their outboxes: the hidden queues that store their publications."""

    def __init__(self, services: Services, queues: Queues, client: TopicClient) -> None:
        self.client = client
        self._metadata = services.metadata
        self._queues = queues
        self._region = services.settings.region
        self._views: dict[int, TopicView] = {}
        self._audiences = AudienceCache()

    def arn(self, account: str, name: str) -> TopicArn:
        return TopicArn(self._region, account, name)

    def subscription_arn(self, subscription: Subscription) -> SubscriptionArn:
        return SubscriptionArn(
            self.arn(subscription.topic_account, subscription.topic_name), subscription.subscription_id
        )

    def cached(self, topic_arn: TopicArn) -> TopicView | None:
        """The topic with this ARN, as cached; None: ask :meth:`find`."""
        topic = self.client.cached(topic_arn.account, topic_arn.name) if topic_arn.region == self._region else None
        return None if topic is None else self.view(topic)

    async def find(self, topic_arn: TopicArn, *, fresh: bool = False) -> TopicView | None:
        """The topic with this ARN; None if there is none here.  ``fresh``: as it is stored now."""
        if topic_arn.region != self._region:
            return None
        topic = None if fresh else self.client.cached(topic_arn.account, topic_arn.name)
        if topic is None:
            if not attributes.is_topic_name(topic_arn.name):
                return None
            try:
                topic = await self.client.get(topic_arn.account, topic_arn.name)
            except TopicNotFound:
                return None
        return self.view(topic)

    def view(self, topic: Topic) -> TopicView:
        view = self._views.get(topic.topic_id)
        if view is None or view.topic is not topic:
            view = self._make_view(topic)
            if len(self._views) >= _VIEWS_MAX:
                self._views.clear()
            self._views[topic.topic_id] = view
        return view

    def cached_outbox(self, view: TopicView) -> QueueView | None:
        """The outbox of a topic, as cached; None: ask :meth:`outbox`."""
        queue = self._metadata.cached(view.topic.account, view.outbox_name)
        return None if queue is None or queue.queue_id != view.topic.topic_id else self._queues.view(queue)

    async def outbox(self, view: TopicView) -> QueueView:
        """Read the outbox of a topic from the store.  Raises NotFound."""
        try:
            queue = await self._metadata.get(view.topic.account, view.outbox_name)
        except QueueNotFound:
            raise topic_does_not_exist() from None
        if queue.queue_id != view.topic.topic_id:  # the topic was deleted, and another one created
            raise topic_does_not_exist()
        return self._queues.view(queue)

    def cached_audience(self, view: TopicView) -> TopicAudience | None:
        """The topic's confirmed subscriptions, as cached; None: ask :meth:`audience`."""
        records = self.client.cached_subscriptions(view.topic)
        return None if records is None else self._audiences.cached(view.topic.topic_id, records)

    async def audience(self, view: TopicView) -> TopicAudience:
        """The topic's confirmed subscriptions."""
        return await self._audiences.get(view.topic.topic_id, await self.client.subscriptions(view.topic))

    async def change(self, view: TopicView, make: Callable[[Topic], TopicUpdate | None]) -> TopicView:
        """Store the change that ``make`` computes for the current topic (None: no change); returns the topic
        afterwards.

        ``make`` may be called several times, when others change the topic as well.  Raises NotFound and
        ConcurrentAccess.
        """
        for _ in range(_TRIES):
            try:
                topic = await self.client.get(view.topic.account, view.topic.name)
                if topic.topic_id != view.topic.topic_id:
                    break  # the caller's permission was for another one
                update = make(topic)
                if update is None:
                    return self.view(topic)
                return self.view(await self.client.update(topic, attributes=update.attributes, tags=update.tags))
            except ConditionFailed:
                continue
            except TopicNotFound:
                raise topic_does_not_exist() from None
        raise SqsError(CONCURRENT_ACCESS)

    def _make_view(self, topic: Topic) -> TopicView:
        stored = topic.attributes
        policy = stored.get("Policy")
        arn = self.arn(topic.account, topic.name)
        return TopicView(
            topic=topic,
            arn=arn,
            arn_text=str(arn),
            outbox_name=hidden_queue_name(topic.name),
            rules=TopicRules(
                fifo=attributes.is_fifo_topic(stored),
                content_based=stored.get("ContentBasedDeduplication") == "true",
                size_max=attributes.message_bytes_max(stored),
            ),
            policy=policies.stored_policy(policy) if policy else None,
            signature_version=stored.get("SignatureVersion", "1"),
            key_name=key_name(stored.get("KmsMasterKeyId", ""), self._region, topic.account),
        )

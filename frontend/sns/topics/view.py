"""Views of topics and subscriptions: their parsed attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from auth.encryption.named_keys import key_name
from auth.policies.policies import Policy
from frontend.services import Services
from frontend.sns.messages.arn import SubscriptionArn, TopicArn
from frontend.sns.messages.publication import TopicRules
from frontend.sns.protocol.errors import CONCURRENT_ACCESS, topic_does_not_exist
from frontend.sns.topics import attributes, policies
from frontend.sns.topics.audiences import AudienceCache, TopicAudience
from frontend.sqs.protocol.errors import SqsError
from metadata_service.nodes.cached_topics import TopicClient
from metadata_service.store import ConditionFailed, TopicNotFound
from metadata_service.topics import Subscription, Topic

_TRIES = 8
_VIEWS_MAX = 10_000


class TopicView(msgspec.Struct, frozen=True):
    """A topic with its parsed attributes."""

    topic: Topic
    arn: TopicArn
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
    """Looks up topics and their subscriptions."""

    def __init__(self, services: Services, client: TopicClient) -> None:
        self.client = client
        self._region = services.settings.region
        self._views: dict[int, TopicView] = {}
        self._audiences = AudienceCache()

    def arn(self, account: str, name: str) -> TopicArn:
        return TopicArn(self._region, account, name)

    def subscription_arn(self, subscription: Subscription) -> SubscriptionArn:
        return SubscriptionArn(
            self.arn(subscription.topic_account, subscription.topic_name), subscription.subscription_id
        )

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
        return TopicView(
            topic=topic,
            arn=self.arn(topic.account, topic.name),
            rules=TopicRules(
                fifo=attributes.is_fifo_topic(stored),
                content_based=stored.get("ContentBasedDeduplication") == "true",
                size_max=attributes.message_bytes_max(stored),
            ),
            policy=policies.stored_policy(policy) if policy else None,
            signature_version=stored.get("SignatureVersion", "1"),
            key_name=key_name(stored.get("KmsMasterKeyId", ""), self._region, topic.account),
        )

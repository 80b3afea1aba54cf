"""The frontend's view of topics and subscriptions: a store behind a cache.

The subscriptions of a topic are cached with its version, which each change of them increments.  Entries may be stale,
as those of queues (:mod:`metadata_service.nodes.cached_client`): by at most the interval of
:class:`~metadata_service.nodes.change_feed.ChangeWatch`, which drops what other processes have changed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from metadata_service.nodes.named_cache import NamedCache
from metadata_service.store import SubscriptionNotFound, TopicExists, TopicNotFound, TopicStore
from metadata_service.topics import NewSubscription, NewTopic, Subscription, SubscriptionChange, SubscriptionPage, Topic
from telemetry import caches

PAGE = 500
"""Number of subscriptions that are read at once."""
SUBSCRIPTIONS_KEPT = 50_000
"""Maximum number of subscriptions cached, of all topics together."""


class TopicClient(NamedCache[Topic]):
    """Cache of topics by account and name, with their subscriptions.  Keeps the ``limit`` most recently used topics."""

    def __init__(self, store: TopicStore, *, limit: int = 10_000) -> None:
        super().__init__("topics", limit)
        self._store = store
        self._subscriptions: OrderedDict[int, tuple[int, tuple[Subscription, ...]]] = OrderedDict()
        """Version of the topic and subscriptions, by the topic's id."""
        self._kept = 0

    def _id(self, record: Topic) -> int:
        return record.topic_id

    # --- reads ---

    async def get(self, account: str, name: str) -> Topic:
        """Read the topic from the store.  Raises :class:`TopicNotFound`."""
        forgotten = self._forgotten
        caches.counts[self._miss] += 1
        try:
            topic = await self._store.get_topic(account, name)
        except TopicNotFound:
            self.invalidate(account, name)
            raise
        return self.remember(topic) if forgotten == self._forgotten else topic

    async def list_topics(self, account: str, *, prefix: str = "", after: str = "", limit: int) -> list[Topic]:
        """Delegate to :meth:`TopicStore.list_topics`."""
        return await self._store.list_topics(account, prefix=prefix, after=after, limit=limit)

    async def subscriptions(self, topic: Topic) -> tuple[Subscription, ...]:
        """All subscriptions of a topic, as they were in this version of it or later, ordered by id."""
        cached = self._subscriptions.get(topic.topic_id)
        if cached is not None and cached[0] >= topic.version:
            self._subscriptions.move_to_end(topic.topic_id)
            return cached[1]
        found: list[Subscription] = []
        if topic.subscriptions:
            page = await self._store.topic_subscriptions(topic.topic_id, limit=PAGE)
            found += page
            while len(page) == PAGE:
                page = await self._store.topic_subscriptions(topic.topic_id, after=page[-1].subscription_id, limit=PAGE)
                found += page
        subscriptions = tuple(found)
        self._keep(topic, subscriptions)
        return subscriptions

    def _keep(self, topic: Topic, subscriptions: tuple[Subscription, ...]) -> None:
        known = self._subscriptions.get(topic.topic_id)
        if known is not None:
            if known[0] > topic.version:
                return
            self._kept -= len(known[1])
        self._subscriptions[topic.topic_id] = (topic.version, subscriptions)
        self._subscriptions.move_to_end(topic.topic_id)
        self._kept += len(subscriptions)
        while len(self._subscriptions) > self._limit or (
            self._kept > SUBSCRIPTIONS_KEPT and len(self._subscriptions) > 1
        ):
            _, (_, dropped) = self._subscriptions.popitem(last=False)
            self._kept -= len(dropped)

    async def list_subscriptions(self, topic: Topic, *, after: bytes = b"", limit: int) -> list[Subscription]:
        """Delegate to :meth:`TopicStore.topic_subscriptions`."""
        return await self._store.topic_subscriptions(topic.topic_id, after=after, limit=limit)

    async def owner_subscriptions(self, owner: str, *, after: str = "", limit: int) -> SubscriptionPage:
        """Delegate to :meth:`TopicStore.owner_subscriptions`."""
        return await self._store.owner_subscriptions(owner, after=after, limit=limit)

    async def get_subscription(self, topic: Topic, subscription_id: bytes) -> Subscription:
        """Delegate to :meth:`TopicStore.get_subscription`."""
        return await self._store.get_subscription(topic.topic_id, subscription_id)

    # --- changes ---

    async def create(self, new: NewTopic) -> Topic:
        """Call :meth:`TopicStore.create_topic` and cache the topic."""
        try:
            created = await self._store.create_topic(new)
        except TopicExists as error:
            self.remember(error.topic)
            raise
        return self.remember(created)

    async def update(
        self, topic: Topic, *, attributes: Mapping[str, str] | None = None, tags: Mapping[str, str] | None = None
    ) -> Topic:
        """Call :meth:`TopicStore.update_topic` for the version of ``topic``, and cache the result."""
        return self.remember(
            await self._store.update_topic(topic.topic_id, topic.version, attributes=attributes, tags=tags)
        )

    async def delete(self, topic: Topic) -> Topic:
        """Call :meth:`TopicStore.delete_topic` and drop the cached topic."""
        self.invalidate(topic.account, topic.name)
        deleted = await self._store.delete_topic(topic.topic_id)
        self.invalidate(topic.account, topic.name)
        return deleted

    async def create_subscription(self, topic: Topic, new: NewSubscription) -> Subscription:
        """Call :meth:`TopicStore.create_subscription` and drop the cached topic."""
        try:
            return await self._store.create_subscription(new)
        finally:
            self.invalidate(topic.account, topic.name)

    async def update_subscription(
        self, subscription: Subscription, change: SubscriptionChange, *, filter_policies_max: int | None = None
    ) -> Subscription:
        """Call :meth:`TopicStore.update_subscription` for the version of ``subscription``, and drop the cached
        topic."""
        try:
            return await self._store.update_subscription(
                subscription.topic_id,
                subscription.subscription_id,
                subscription.version,
                change,
                filter_policies_max=filter_policies_max,
            )
        finally:
            self.invalidate(subscription.topic_account, subscription.topic_name)

    async def delete_subscription(self, subscription: Subscription) -> bool:
        """Call :meth:`TopicStore.delete_subscription`, and drop the cached topic; False: it did not exist."""
        try:
            await self._store.delete_subscription(subscription.topic_id, subscription.subscription_id)
        except SubscriptionNotFound:
            return False
        finally:
            self.invalidate(subscription.topic_account, subscription.topic_name)
        return True

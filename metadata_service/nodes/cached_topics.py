"""The frontend's view of topics and subscriptions: a store behind a cache.

The subscriptions of a topic are cached with its version, which each change of them increments.  Where several processes
share the store, :class:`~metadata_service.nodes.change_feed.ChangeWatch` drops what others have changed, and a cached
topic is used only for :data:`LEASE_SECONDS` after the latest poll for changes began.  A change of a subscription is
answered after :data:`LEARNED_SECONDS`, which are longer.  So a publication that begins after the answer sees the
change, whichever process it arrives at.
"""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from metadata_service.nodes.named_cache import NamedCache
from metadata_service.store import (
    ConditionFailed,
    SubscriptionExists,
    SubscriptionNotFound,
    TopicExists,
    TopicNotFound,
    TopicStore,
)
from metadata_service.topics import NewSubscription, NewTopic, Subscription, SubscriptionChange, SubscriptionPage, Topic
from telemetry import caches

LEASE_SECONDS = 0.5
"""Time for which a poll for changes makes cached topics usable: two intervals of polls."""
LEARNED_SECONDS = 0.6
"""Time after which no process uses a topic as it was before a change; longer, as clocks do not run alike."""
PAGE = 500
"""Number of subscriptions that are read at once."""
SUBSCRIPTIONS_BYTES_MAX = 64 * 1024 * 1024
"""Estimated memory of the subscriptions cached, of all topics together; those of one topic stay in any case."""
_TRIES = 8
_BYTES = 1_000
"""Memory of a subscription besides its attributes."""


class _Subscriptions(NamedTuple):
    version: int
    """Version of the topic."""
    subscriptions: tuple[Subscription, ...]
    memory_bytes: int


def memory_bytes(subscription: Subscription) -> int:
    """Estimated memory of a subscription's record."""
    return _BYTES + sum(map(sys.getsizeof, subscription.attributes.values()))


class TopicClient(NamedCache[Topic]):
    """Cache of topics by account and name, with their subscriptions.  Keeps the ``limit`` most recently used topics."""

    def __init__(self, store: TopicStore, *, limit: int = 10_000, shared: bool = False) -> None:
        """``shared``: other processes use the store as well, and a ChangeWatch follows their changes."""
        super().__init__("topics", limit)
        self._store = store
        self._shared = shared
        self._subscriptions: OrderedDict[int, _Subscriptions] = OrderedDict()
        """Subscriptions by the topic's id."""
        self._bytes = 0

    def _id(self, record: Topic) -> int:
        return record.topic_id

    # --- reads ---

    def cached(self, account: str, name: str) -> Topic | None:
        if self._shared and asyncio.get_running_loop().time() > self._checked_at + LEASE_SECONDS:
            return None  # others may have changed it since
        return super().cached(account, name)

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

    def cached_subscriptions(self, topic: Topic) -> tuple[Subscription, ...] | None:
        """All subscriptions of a topic, as :meth:`subscriptions` returns them; None: they are not cached."""
        cached = self._subscriptions.get(topic.topic_id)
        if cached is None or cached.version < topic.version:
            return None
        self._subscriptions.move_to_end(topic.topic_id)
        return cached.subscriptions

    async def subscriptions(self, topic: Topic) -> tuple[Subscription, ...]:
        """All subscriptions of a topic, as they were in this version of it or later, ordered by id."""
        cached = self.cached_subscriptions(topic)
        if cached is not None:
            return cached
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
            if known.version > topic.version:
                return
            self._bytes -= known.memory_bytes
        kept = _Subscriptions(topic.version, subscriptions, sum(map(memory_bytes, subscriptions)))
        self._subscriptions[topic.topic_id] = kept
        self._subscriptions.move_to_end(topic.topic_id)
        self._bytes += kept.memory_bytes
        while len(self._subscriptions) > self._limit or (
            self._bytes > SUBSCRIPTIONS_BYTES_MAX and len(self._subscriptions) > 1
        ):
            _, dropped = self._subscriptions.popitem(last=False)
            self._bytes -= dropped.memory_bytes

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

    async def delete(self, topic: Topic, *, unchanged: bool = False) -> Topic:
        """Call :meth:`TopicStore.delete_topic` and drop the cached topic.

        ``unchanged``: raise :class:`ConditionFailed` if it has another version than ``topic``.
        """
        self.invalidate(topic.account, topic.name)
        deleted = await self._store.delete_topic(topic.topic_id, version=topic.version if unchanged else None)
        self.invalidate(topic.account, topic.name)
        return deleted

    async def create_subscription(self, topic: Topic, new: NewSubscription) -> Subscription:
        """Call :meth:`TopicStore.create_subscription`; returns, or raises SubscriptionExists, when all processes know
        the subscription."""
        try:
            subscription = await self._store.create_subscription(new)
        except SubscriptionExists as error:
            if not error.subscription.pending:
                await self.publish_changes(topic.account, topic.name)
            raise
        finally:
            self.invalidate(topic.account, topic.name)
        await self._learned(subscription)
        return subscription

    async def update_subscription(
        self, subscription: Subscription, change: SubscriptionChange, *, filter_policies_max: int | None = None
    ) -> Subscription:
        """Call :meth:`TopicStore.update_subscription` for the version of ``subscription``; returns when all processes
        know the change."""
        account, name = subscription.topic_account, subscription.topic_name
        try:
            updated = await self._store.update_subscription(
                subscription.topic_id,
                subscription.subscription_id,
                subscription.version,
                change,
                filter_policies_max=filter_policies_max,
            )
        finally:
            self.invalidate(account, name)
        await self._learned(updated)
        return updated

    async def delete_subscription(self, subscription: Subscription, *, unchanged: bool = False) -> bool:
        """Call :meth:`TopicStore.delete_subscription`; returns when all processes know it.  False: it did not exist.

        ``unchanged``: raise :class:`ConditionFailed` if it has another version than ``subscription``.
        """
        account, name = subscription.topic_account, subscription.topic_name
        try:
            deleted = await self._store.delete_subscription(
                subscription.topic_id,
                subscription.subscription_id,
                version=subscription.version if unchanged else None,
            )
        except SubscriptionNotFound:
            await self.publish_changes(account, name)
            return False
        finally:
            self.invalidate(account, name)
        await self._learned(deleted)
        return True

    async def publish_changes(self, account: str, name: str) -> None:
        """Make all processes read a topic and its subscriptions again; returns when none uses what it had.

        For a change that turns out to have been made before, by a call that was not answered: its process may have
        ended before it recorded the change.
        """
        if not self._shared:
            return
        for _ in range(_TRIES):
            try:
                topic = await self._store.get_topic(account, name)
                await self._store.update_topic(topic.topic_id, topic.version)
            except ConditionFailed:
                continue
            except TopicNotFound:
                return
            break
        self.invalidate(account, name)
        await asyncio.sleep(LEARNED_SECONDS)

    async def _learned(self, subscription: Subscription) -> None:
        """Wait until all processes know a change of a subscription; nothing is delivered to a pending one."""
        if self._shared and not subscription.pending:
            await asyncio.sleep(LEARNED_SECONDS)

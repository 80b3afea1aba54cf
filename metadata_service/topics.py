"""Topics of SNS's protocol and their subscriptions.  (Kafka's topics are streams: :mod:`metadata_service.streams`.)

A topic belongs to an account, and has a name in a space of its own.  It has a *hidden queue*, which is created and
deleted with it in one transaction: a queue whose name no action of SQS accepts and no list contains.  Publications are
stored in its partitions, which lie on shards and are moved as those of other queues.  The hidden queue's id is the
topic's id, in one number space with the ids of queues and streams.

A subscription of an endpoint of HTTP has a hidden queue, too, in the account of the topic, which is created and deleted
with it.  The topic delivers to it as to other queues, and its messages are pushed to the endpoint.

The version of a topic is incremented by each change of its subscriptions as well, so a cache knows both by it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from hashlib import sha256
from hmac import compare_digest
from typing import Final, NamedTuple

import msgspec

from metadata_service.models import NewQueue, Queue

HIDDEN_PREFIX: Final = "~"
"""First character of the names of hidden queues: it is in the name of no other queue, and sorts after all of them."""
SUBSCRIPTION_PREFIX: Final = "~~"
"""Beginning of the names of subscriptions' hidden queues; no name of a topic begins with a tilde."""
PUSHED_PROTOCOLS: Final = ("http", "https")
"""Protocols whose subscriptions have hidden queues."""
SUBSCRIPTION_ID_BYTES: Final = 16


class Topic(msgspec.Struct, frozen=True):
    """One incarnation of a topic: recreated after a deletion it has another ``topic_id``."""

    topic_id: int
    """Id of the topic and of its hidden queue."""
    account: str
    name: str
    version: int
    """Version, from 1; incremented by every change of attributes, tags or subscriptions."""
    attributes: dict[str, str]
    """Canonical values of the attributes that were set; others have their defaults."""
    tags: dict[str, str]
    created_s: int
    subscriptions: int = 0
    """Number of subscriptions, confirmed or not."""
    filter_policies: int = 0
    """Number of subscriptions with a filter policy."""
    deleted_subscriptions: int = 0
    """Number of subscriptions that were deleted so far."""


class NewTopic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A topic to be created."""

    account: str
    name: str
    attributes: dict[str, str]
    tags: dict[str, str]
    now_ms: int
    queue_attributes: dict[str, str]
    """Attributes of the hidden queue."""
    clusters: tuple[int, ...] = (0,)
    """Backend cluster of each partition of the hidden queue."""
    topics_max: int | None = None
    """Maximum number of topics of the account; None: no limit."""

    @property
    def hidden_queue(self) -> NewQueue:
        """The hidden queue to be created."""
        return NewQueue(
            self.account,
            hidden_queue_name(self.name),
            self.queue_attributes,
            {},
            now_ms=self.now_ms,
            hold_seconds=0,
            clusters=self.clusters,
        )

    def made(self, queue: Queue) -> Topic:
        """Build the topic of a hidden queue."""
        return Topic(
            topic_id=queue.queue_id,
            account=self.account,
            name=self.name,
            version=1,
            attributes=self.attributes,
            tags=self.tags,
            created_s=self.now_ms // 1000,
        )


class Subscription(msgspec.Struct, frozen=True):
    """A subscription of an endpoint to a topic."""

    subscription_id: bytes
    """16 random bytes."""
    topic_id: int
    topic_account: str
    topic_name: str
    owner: str
    """Account of the subscriber."""
    protocol: str
    endpoint: str
    version: int
    """Version, from 1; incremented by every change."""
    attributes: dict[str, str]
    """Canonical values of the attributes that were set; others have their defaults."""
    created_s: int
    token: str = ""
    """Token by which the subscription is confirmed; empty: it is confirmed."""
    token_s: int = 0
    """Time when the token was made."""
    confirmed_by: str = ""
    """ARN of the caller that confirmed it by its signature; empty: it was confirmed by the token alone, or is not."""
    authenticate_on_unsubscribe: bool = False
    """True if only signed calls may delete it."""
    confirmed_token_hash: str = ""
    """SHA-256, in hexadecimal, of the token that has confirmed it last, by which a repeated confirmation is known."""

    @property
    def pending(self) -> bool:
        """True until the subscription is confirmed."""
        return bool(self.token)

    def is_confirmed_by(self, token: str) -> bool:
        """True if this token confirms the subscription, or has confirmed it before."""
        known = _token_hash(self.token) if self.token else self.confirmed_token_hash
        return compare_digest(known, _token_hash(token))

    @property
    def has_filter_policy(self) -> bool:
        return "FilterPolicy" in self.attributes

    @property
    def queue_name(self) -> str | None:
        """Name of the hidden queue; None: it has none."""
        return subscription_queue_name(self.subscription_id) if self.protocol in PUSHED_PROTOCOLS else None


class NewSubscription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A subscription to be created."""

    topic_id: int
    owner: str
    protocol: str
    endpoint: str
    attributes: dict[str, str]
    now_ms: int
    token: str = ""
    """Token by which it is to be confirmed; empty: it is confirmed."""
    confirmed_by: str = ""
    subscriptions_max: int | None = None
    """Maximum number of subscriptions of the topic; None: no limit."""
    filter_policies_max: int | None = None
    """Maximum number of the topic's subscriptions with a filter policy; None: no limit."""
    queue_attributes: dict[str, str] = {}
    """Attributes of the hidden queue, for protocols that have one."""
    clusters: tuple[int, ...] = (0,)
    """Backend cluster of each partition of the hidden queue."""
    pushed_max: int | None = None
    """Maximum number of the subscriptions with hidden queues in the topic's account; None: no limit.  Several that are
    created at once may exceed it."""

    def hidden_queue(self, subscription: Subscription) -> NewQueue | None:
        """The hidden queue to be created with the subscription; None: it has none."""
        name = subscription.queue_name
        if name is None:
            return None
        return NewQueue(
            subscription.topic_account,
            name,
            self.queue_attributes,
            {},
            now_ms=self.now_ms,
            hold_seconds=0,
            clusters=self.clusters,
        )

    def made(self, topic: Topic) -> Subscription:
        """Build the subscription, with a random id."""
        return Subscription(
            subscription_id=secrets.token_bytes(SUBSCRIPTION_ID_BYTES),
            topic_id=topic.topic_id,
            topic_account=topic.account,
            topic_name=topic.name,
            owner=self.owner,
            protocol=self.protocol,
            endpoint=self.endpoint,
            version=1,
            attributes=self.attributes,
            created_s=self.now_ms // 1000,
            token=self.token,
            token_s=self.now_ms // 1000 if self.token else 0,
            confirmed_by=self.confirmed_by,
        )


class SubscriptionPage(NamedTuple):
    """A page of a list of subscriptions."""

    subscriptions: list[Subscription]
    after: str
    """Position after which the next page begins; empty: this is the last one."""


def _token_hash(token: str) -> str:
    return sha256(token.encode()).hexdigest()


def hidden_queue_name(topic_name: str) -> str:
    return HIDDEN_PREFIX + topic_name


def subscription_queue_name(subscription_id: bytes) -> str:
    return SUBSCRIPTION_PREFIX + subscription_id.hex()


def subscription_id_of(queue_name: str) -> bytes | None:
    """Id of the subscription whose hidden queue has this name; None: it is no subscription's."""
    return bytes.fromhex(queue_name[2:]) if queue_name.startswith(SUBSCRIPTION_PREFIX) else None


def topic_name_of(queue_name: str) -> str | None:
    """Name of the topic whose hidden queue this is; None: it is no topic's."""
    if not is_hidden(queue_name) or subscription_id_of(queue_name) is not None:
        return None
    return queue_name.removeprefix(HIDDEN_PREFIX)


def is_hidden(queue_name: str) -> bool:
    """True for the name of a hidden queue."""
    return queue_name.startswith(HIDDEN_PREFIX)


def with_subscription(topic: Topic, before: Subscription | None, now: Subscription | None) -> Topic:
    """The next version of a topic, after a subscription was created (``before`` is None), changed or deleted."""
    created, deleted = before is None, now is None
    filtered = int(now is not None and now.has_filter_policy) - int(before is not None and before.has_filter_policy)
    return msgspec.structs.replace(
        topic,
        version=topic.version + 1,
        subscriptions=topic.subscriptions + created - deleted,
        filter_policies=topic.filter_policies + filtered,
        deleted_subscriptions=topic.deleted_subscriptions + (deleted and not created),
    )


def exceeds_filter_policies(
    topic: Topic, before: Subscription | None, now: Subscription, count_max: int | None
) -> bool:
    """True if a subscription gets a filter policy, and the topic has ``count_max`` of them already."""
    added = now.has_filter_policy and not (before is not None and before.has_filter_policy)
    return added and count_max is not None and topic.filter_policies >= count_max


class SubscriptionChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change of a subscription; None: unchanged."""

    attributes: dict[str, str] | None = None
    token: str | None = None
    """New token; empty: the subscription is confirmed."""
    now_ms: int = 0
    """Time of a new token."""
    confirmed_by: str | None = None
    authenticate_on_unsubscribe: bool | None = None

    def applied(self, subscription: Subscription) -> Subscription:
        """The next version of a subscription."""
        changes: dict[str, object] = {
            name: value
            for name in ("attributes", "token", "confirmed_by", "authenticate_on_unsubscribe")
            if (value := getattr(self, name)) is not None
        }
        if self.token:
            changes["token_s"] = self.now_ms // 1000
        elif self.token is not None and subscription.token:
            changes["confirmed_token_hash"] = _token_hash(subscription.token)
        return msgspec.structs.replace(subscription, version=subscription.version + 1, **changes)


def recount(topic: Topic, subscriptions: Sequence[Subscription]) -> Topic:
    """The topic with the numbers of these subscriptions, which are all of its own."""
    return msgspec.structs.replace(
        topic,
        subscriptions=len(subscriptions),
        filter_policies=sum(one.has_filter_policy for one in subscriptions),
    )

"""Audiences of topics: their confirmed subscriptions with compiled filter policies, cached within bounds of memory.

Compiling many large policies takes long.  So it is done once for all publications that wait for it, with turns for
other calls in between, and policies with the same text are compiled once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from weakref import WeakValueDictionary

import msgspec

from frontend.sns.filters.body_paths import PathTree
from frontend.sns.filters.policy import FilterPolicy
from frontend.sns.filters.values import Value
from frontend.sns.topics import subscription_attributes
from frontend.sns.topics.plans import StandingPlan
from frontend.sqs.protocol.errors import SqsError
from metadata_service import arn
from metadata_service.arn import QueueArn
from metadata_service.nodes.cached_topics import memory_bytes
from metadata_service.topics import Subscription

log = logging.getLogger("holdfast.sqs")

AUDIENCES_BYTES_MAX = 64 * 1024 * 1024
"""Estimated memory of all cached audiences together; the one that is used stays in any case."""
TURN_STEPS = 200
"""Work after which other calls get their turn: subscriptions, and kilobytes of filter policies."""
_VIEW_BYTES = 750
"""Memory of a subscription's view without its filter policy, and of its planned delivery."""
_PATH_BYTES = 350


class SubscriptionView(msgspec.Struct, frozen=True):
    """A confirmed subscription, with its parsed attributes."""

    subscription: Subscription
    raw: bool
    queue: QueueArn
    """The subscribed queue, or the subscription's hidden queue."""
    dead_letter: QueueArn | None
    """Queue for messages that cannot be delivered."""


FilteredSubscriptions = tuple[FilterPolicy, tuple[SubscriptionView, ...]]
"""A filter policy, and the subscriptions that have it."""


class TopicAudience(msgspec.Struct, eq=False):
    """The confirmed subscriptions of a topic.  All but the standing plan is fixed."""

    records: Sequence[Subscription]
    """All subscriptions that it was made of."""
    unfiltered: tuple[SubscriptionView, ...]
    """Those without a filter policy."""
    unreadable: tuple[SubscriptionView, ...]
    """Those whose filter policies this release cannot compile: they get no messages."""
    filtered: tuple[FilteredSubscriptions, ...]
    """Those whose policies have to be evaluated for each message."""
    exact: dict[str, dict[Value, list[FilteredSubscriptions]]]
    """The others by attributes and values, of which their policies demand one."""
    on_attributes: int
    """Number of subscriptions with filter policies on attributes."""
    on_body: int
    """Number of those with filter policies on the body."""
    paths: PathTree
    """Paths of all filter policies in bodies."""
    memory_bytes: int
    """Estimated memory."""
    standing_plan: StandingPlan | None = None
    """Plan of the latest publication, if it is that of others, too."""


class AudienceCache:
    """Audiences by the ids of topics: the most recently used ones, within :data:`AUDIENCES_BYTES_MAX`."""

    def __init__(self, *, bytes_max: int = AUDIENCES_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._audiences: OrderedDict[int, TopicAudience] = OrderedDict()
        self._bytes = 0
        self._policies: WeakValueDictionary[tuple[str, str], FilterPolicy] = WeakValueDictionary()
        """Policies in use by scope and text."""
        self._making: dict[int, tuple[Sequence[Subscription], asyncio.Task[TopicAudience]]] = {}

    @property
    def memory_bytes(self) -> int:
        """Estimated memory of all audiences."""
        return self._bytes

    def cached(self, topic_id: int, records: Sequence[Subscription]) -> TopicAudience | None:
        """The audience of a topic with these subscriptions; None: it has to be compiled, by :meth:`get`."""
        known = self._audiences.get(topic_id)
        if known is None or known.records is not records:
            return None
        self._audiences.move_to_end(topic_id)
        return known

    async def get(self, topic_id: int, records: Sequence[Subscription]) -> TopicAudience:
        """The audience of a topic with these subscriptions, compiled once for all callers that wait for it."""
        known = self.cached(topic_id, records)
        if known is not None:
            return known
        making = self._making.get(topic_id)
        if making is None or making[0] is not records:
            task = asyncio.create_task(self._make(records), name="compilation of filter policies")
            making = self._making[topic_id] = (records, task)
            task.add_done_callback(lambda done: self._made(topic_id, done))
        return await asyncio.shield(making[1])

    def _made(self, topic_id: int, task: asyncio.Task[TopicAudience]) -> None:
        making = self._making.get(topic_id)
        if making is None or making[1] is not task:
            return  # a later one is being made
        del self._making[topic_id]
        if not task.cancelled() and task.exception() is None:
            self._keep(topic_id, task.result())

    def _keep(self, topic_id: int, audience: TopicAudience) -> None:
        known = self._audiences.pop(topic_id, None)
        if known is not None:
            self._bytes -= known.memory_bytes
        self._audiences[topic_id] = audience
        self._bytes += audience.memory_bytes
        while self._bytes > self._bytes_max and len(self._audiences) > 1:
            _, dropped = self._audiences.popitem(last=False)
            self._bytes -= dropped.memory_bytes

    async def _make(self, records: Sequence[Subscription]) -> TopicAudience:
        unfiltered: list[SubscriptionView] = []
        filtered: dict[FilterPolicy, list[SubscriptionView]] = {}
        unreadable: list[SubscriptionView] = []
        reasons: list[str] = []
        paths, memory, steps = PathTree(), 0, 0
        for record in records:
            memory += memory_bytes(record) + _VIEW_BYTES
            if record.pending:
                continue
            try:
                policy, reason = self._policy(record), ""
            except SqsError as error:
                policy, reason = None, error.message
            view = self._view(record)
            if view is None:
                continue
            if reason:
                unreadable.append(view)
                reasons.append(reason)
                continue
            steps += 1
            if policy is None:
                unfiltered.append(view)
            elif policy in filtered:
                filtered[policy].append(view)
            else:
                filtered[policy] = [view]
                memory += policy.memory_bytes
                steps += policy.memory_bytes // 1024
                if policy.on_body:
                    paths.add(policy.paths)
            if steps >= TURN_STEPS:
                steps = 0
                await asyncio.sleep(0)
        if unreadable:
            one = unreadable[0].subscription
            log.error(
                "%d subscriptions of topic %r of account %s get no messages, because this release cannot read their "
                "filter policies. The first is %s: %s",
                *(len(unreadable), one.topic_name, one.topic_account, one.subscription_id.hex(), reasons[0][:500]),
            )
        others, exact = _by_values([(policy, tuple(views)) for policy, views in filtered.items()])
        return TopicAudience(
            records=records,
            unfiltered=tuple(unfiltered),
            unreadable=tuple(unreadable),
            filtered=others,
            exact=exact,
            on_attributes=sum(len(views) for policy, views in filtered.items() if not policy.on_body),
            on_body=sum(len(views) for policy, views in filtered.items() if policy.on_body),
            paths=paths,
            memory_bytes=memory + _PATH_BYTES * paths.size,
        )

    def _view(self, subscription: Subscription) -> SubscriptionView | None:
        """The view of a subscription; None if it cannot be delivered to, as one of another release."""
        stored = subscription.attributes
        queue = subscription_attributes.queue_of(subscription)
        if queue is None:
            return None
        dead_letter = subscription_attributes.dead_letter_arn(stored)
        return SubscriptionView(
            subscription=subscription,
            raw=stored.get("RawMessageDelivery") == "true",
            queue=queue,
            dead_letter=None if dead_letter is None else arn.parse(dead_letter),
        )

    def _policy(self, subscription: Subscription) -> FilterPolicy | None:
        stored = subscription.attributes
        text = stored.get("FilterPolicy")
        if text is None:
            return None
        key = (subscription_attributes.filter_scope(stored), text)
        policy = self._policies.get(key)
        if policy is None:
            policy = subscription_attributes.compiled(stored)
            if policy is not None:
                self._policies[key] = policy
        return policy


def _by_values(
    every: Sequence[FilteredSubscriptions],
) -> tuple[tuple[FilteredSubscriptions, ...], dict[str, dict[Value, list[FilteredSubscriptions]]]]:
    """Separate policies that demand one of some values of an attribute, to be found by these."""
    others: list[FilteredSubscriptions] = []
    exact: dict[str, dict[Value, list[FilteredSubscriptions]]] = {}
    for one in every:
        if one[0].exact is None:
            others.append(one)
        else:
            name, values = one[0].exact
            for value in values:
                exact.setdefault(name, {}).setdefault(value, []).append(one)
    return tuple(others), exact

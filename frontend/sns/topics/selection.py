"""Selection of the subscriptions whose filter policies match a publication, in bounded work and memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import NamedTuple, TypeVar

from frontend.sns.filters.body_paths import PathTree
from frontend.sns.filters.message import FilterMessage
from frontend.sns.filters.policy import FilterPolicy
from frontend.sns.filters.work import STEPS_AT_ONCE, TRIAL_STEPS, TooMuchWork
from frontend.sns.messages.publication import PublishedMessage
from frontend.sns.topics.account_turns import AccountTurns
from frontend.sns.topics.audiences import FilteredSubscriptions, SubscriptionView, TopicAudience
from frontend.sns.topics.outcomes import DecidedOutcomes
from frontend.sqs.protocol.md5 import Attribute

SHORT_CHARACTERS, LARGE_CHARACTERS = 4 * 1024, 24 * 1024
"""Maximum length of a short message, and of one that is not large.  The values of these and their indexes take at most
70 times as much memory, 0.3 and 1.7 MiB."""
VALUES_BYTES_MAX = 13 * 1024 * 1024
"""Maximum memory of the values of a message of any length, and of their indexes [measured]."""
MESSAGES_AT_ONCE = 16
"""Number of messages that are neither short nor large and are evaluated at the same time on the event loop."""

T = TypeVar("T")


class Selection(NamedTuple):
    """The subscriptions to which a publication is relevant."""

    matching: list[SubscriptionView]
    """Those without a filter policy, and those whose policies match."""
    undecided: list[SubscriptionView]
    """Those whose policies need more steps than their share or cannot be compiled: they do not get the message."""


class SubscriptionSelector:
    """Selects subscriptions by filter policies.

    Each policy is tried on the event loop with few steps.  Those that need more, as for a body with a large array, are
    evaluated afterwards in a thread, which there is one of in a process.  Each of these policies has an equal share of
    the steps that the others have left, so that an expensive policy fails alone.

    The messages of accounts get their turns in rounds, so that those of one wait for few of another.

    Memory is bounded for all messages together: one at a time is evaluated in the thread, or is large; others are
    evaluated on the event loop a few at a time, unless they are short.  While a message waits for the thread, it does
    not hold its values, and others are evaluated on the event loop.
    """

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._alone = AccountTurns(1)
        self._at_once = AccountTurns(MESSAGES_AT_ONCE)

    async def select(
        self, account: str, audience: TopicAudience, message: PublishedMessage, outcomes: DecidedOutcomes
    ) -> Selection:
        """The subscriptions that get a message; those that do not match are counted in ``outcomes``.

        ``account``: the topic's owner.  Raises RequestThrottled if too many of its messages wait.
        """
        selection = Selection(list(audience.unfiltered), list(audience.unreadable))
        if not audience.filtered and not audience.exact:
            return selection
        filtered = FilterMessage(message.attributes, message.message, audience.paths)
        left = _Unmatched(audience.on_attributes, audience.on_body)
        if filtered.characters > LARGE_CHARACTERS:
            async with self._alone.turn(account):
                expensive = await self._try(audience, filtered, selection, left)
                await self._evaluate(expensive, filtered, selection, left)
        else:
            async with self._at_once.turn(account) if filtered.characters > SHORT_CHARACTERS else nullcontext():
                expensive = await self._try(audience, filtered, selection, left)
            if expensive:
                filtered.release()
                async with self._alone.turn(account):
                    await self._evaluate(expensive, filtered, selection, left)
        outcomes.filtered_by_attributes = left.by_attributes
        outcomes.filtered_without_attributes = 0 if message.attributes else left.by_attributes
        outcomes.filtered_by_body = left.by_body
        outcomes.filtered_invalid_body = left.by_body if audience.on_body and not filtered.is_object else 0
        return selection

    async def matches(self, account: str, policy: FilterPolicy, attributes: Sequence[Attribute], body: str) -> bool:
        """True if a policy alone matches a message.  Raises :class:`TooMuchWork`, and RequestThrottled if too many
        messages of the account wait."""
        paths = PathTree()
        if policy.on_body:
            paths.add(policy.paths)
        async with self._alone.turn(account):
            return await self._in_thread(policy.matches, FilterMessage(attributes, body, paths))

    async def _try(
        self, audience: TopicAudience, message: FilterMessage, selection: Selection, left: _Unmatched
    ) -> list[FilteredSubscriptions]:
        """Evaluate policies on the event loop; returns those that need more steps than are allowed there."""
        if audience.on_attributes:
            await self._read(message, message.attribute_values)
        if audience.on_body:
            await self._read(message, message.body_values)
        work = message.work
        turn = STEPS_AT_ONCE // 2
        expensive: list[FilteredSubscriptions] = []
        for policy, subscriptions in _candidates(audience, message):
            work.allow(TRIAL_STEPS)
            try:
                if policy.matches(message):
                    left.remove(policy, subscriptions)
                    selection.matching.extend(subscriptions)
            except TooMuchWork:
                expensive.append((policy, subscriptions))
            if work.steps > turn:
                await asyncio.sleep(0)
                turn = work.steps + STEPS_AT_ONCE // 2
        return expensive

    async def _evaluate(
        self,
        expensive: Sequence[FilteredSubscriptions],
        message: FilterMessage,
        selection: Selection,
        left: _Unmatched,
    ) -> None:
        """Evaluate policies in the thread, with the steps that are left."""
        work = message.work
        for place, (policy, subscriptions) in enumerate(expensive):
            work.allow_policy(work.left // (len(expensive) - place))
            try:
                found = selection.matching if await self._in_thread(policy.matches, message) else None
            except TooMuchWork:
                found = selection.undecided
            if found is not None:
                left.remove(policy, subscriptions)
                found.extend(subscriptions)

    async def _read(self, message: FilterMessage, read: Callable[[], object]) -> None:
        """Read the values of a message."""
        message.work.allow(STEPS_AT_ONCE // 2)
        try:
            read()
        except TooMuchWork:
            message.work.allow_policy(0)
            await self._in_thread(read)

    async def _in_thread(self, function: Callable[..., T], *given: FilterMessage) -> T:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "filter policies")
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *given)


class _Unmatched:
    """Numbers of subscriptions whose policies do not match."""

    __slots__ = ("by_attributes", "by_body")

    def __init__(self, by_attributes: int, by_body: int) -> None:
        self.by_attributes = by_attributes
        self.by_body = by_body

    def remove(self, policy: FilterPolicy, subscriptions: Sequence[SubscriptionView]) -> None:
        """Remove subscriptions with a policy."""
        if policy.on_body:
            self.by_body -= len(subscriptions)
        else:
            self.by_attributes -= len(subscriptions)


def _candidates(audience: TopicAudience, message: FilterMessage) -> Sequence[FilteredSubscriptions]:
    """The policies that have to be evaluated for a message whose values are read."""
    attributes = message.attribute_values() if audience.exact else None
    if attributes is None:
        return audience.filtered
    found: list[FilteredSubscriptions] = []
    for name, by_value in audience.exact.items():
        values = attributes.get(name)
        if values is not None:
            for value in by_value.keys() & values.values:
                found += by_value[value]
    distinct = {policy: (policy, subscriptions) for policy, subscriptions in found}
    return [*audience.filtered, *distinct.values()]

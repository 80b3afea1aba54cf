"""Selection of the subscriptions whose filter policies match a publication, in bounded work."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from frontend.sns.filters.message import FilterMessage
from frontend.sns.filters.policy import FilterPolicy
from frontend.sns.filters.work import STEPS_AT_ONCE, STEPS_MAX, TooMuchWork
from frontend.sns.messages.publication import PublishedMessage
from frontend.sns.protocol.errors import invalid_parameter
from frontend.sns.topics.audiences import FilteredSubscriptions, SubscriptionView, TopicAudience
from frontend.sns.topics.outcomes import DecidedOutcomes


class SubscriptionSelector:
    """Selects subscriptions by filter policies.

    Few steps are made on the event loop.  A policy that needs more, as for a body with a large array, is evaluated in
    a thread, which there is one of in a process: publications take turns in it policy by policy.
    """

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None

    async def select(
        self, audience: TopicAudience, message: PublishedMessage, outcomes: DecidedOutcomes
    ) -> list[SubscriptionView]:
        """The subscriptions that get a message; the others are counted in ``outcomes``.

        Raises InvalidParameter if their policies take too much work.
        """
        found = list(audience.unfiltered)
        if not audience.filtered and not audience.exact:
            return found
        filtered = FilterMessage(message.attributes, message.message, audience.paths)
        by_attributes, by_body = audience.on_attributes, audience.on_body
        work, turn = filtered.work, STEPS_AT_ONCE // 2
        work.allow(STEPS_AT_ONCE)
        for policy, subscriptions in _candidates(audience, filtered):
            try:
                matches = policy.matches(filtered)
            except TooMuchWork:
                matches = await self._matches_in_thread(policy, filtered)
            if matches:
                found += subscriptions
                if policy.on_body:
                    by_body -= len(subscriptions)
                else:
                    by_attributes -= len(subscriptions)
            if work.steps > turn:
                await asyncio.sleep(0)
                turn = work.steps + STEPS_AT_ONCE // 2
                work.allow(STEPS_AT_ONCE)
        outcomes.filtered_by_attributes = by_attributes
        outcomes.filtered_without_attributes = 0 if message.attributes else by_attributes
        outcomes.filtered_by_body = by_body
        outcomes.filtered_invalid_body = by_body if audience.on_body and filtered.body_values() is None else 0
        return found

    async def _matches_in_thread(self, policy: FilterPolicy, message: FilterMessage) -> bool:
        message.work.allow(STEPS_MAX)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "filter policies")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, policy.matches, message)
        except TooMuchWork:
            raise invalid_parameter(
                "Message Reason: the filter policies of the topic's subscriptions take too much work for it. Publish "
                "a smaller message, or one with shorter arrays, or use policies with fewer wildcards"
            ) from None


def _candidates(audience: TopicAudience, message: FilterMessage) -> Sequence[FilteredSubscriptions]:
    """The policies that have to be evaluated for a message."""
    if not audience.exact:
        return audience.filtered
    try:
        attributes = message.attribute_values()
    except TooMuchWork:  # those that need them are evaluated in the thread
        every = [one for by_value in audience.exact.values() for found in by_value.values() for one in found]
        return _distinct(audience.filtered, every)
    found: list[FilteredSubscriptions] = []
    for name, by_value in audience.exact.items():
        values = None if attributes is None else attributes.get(name)
        if values is not None:
            for value in by_value.keys() & values.values:
                found += by_value[value]
    return _distinct(audience.filtered, found)


def _distinct(
    some: Sequence[FilteredSubscriptions], others: Sequence[FilteredSubscriptions]
) -> Sequence[FilteredSubscriptions]:
    return [*some, *{policy: (policy, subscriptions) for policy, subscriptions in others}.values()]

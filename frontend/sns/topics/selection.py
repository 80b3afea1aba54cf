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
        work, turn = filtered.work, STEPS_AT_ONCE // 2
        work.allow(STEPS_AT_ONCE)
        candidates, skipped = _candidates(audience, filtered)
        outcomes.filtered_by_attributes += skipped
        outcomes.filtered_without_attributes += 0 if message.attributes else skipped
        for policy, subscriptions in candidates:
            try:
                matches = policy.matches(filtered)
            except TooMuchWork:
                matches = await self._matches_in_thread(policy, filtered)
            if matches:
                found += subscriptions
            elif policy.on_body:
                outcomes.filtered_by_body += len(subscriptions)
                outcomes.filtered_invalid_body += len(subscriptions) if filtered.body_values() is None else 0
            else:
                outcomes.filtered_by_attributes += len(subscriptions)
                outcomes.filtered_without_attributes += 0 if message.attributes else len(subscriptions)
            if work.steps > turn:
                await asyncio.sleep(0)
                turn = work.steps + STEPS_AT_ONCE // 2
                work.allow(STEPS_AT_ONCE)
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


def _candidates(audience: TopicAudience, message: FilterMessage) -> tuple[Sequence[FilteredSubscriptions], int]:
    """The policies that have to be evaluated for a message, and the number of subscriptions with others."""
    if not audience.exact:
        return audience.filtered, 0
    found: list[FilteredSubscriptions] = []
    try:
        attributes = message.attribute_values() or {}
        for name, by_value in audience.exact.items():
            values = attributes.get(name)
            if values is not None:
                for value in by_value.keys() & values.values:
                    found += by_value[value]
    except TooMuchWork:  # those that need the attributes are evaluated in the thread
        found = [one for by_value in audience.exact.values() for some in by_value.values() for one in some]
    exact = dict(found)
    return [*audience.filtered, *exact.items()], audience.exact_subscriptions - sum(map(len, exact.values()))

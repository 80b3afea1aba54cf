"""Plans of publications: the queues that they are delivered to, and the numbers that are counted of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from backend.api import Delivery
from frontend.queues.view import QueueView
from frontend.sns.topics.outcomes import DecidedOutcomes
from metadata_service.topics import PUSHED_PROTOCOLS, is_hidden

DeliveryProtocol = Literal["sqs", "http", "https", "dead-letter"]
"""Protocol of a delivery; ``dead-letter``: to the dead-letter queue of a subscription, after the delivery failed."""


class PlannedDelivery(msgspec.Struct, frozen=True):
    """One queue that a publication is to be delivered to."""

    queue: QueueView
    subscription_id: bytes
    raw: bool
    """True if the message is delivered as it was published, without SNS's JSON."""
    dead_letter: bool = False
    """True if the queue is the subscription's dead-letter queue."""
    fixed: Delivery | None = None
    """The delivery of each publication; None: it depends on the publication, or its partition is chosen each time."""

    @property
    def is_pushed(self) -> bool:
        """True if the queue is the hidden one of a subscription of HTTP, from which the message is pushed."""
        return is_hidden(self.queue.queue.name)


def planned_delivery(
    queue: QueueView, subscription_id: bytes, raw: bool, *, dead_letter: bool = False
) -> PlannedDelivery:
    """Plan a delivery to a queue."""
    is_fixed = not queue.fifo and not queue.is_partitioned
    fixed = Delivery(queue.target, subscription_id, raw) if is_fixed else None
    return PlannedDelivery(queue, subscription_id, raw, dead_letter, fixed)


class PlannedCounts(msgspec.Struct, frozen=True):
    """Numbers of a publication's deliveries."""

    to_queues: int
    """Those to subscribed queues."""
    failed: int
    by_protocol: Sequence[tuple[DeliveryProtocol, int, int]]
    """Numbers of deliveries, and of those that fail, where there are any."""


class DeliveryPlan(msgspec.Struct, frozen=True):
    """The deliveries of a publication, and the outcomes of its others."""

    deliveries: tuple[PlannedDelivery, ...]
    outcomes: DecidedOutcomes | None
    """None: it is delivered to all subscriptions."""
    counts: PlannedCounts
    has_envelopes: bool
    """True if a delivery is in SNS's JSON."""
    has_pushes: bool
    """True if a delivery is to an endpoint of HTTP."""


def delivery_plan(deliveries: Sequence[PlannedDelivery], outcomes: DecidedOutcomes) -> DeliveryPlan:
    """Make the plan of these deliveries."""
    pushed = sum(one.is_pushed and not one.dead_letter for one in deliveries)
    return DeliveryPlan(
        tuple(deliveries),
        None if outcomes == _NONE else outcomes,
        _counts(deliveries, pushed, outcomes),
        has_envelopes=any(not one.raw for one in deliveries),
        has_pushes=pushed > 0,
    )


def _counts(deliveries: Sequence[PlannedDelivery], pushed: int, decided: DecidedOutcomes) -> PlannedCounts:
    """``pushed``: number of deliveries that are counted when their endpoints have confirmed them."""
    dead_letters = sum(one.dead_letter for one in deliveries)
    to_queues = len(deliveries) - dead_letters - pushed
    failed = sum(decided.failures.values())
    failed_to_queues = failed - sum(decided.failed_pushes.values())
    by_protocol: list[tuple[DeliveryProtocol, int, int]] = []
    if to_queues or failed_to_queues:
        by_protocol.append(("sqs", to_queues, failed_to_queues))
    for protocol in PUSHED_PROTOCOLS:
        failed_pushes = decided.failed_pushes.get(protocol, 0)
        if failed_pushes:
            by_protocol.append((protocol, 0, failed_pushes))
    if dead_letters or decided.redrive_failed:
        by_protocol.append(("dead-letter", dead_letters, decided.redrive_failed))
    return PlannedCounts(to_queues, failed, by_protocol)


_NONE = DecidedOutcomes()


class StandingPlan(msgspec.Struct, frozen=True):
    """The plan of all publications to an audience that its queues take, as long as their records are the same."""

    plan: DeliveryPlan
    size_max: int
    """Bytes of a publication that all queues take."""

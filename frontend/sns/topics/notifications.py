"""Counts of notifications: in usage, in the metrics of the service, and in those of their topic.

A delivery to a queue is decided before its publication is stored, and counts when it is: from then on the queue gets
it.  A delivery by HTTP counts when its endpoint has confirmed it, or when it is given up
(:meth:`NotificationCounter.count`).  Counts of topics are kept by the owner of the topic's hidden queue, and reported
to it every few seconds.
"""

from __future__ import annotations

import asyncio
import logging
from functools import lru_cache
from typing import Final, Literal

from backend.api import BackendError, CountNotifications, NotificationCounts
from billing.metering.meter import Meter
from billing.metering.usage import BYTES_OUT, CHUNKS, EMPTY, MESSAGES, Kind, UsageKey, chunks_of
from frontend.queues.queues import Queues
from frontend.services import Services
from frontend.sns.topics.deliveries import PreparedPublication
from frontend.sns.topics.outcomes import DeliveryFailure
from frontend.sns.topics.plans import DeliveryProtocol
from frontend.sqs.protocol.errors import SqsError
from metadata_service.store import StoreError
from metadata_service.topics import Topic, hidden_queue_name
from telemetry.metrics import Counter, Registry

REPORT_SECONDS: Final = 5.0
"""Time within which counts are reported to the owners of topics' hidden queues."""
TOPICS_MAX: Final = 10_000
"""Maximum number of topics whose counts wait to be reported.  Those of others are dropped meanwhile."""
_KINDS: Final[dict[DeliveryProtocol, Kind]] = {"http": "delivery_http", "https": "delivery_http"}

log = logging.getLogger("holdfast.sqs")

DELIVERIES = Counter(
    "holdfast_topic_deliveries_total",
    "Deliveries of stored publications, by protocol (sqs, http, https, dead-letter) and outcome (delivered, failed).",
    labels=("protocol", "outcome"),
    series_max=10,
)
FAILURES = Counter(
    "holdfast_topic_failed_deliveries_total",
    "Deliveries of stored publications that failed, by reason.",
    labels=("reason",),
    series_max=12,
)


class NotificationCounter:
    """Counts deliveries of this process."""

    def __init__(self, services: Services, queues: Queues) -> None:
        self._meter = services.meter
        self._metadata = services.metadata
        self._queues = queues
        self._waiting: dict[int, tuple[Topic, NotificationCounts]] = {}
        """Counts to be reported, by topic."""
        self._timer: asyncio.TimerHandle | None = None
        self._reporting: asyncio.Task[None] | None = None

    # --- counting ---------------------------------------------------------------------------------------------

    def reserve(self, topic: Topic, publication: PreparedPublication) -> None:
        """Make room for the usage of a publication that is about to be stored.

        Raises :class:`~billing.metering.meter.UsageNotCounted`.
        """
        if self._meter is not None:
            for protocol, _, _ in publication.plan.counts.by_protocol:
                _cell(self._meter, topic, protocol)

    def stored(self, topic: Topic, publication: PreparedPublication) -> None:
        """Count a publication that was stored, and its deliveries.

        Raises :class:`~billing.metering.meter.UsageNotCounted`.
        """
        planned = publication.plan.counts
        for protocol, delivered, failed in planned.by_protocol:
            self._count(topic, protocol, delivered, failed, publication.size)
        counts = self._counts(topic)
        counts.published += 1
        counts.published_bytes += publication.size
        counts.delivered += planned.to_queues
        decided = publication.plan.outcomes
        if decided is None:
            return
        for reason, count in decided.failures.items():
            FAILURES.add(reason.value, count=count)
        counts.failed += planned.failed
        counts.filtered_by_attributes += decided.filtered_by_attributes
        counts.filtered_without_attributes += decided.filtered_without_attributes
        counts.filtered_by_body += decided.filtered_by_body
        counts.filtered_invalid_body += decided.filtered_invalid_body
        counts.redriven += decided.redriven
        counts.redrive_failed += decided.redrive_failed

    def count(self, topic: Topic, protocol: DeliveryProtocol, *, delivered: bool, size: int) -> None:
        """Count the outcome of one delivery by HTTP, or of the move of one to a dead-letter queue (``dead-letter``).

        ``delivered``: False if it failed for good.  ``size``: bytes of the published message and its attributes.
        Raises :class:`~billing.metering.meter.UsageNotCounted`.
        """
        self._count(topic, protocol, int(delivered), int(not delivered), size)
        counts = self._counts(topic)
        if protocol == "dead-letter":
            counts.redriven += delivered
            counts.redrive_failed += not delivered
        else:
            counts.delivered += delivered
            counts.failed += not delivered
            if not delivered:
                FAILURES.add(DeliveryFailure.ENDPOINT.value)

    def _count(self, topic: Topic, protocol: DeliveryProtocol, delivered: int, failed: int, size: int) -> None:
        """Meter deliveries of one publication."""
        if delivered:
            DELIVERIES.counts[_series(protocol, "delivered")] += delivered
        if failed:
            DELIVERIES.counts[_series(protocol, "failed")] += failed
        meter = self._meter
        if meter is None:
            return
        cell = _cell(meter, topic, protocol)
        counters = meter.counters
        counters[cell + MESSAGES] += delivered
        counters[cell + CHUNKS] += delivered * chunks_of(size)
        counters[cell + EMPTY] += failed
        if protocol in _KINDS:
            counters[cell + BYTES_OUT] += delivered * size

    # --- reports ----------------------------------------------------------------------------------------------

    def _counts(self, topic: Topic) -> NotificationCounts:
        """Return the counts of a topic that are to be reported, to be increased at once."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(REPORT_SECONDS, self._start_report)
        waiting = self._waiting.get(topic.topic_id)
        if waiting is not None:
            return waiting[1]
        counts = NotificationCounts()
        if len(self._waiting) < TOPICS_MAX:
            self._waiting[topic.topic_id] = topic, counts
        return counts

    def _start_report(self) -> None:
        self._timer = None
        if self._reporting is None:
            self._reporting = asyncio.get_running_loop().create_task(self.report(), name="the counts of topics")
            self._reporting.add_done_callback(self._on_reported)

    def _on_reported(self, _: asyncio.Task[None]) -> None:
        self._reporting = None

    async def report(self) -> None:
        """Report all counts now.  They are statistics: what cannot be reported waits for the next report."""
        waiting, self._waiting = self._waiting, {}
        for topic, counts in waiting.values():
            try:
                await self._report(topic, counts)
            except (BackendError, StoreError, SqsError) as error:
                log.debug("counts of topic %r of account %s are reported later: %s", topic.name, topic.account, error)
                self._counts(topic).add(counts)

    async def _report(self, topic: Topic, counts: NotificationCounts) -> None:
        queue = await self._metadata.find(topic.account, hidden_queue_name(topic.name))
        if queue is not None and queue.queue_id == topic.topic_id:  # else the topic was deleted
            view = self._queues.view(queue)
            await self._queues.call(view, CountNotifications(view.target, counts))

    async def close(self) -> None:
        """Report what waits, and stop."""
        if self._timer is not None:
            self._timer.cancel()
        if self._reporting is not None:
            await asyncio.wait([self._reporting])
        await self.report()
        if self._timer is not None:
            self._timer.cancel()


@lru_cache
def _series(protocol: DeliveryProtocol, outcome: Literal["delivered", "failed"]) -> int:
    """Index of a series of deliveries, which exists from its first count on."""
    return DELIVERIES.index(protocol, outcome)


def _cell(meter: Meter, topic: Topic, protocol: DeliveryProtocol) -> int:
    """Cells of the usage of a topic's deliveries."""
    tags = tuple(sorted(topic.tags.items())) if topic.tags else ()
    name = (topic.topic_id, protocol, tags)  # its version changes with each subscription, and its tags seldom do
    cell = meter.cells_of.get(name)
    if cell is None:
        kind = _KINDS.get(protocol, "delivery_sqs")
        key = UsageKey(topic.account, topic.name, topic.topic_id, kind, f"delivery:{protocol}", tags)
        cell = meter.open(name, key)
    return cell


def register(registry: Registry) -> None:
    """Register the metrics of deliveries."""
    registry.add(DELIVERIES)
    registry.add(FAILURES)

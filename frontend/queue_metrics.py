"""Queue metrics for tenants: CloudWatch's names for SQS, and pages for their Prometheus.

Nodes report the current content of their partitions, and counters since they took each partition
(:class:`backend.api.Measures`).  A counter may therefore reset, as Prometheus allows; it does so for each
partition separately, so the page has a series per partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

from backend.api import AccountMeasures, Backend, Measures
from frontend.queues.attributes import STORED_BYTES
from metadata_service.topics import hidden_queue_name, subscription_id_of, topic_name_of
from telemetry.metrics import Family, Series

KEPT_SECONDS: Final = 10.0
"""Time for which a page is cached."""
PAGES_KEPT: Final = 64
QUEUES_MAX: Final = 10_000
"""Maximum number of queues on one page: some 10 MB."""

Unit = Literal["Count", "Seconds", "Bytes"]


class Metric(NamedTuple):
    """A metric of a queue, or of a topic."""

    name: str
    """CloudWatch's name, if it has one."""
    unit: Unit
    family: str
    """Name in Prometheus."""
    help: str
    read: Callable[[Measures, int], float | None]
    """Value of a partition, at a time in milliseconds; None: it does not have this metric."""
    counts: bool = False
    """True for a counter, which only rises until it resets."""
    together: Callable[[list[float]], float] = sum
    """Aggregation of the partitions' values."""


def age_seconds(one: Measures, now_ms: int) -> float:
    """Age of the oldest message."""
    return max(0, now_ms - one.oldest_ms) / 1000 if one.oldest_ms else 0.0


METRICS: Final = (
    Metric(
        "ApproximateNumberOfMessagesVisible",
        "Count",
        "holdfast_queue_messages_visible",
        "Messages that can be received.",
        lambda one, _: one.visible,
    ),
    Metric(
        "ApproximateNumberOfMessagesNotVisible",
        "Count",
        "holdfast_queue_messages_not_visible",
        "Messages in flight: received, and not deleted yet.",
        lambda one, _: one.in_flight,
    ),
    Metric(
        "ApproximateNumberOfMessagesDelayed",
        "Count",
        "holdfast_queue_messages_delayed",
        "Messages that cannot be received yet because they are delayed.",
        lambda one, _: one.delayed,
    ),
    Metric(
        "ApproximateAgeOfOldestMessage",
        "Seconds",
        "holdfast_queue_oldest_message_age_seconds",
        "Age of the oldest message, in any state.",
        age_seconds,
        together=max,
    ),
    Metric(
        STORED_BYTES,
        "Bytes",
        "holdfast_queue_stored_bytes",
        "Stored bytes of all messages.",
        lambda one, _: one.stored_bytes,
    ),
    Metric(
        "NumberOfMessagesSent",
        "Count",
        "holdfast_queue_messages_sent_total",
        "Messages sent to the queue, without those moved from another queue.",
        lambda one, _: one.sent,
        counts=True,
    ),
    Metric(
        "SentMessageSize",
        "Bytes",
        "holdfast_queue_sent_message_bytes_total",
        "Stored bytes of the messages sent.",
        lambda one, _: one.sent_bytes,
        counts=True,
    ),
    Metric(
        "NumberOfMessagesReceived",
        "Count",
        "holdfast_queue_messages_received_total",
        "Messages returned by receives.",
        lambda one, _: one.received,
        counts=True,
    ),
    Metric(
        "NumberOfEmptyReceives",
        "Count",
        "holdfast_queue_empty_receives_total",
        "Receives that returned no message.",
        lambda one, _: one.empty_receives,
        counts=True,
    ),
    Metric(
        "NumberOfMessagesDeleted",
        "Count",
        "holdfast_queue_messages_deleted_total",
        "Messages deleted by receipt handle.",
        lambda one, _: one.deleted,
        counts=True,
    ),
    Metric(
        "NumberOfDeduplicatedSentMessages",
        "Count",
        "holdfast_queue_deduplicated_sent_messages_total",
        "Repeated sends that were not stored again.",
        lambda one, _: one.deduplicated,
        counts=True,
    ),
    Metric(
        "ApproximateNumberOfGroupsWithInflightMessages",
        "Count",
        "holdfast_queue_groups_in_flight",
        "FIFO queues: message groups with messages in flight.",
        lambda one, _: one.groups_in_flight,
    ),
    Metric(
        "ApproximateNumberOfNoisyGroups",
        "Count",
        "holdfast_queue_noisy_groups",
        "Fair queues: message groups with more than their share, which are delivered last.",
        lambda one, _: one.noisy_groups,
    ),
    Metric(
        "ApproximateNumberOfMessagesVisibleInQuietGroups",
        "Count",
        "holdfast_queue_messages_visible_in_quiet_groups",
        "Fair queues: messages of all other groups that can be received.",
        lambda one, _: one.visible_quiet,
    ),
)
BY_NAME: Final = {metric.name: metric for metric in METRICS}

_OWN: Final = "Holdfast"
"""Beginning of the names of metrics that CloudWatch does not have."""
TRUNCATED: Final = "holdfast_queue_metrics_truncated"


def value_of(metric: Metric, parts: Sequence[Measures], now_ms: int) -> float | None:
    """Value of a queue, from its partitions; None: it does not have this metric."""
    found = [value for one in parts if (value := metric.read(one, now_ms)) is not None]
    return metric.together(found) if found else None


def measures_by_queue(measures: Sequence[Measures]) -> dict[str, list[Measures]]:
    """Group the partitions' statistics by queue, in the order of the first ones."""
    by_queue: dict[str, list[Measures]] = {}
    for one in measures:
        by_queue.setdefault(one.queue, []).append(one)
    return by_queue


class QueueMetrics:
    """Pages for Prometheus, cached for a while."""

    def __init__(self, backend: Backend, now_ms: Callable[[], int], topic_metrics: Sequence[Metric] = ()) -> None:
        """``topic_metrics``: metrics of topics, which are on the same pages."""
        self._backend = backend
        self._now_ms = now_ms
        self._topic_metrics = topic_metrics
        self._pages: dict[tuple[object, ...], tuple[float, asyncio.Task[bytes]]] = {}

    async def page(self, account: str, prefixes: Sequence[str], queues_max: int) -> bytes:
        """Page of the account's first ``queues_max`` queues and topics, of those whose names begin with one of
        ``prefixes``; queues come first.

        Raises :class:`~backend.api.BackendError`.
        """
        if not prefixes:  # the caller may see no queues
            return await asyncio.to_thread(self._page, [], queues_max, 0)
        now = asyncio.get_running_loop().time()
        key = (account, *prefixes, queues_max)
        known = self._pages.get(key)
        if known is None or known[0] <= now:
            made = asyncio.create_task(self._make(account, prefixes, queues_max), name="a page")
            made.add_done_callback(lambda made: made.cancelled() or made.exception())  # there may be no waiter left
            known = now + KEPT_SECONDS, made
            self._pages = {one: page for one, page in self._pages.items() if page[0] > now}
            if len(self._pages) >= PAGES_KEPT:
                self._pages.pop(next(iter(self._pages)))
            self._pages[key] = known
        try:
            return await asyncio.shield(known[1])
        except Exception:
            if self._pages.get(key) is known:
                del self._pages[key]
            raise

    async def _make(self, account: str, prefixes: Sequence[str], queues_max: int) -> bytes:
        if self._topic_metrics:
            prefixes = [*prefixes, *map(hidden_queue_name, prefixes)]
        else:
            prefixes = [one for one in prefixes if one]
        measures = await self._backend.call(AccountMeasures(account, prefixes, "", queues_max + 1))
        return await asyncio.to_thread(self._page, measures, queues_max, self._now_ms())

    def _page(self, measures: Sequence[Measures], queues_max: int, now_ms: int) -> bytes:
        return _page(measures, self._topic_metrics, queues_max, now_ms)


def _page(measures: Sequence[Measures], topic_metrics: Sequence[Metric], queues_max: int, now_ms: int) -> bytes:
    from telemetry.prometheus import text

    by_name = measures_by_queue([one for one in measures if subscription_id_of(one.queue) is None])
    names = list(by_name)
    queues: dict[str, list[Measures]] = {}
    topics: dict[str, list[Measures]] = {}
    for name in names[:queues_max]:
        topic = topic_name_of(name)
        if topic is None:
            queues[name] = by_name[name]
        else:
            topics[topic] = by_name[name]
    families = [_family(metric, queues, now_ms, "queue") for metric in METRICS]
    families += [_family(metric, topics, now_ms, "topic") for metric in topic_metrics]
    truncated = Family(
        TRUNCATED,
        "gauge",
        "1: the answer does not include all queues and topics; request a prefix, or a higher limit.",
        (),
        (),
        (Series((), float(len(names) > queues_max)),),
    )
    return text([*families, truncated])


def _family(metric: Metric, by_name: dict[str, list[Measures]], now_ms: int, label: str) -> Family:
    if metric.counts:
        series = [
            Series((name, str(one.partition)), value)
            for name, parts in by_name.items()
            for one in parts
            if (value := metric.read(one, now_ms)) is not None
        ]
        labels: tuple[str, ...] = (label, "partition")
    else:
        series = [
            Series((name,), value)
            for name, parts in by_name.items()
            if (value := value_of(metric, parts, now_ms)) is not None
        ]
        labels = (label,)
    help_ = metric.help if metric.name.startswith(_OWN) else f"{metric.help} CloudWatch: {metric.name}."
    return Family(metric.family, "counter" if metric.counts else "gauge", help_, labels, (), tuple(series))

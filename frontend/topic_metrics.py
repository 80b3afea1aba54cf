"""Topic metrics for tenants: CloudWatch's names for SNS.

The owner of a topic's hidden queue keeps its counts (:class:`backend.api.NotificationCounts`), which frontends report
every few seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from backend.api import Measures, NotificationCounts
from frontend.queue_metrics import BY_NAME, Metric, Unit, age_seconds
from metadata_service.topics import is_hidden

PENDING: Final = "HoldfastPendingDeliveries"


def _counter(
    name: str, family: str, help_: str, count: Callable[[NotificationCounts], int], unit: Unit = "Count"
) -> Metric:
    def read(one: Measures, _: int) -> float:
        return 0 if one.notifications is None else count(one.notifications)

    return Metric(name, unit, f"holdfast_topic_{family}_total", help_, read, counts=True)


TOPIC_METRICS: Final = (
    _counter("NumberOfMessagesPublished", "messages_published", "Messages published.", lambda one: one.published),
    _counter(
        "PublishSize",
        "published_bytes",
        "Bytes of the messages published, with their attributes.",
        lambda one: one.published_bytes,
        "Bytes",
    ),
    _counter(
        "NumberOfNotificationsDelivered",
        "notifications_delivered",
        "Notifications handed on to queues, or confirmed by endpoints.",
        lambda one: one.delivered,
    ),
    _counter(
        "NumberOfNotificationsFailed",
        "notifications_failed",
        "Notifications that could not be delivered.",
        lambda one: one.failed + one.expired,
    ),
    _counter(
        "NumberOfNotificationsFilteredOut",
        "notifications_filtered_out",
        "Notifications rejected by filter policies.",
        lambda one: one.filtered_by_attributes + one.filtered_by_body,
    ),
    _counter(
        "NumberOfNotificationsFilteredOut-MessageAttributes",
        "notifications_filtered_out_message_attributes",
        "Notifications rejected by filter policies on attributes.",
        lambda one: one.filtered_by_attributes,
    ),
    _counter(
        "NumberOfNotificationsFilteredOut-NoMessageAttributes",
        "notifications_filtered_out_no_message_attributes",
        "Those of messages that have no attributes.",
        lambda one: one.filtered_without_attributes,
    ),
    _counter(
        "NumberOfNotificationsFilteredOut-MessageBody",
        "notifications_filtered_out_message_body",
        "Notifications rejected by filter policies on bodies.",
        lambda one: one.filtered_by_body,
    ),
    _counter(
        "NumberOfNotificationsFilteredOut-InvalidMessageBody",
        "notifications_filtered_out_invalid_message_body",
        "Those of messages whose body is no JSON object.",
        lambda one: one.filtered_invalid_body,
    ),
    _counter(
        "NumberOfNotificationsRedrivenToDlq",
        "notifications_redriven_to_dlq",
        "Failed notifications that went to a dead-letter queue.",
        lambda one: one.redriven,
    ),
    _counter(
        "NumberOfNotificationsFailedToRedriveToDlq",
        "notifications_failed_to_redrive_to_dlq",
        "Failed notifications that could not go to the dead-letter queue of their subscription.",
        lambda one: one.redrive_failed,
    ),
    Metric(
        PENDING,
        "Count",
        "holdfast_topic_pending_deliveries",
        "Deliveries to queues that are still to be made.",
        lambda one, _: one.pending_deliveries,
    ),
    Metric(
        "HoldfastOldestPendingDelivery",
        "Seconds",
        "holdfast_topic_oldest_pending_delivery_seconds",
        "Age of the oldest message with deliveries to queues that are still to be made.",
        age_seconds,
        together=max,
    ),
)
_TOPIC_METRICS_BY_NAME: Final = {metric.name: metric for metric in TOPIC_METRICS}


def metrics_of(queue: str) -> Mapping[str, Metric]:
    """Metrics of a queue, or of the topic whose hidden queue it is, by name."""
    return _TOPIC_METRICS_BY_NAME if is_hidden(queue) else BY_NAME

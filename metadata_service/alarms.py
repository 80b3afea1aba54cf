"""Records of tenants' alarms on their queues and topics.

The tenant writes an alarm's definition; the alarm keeper (:mod:`frontend.alarm_keeper`) writes its status.
Both are one record, so that they are created and deleted together.
"""

from __future__ import annotations

from typing import Literal

import msgspec

State = Literal["OK", "ALARM", "INSUFFICIENT_DATA"]
Comparison = Literal[
    "GreaterThanThreshold",
    "GreaterThanOrEqualToThreshold",
    "LessThanThreshold",
    "LessThanOrEqualToThreshold",
]


class Alarm(msgspec.Struct, frozen=True):
    """The definition of an alarm.  Immutable: another definition under the same name is another alarm."""

    account: str
    name: str
    """Name, unique in the account."""
    alarm_id: str
    """Random identifier of this definition."""
    queue: str
    """Name of a queue of the account, or of the hidden queue of a topic; it need not exist."""
    metric: str
    """A metric of :data:`frontend.queue_metrics.METRICS`, or of :data:`frontend.topic_metrics.TOPIC_METRICS`."""
    comparison: Comparison
    threshold: float
    minutes: int
    """Number of minutes for which the metric must be beyond its threshold."""
    host: str
    """Host of the webhook's URL; the rest of the URL may hold secrets."""
    webhook: bytes
    """The webhook's URL and its signing secret, encrypted under the tenant's data key."""
    created_s: int


class Notification(msgspec.Struct, frozen=True):
    """A change of an alarm's state, to be sent to the webhook."""

    id: str
    """Identifier of the notification, the same for each delivery attempt."""
    at_s: int
    before: State
    state: State
    value: float | None
    """Value of the metric; None if it was not known."""
    reason: str


class AlarmStatus(msgspec.Struct, frozen=True):
    """State of an alarm."""

    state: State = "INSUFFICIENT_DATA"
    since_s: int = 0
    """Time of the last state change; 0: the state has never changed."""
    value: float | None = None
    """Value of the metric at the last change of this record."""
    breaching_since_s: int = 0
    """Time since when the metric is beyond its threshold; 0: it is not."""
    missing_since_s: int = 0
    """Time since when the metric is not known; 0: it is known."""
    waiting: tuple[Notification, ...] = ()
    """Notifications not delivered to the webhook yet, oldest first."""
    delivered_s: int = msgspec.field(default=0, name="told_s")
    """Time of the last successful delivery."""
    trouble: str = ""
    """Error of the last delivery attempt; empty if it succeeded."""
    lost: int = 0
    """Number of notifications that were dropped."""
    version: int = 0


class WatchedAlarm(msgspec.Struct, frozen=True):
    """An alarm with its status, as stored."""

    alarm: Alarm
    status: AlarmStatus = AlarmStatus()

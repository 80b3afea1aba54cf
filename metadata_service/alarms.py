"""Alarms of tenants on their queues: what is kept of them.

An alarm's definition is a tenant's word, and its status the word of whoever looks after alarms
(:mod:`frontend.alarm_keeper`); both are one record, so that they come and go together.
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
    """What a tenant wants to hear of.  Never changed: another definition under its name is another alarm."""

    account: str
    name: str
    """Unique in the account."""
    alarm_id: str
    """Random."""
    queue: str
    """The name of one of the account's queues, whether there is one or not."""
    metric: str
    """Of :data:`frontend.queue_metrics.METRICS`."""
    comparison: Comparison
    threshold: float
    minutes: int
    """For so long it has to be so."""
    host: str
    """Of the webhook; the rest may hold secrets."""
    webhook: bytes
    """The URL and the secret that what is sent there is signed with, sealed under the tenant's data key."""
    created_s: int


class Notification(msgspec.Struct, frozen=True):
    """A change of an alarm's state, of which the webhook is to be told."""

    id: str
    """Each attempt to tell it says the same one."""
    at_s: int
    before: State
    state: State
    value: float | None
    """Of the metric; None: it was not known."""
    reason: str


class AlarmStatus(msgspec.Struct, frozen=True):
    """How an alarm stands."""

    state: State = "INSUFFICIENT_DATA"
    since_s: int = 0
    """0: it was never anything else."""
    value: float | None = None
    """Of the metric, at the last change of anything here."""
    breaching_since_s: int = 0
    """0: it is not beyond its threshold."""
    missing_since_s: int = 0
    """0: the metric is known."""
    waiting: tuple[Notification, ...] = ()
    """What the webhook has not been told yet, oldest first."""
    told_s: int = 0
    """When it was told something the last time."""
    trouble: str = ""
    """Why it could not be, if the last attempt failed."""
    lost: int = 0
    """Notifications that were given up."""
    version: int = 0


class WatchedAlarm(msgspec.Struct, frozen=True):
    """An alarm with its status, as it is stored."""

    alarm: Alarm
    status: AlarmStatus = AlarmStatus()

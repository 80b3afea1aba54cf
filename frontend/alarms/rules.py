"""State transitions of an alarm: a function of its status, the metric's value, and the time.

An alarm is evaluated about once a minute.  It changes to ALARM when its metric has been beyond the threshold at
each evaluation for its minutes, and to OK at the first evaluation at which it is not.  When the metric has been
unknown for its minutes, and for at least three, it changes to INSUFFICIENT_DATA; until then it keeps its state.
The start times are part of the status, so another process can continue.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

import msgspec

from metadata_service.alarms import Alarm, AlarmStatus, Comparison, Notification, State
from metadata_service.topics import topic_name_of

MISSING_MINUTES_MIN: Final = 3
EARLY_SECONDS: Final = 10
"""Tolerance for the interval of evaluations, which is not exactly a minute."""
WAITING_MAX: Final = 10
"""Maximum number of waiting notifications of an alarm; beyond it the oldest is dropped."""

COMPARISONS: Final[dict[Comparison, tuple[str, Callable[[float, float], bool]]]] = {
    "GreaterThanThreshold": (">", lambda value, threshold: value > threshold),
    "GreaterThanOrEqualToThreshold": (">=", lambda value, threshold: value >= threshold),
    "LessThanThreshold": ("<", lambda value, threshold: value < threshold),
    "LessThanOrEqualToThreshold": ("<=", lambda value, threshold: value <= threshold),
}


def judged(alarm: Alarm, status: AlarmStatus, value: float | None, now_s: int) -> AlarmStatus:
    """Compute the status after an evaluation with this value (None: not known).

    Returns the same object if there is no change to store.
    """
    if value is None:
        missing_since = status.missing_since_s or now_s
        if status.state != "INSUFFICIENT_DATA" and _lasts(
            missing_since, max(alarm.minutes, MISSING_MINUTES_MIN), now_s
        ):
            return _changed(alarm, status, "INSUFFICIENT_DATA", None, now_s, missing_since_s=missing_since)
        if status.missing_since_s:
            return status
        return msgspec.structs.replace(status, missing_since_s=missing_since, value=None)
    _, is_beyond = COMPARISONS[alarm.comparison]
    if not is_beyond(value, alarm.threshold):
        if status.state != "OK":
            return _changed(alarm, status, "OK", value, now_s)
        if not (status.breaching_since_s or status.missing_since_s):
            return status
        return msgspec.structs.replace(status, breaching_since_s=0, missing_since_s=0, value=value)
    breaching_since = status.breaching_since_s or now_s
    if status.state != "ALARM" and _lasts(breaching_since, alarm.minutes, now_s):
        return _changed(alarm, status, "ALARM", value, now_s, breaching_since_s=breaching_since)
    if status.breaching_since_s and not status.missing_since_s:
        return status
    return msgspec.structs.replace(status, breaching_since_s=breaching_since, missing_since_s=0, value=value)


def _lasts(since_s: int, minutes: int, now_s: int) -> bool:
    """True if a condition first seen at ``since_s`` has lasted so many minutes; one evaluation counts as one
    minute."""
    return now_s - since_s >= (minutes - 1) * 60 - EARLY_SECONDS


def _changed(
    alarm: Alarm,
    status: AlarmStatus,
    state: State,
    value: float | None,
    now_s: int,
    *,
    breaching_since_s: int = 0,
    missing_since_s: int = 0,
) -> AlarmStatus:
    waiting, lost = status.waiting, status.lost
    if status.since_s or state != "OK":  # no notification that a new alarm is OK
        notification = Notification(
            secrets.token_hex(16), now_s, status.state, state, value, reason(alarm, state, value)
        )
        waiting = (*waiting, notification)[-WAITING_MAX:]
        lost += len(status.waiting) + 1 - len(waiting)
    return msgspec.structs.replace(
        status,
        state=state,
        since_s=now_s,
        value=value,
        breaching_since_s=breaching_since_s,
        missing_since_s=missing_since_s,
        waiting=waiting,
        lost=lost,
    )


def reason(alarm: Alarm, state: State, value: float | None) -> str:
    """Explain the state in a sentence."""
    topic = topic_name_of(alarm.queue)
    kind, name = ("queue", alarm.queue) if topic is None else ("topic", topic)
    what = f"{alarm.metric} of {kind} {name}"
    if value is None:
        return f"{what} is not known: there is no such {kind}, or it has no such metric, or it cannot be asked."
    sign, _ = COMPARISONS[alarm.comparison]
    if state == "ALARM":
        return f"{what} is {value:.15g}, and has been {sign} {alarm.threshold:.15g} for {alarm.minutes} min."
    return f"{what} is {value:.15g}, and so not {sign} {alarm.threshold:.15g}."

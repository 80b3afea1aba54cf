"""Compare-and-set rule for an alarm's status, shared by every store."""

from __future__ import annotations

import msgspec

from metadata_service.alarms import Alarm, AlarmStatus, WatchedAlarm
from metadata_service.store import ConditionFailed


def next_status(stored: WatchedAlarm | None, alarm: Alarm, status: AlarmStatus) -> AlarmStatus:
    """Return the status with its next version.

    Raises :class:`ConditionFailed` if the stored alarm is another one or its status has another version.
    """
    if stored is None or stored.alarm.alarm_id != alarm.alarm_id:
        raise ConditionFailed(f"alarm {alarm.name} of account {alarm.account} does not exist any more")
    if stored.status.version != status.version:
        raise ConditionFailed(f"the status of alarm {alarm.name} is at version {stored.status.version}")
    return msgspec.structs.replace(status, version=status.version + 1)

"""State transitions of alarms."""

import msgspec
import pytest

from frontend.alarms.rules import WAITING_MAX, judged
from metadata_service.alarms import Alarm, AlarmStatus, Comparison
from tests.tables import table

NOW = 1_800_000_000
NEW = AlarmStatus()


def alarm(comparison: Comparison = "GreaterThanThreshold", threshold: float = 10, minutes: int = 1) -> Alarm:
    rule = ("ApproximateNumberOfMessagesVisible", comparison, threshold, minutes)
    return Alarm("0" * 12, "deep", "id", "orders", *rule, "example.com", b"", NOW)


def after(values: list[float | None], rule: Alarm, status: AlarmStatus = NEW, first: int = 0) -> AlarmStatus:
    """Evaluate once a minute."""
    for minute, value in enumerate(values, first):
        status = judged(rule, status, value, NOW + 60 * minute)
    return status


@pytest.mark.parametrize(("comparison", "ringing"), table(__file__, "comparisons"))
def test_comparisons(comparison: Comparison, ringing: list[int]) -> None:
    rung = [value for value in (9, 10, 11) if after([value], alarm(comparison)).state == "ALARM"]
    assert rung == ringing


def test_a_new_alarm_that_is_in_order_is_no_news() -> None:
    status = after([3], alarm())
    assert (status.state, status.since_s, status.waiting) == ("OK", NOW, ())
    assert after([3, 3, 4], alarm()) == status, "nothing is stored again"


def test_a_change_is_reported_with_its_reason() -> None:
    status = after([3, 11.5], alarm())
    (event,) = status.waiting
    assert (event.before, event.state, event.value, event.at_s) == ("OK", "ALARM", 11.5, NOW + 60)
    assert event.reason == ("ApproximateNumberOfMessagesVisible of queue orders is 11.5, and has been > 10 for 1 min.")
    status = after([2], alarm(), status, 2)
    assert [one.state for one in status.waiting] == ["ALARM", "OK"]
    assert len({one.id for one in status.waiting}) == 2
    assert status.waiting[1].reason.endswith("is 2, and so not > 10.")
    assert (after([11], alarm()).state, len(after([11], alarm()).waiting)) == ("ALARM", 1), "at once, if it is so"


def test_it_has_to_be_so_at_each_look_of_its_minutes() -> None:
    rule = alarm(minutes=3)
    assert [after([0, *[11] * count], rule).state for count in range(1, 5)] == ["OK", "OK", "ALARM", "ALARM"]
    assert after([0, 11, 11, 5, 11, 11], rule).state == "OK"
    again = after([0, 11, 11, 5, 11, 11, 11], rule)
    assert (again.state, again.breaching_since_s) == ("ALARM", NOW + 4 * 60)


def test_another_process_continues() -> None:
    """Only the stored status is used."""
    rule = alarm(minutes=3)
    stored = msgspec.json.decode(msgspec.json.encode(after([0, 11], rule)), type=AlarmStatus)
    assert after([11, 11], rule, stored, 2).state == "ALARM"


def test_values_missing_for_a_while_are_insufficient_data() -> None:
    ringing = after([11], alarm())
    assert after([None, None], alarm(), ringing, 1).state == "ALARM", "a restart takes no three minutes"
    status = after([None, None, None], alarm(), ringing, 1)
    assert (status.state, status.value) == ("INSUFFICIENT_DATA", None)
    assert "is not known" in status.waiting[-1].reason
    assert after([None, None, 11], alarm(), ringing, 1).state == "ALARM"
    assert after([None, None, 11, None, None], alarm(), ringing, 1).state == "ALARM", "counted anew"
    assert after([None] * 4, alarm(minutes=5), ringing, 1).state == "ALARM", "it takes its own minutes"
    assert after([None] * 9, alarm()).waiting == (), "a new one's queue was never known"
    back = after([None, None, None, 3], alarm(), ringing, 1)
    assert (back.state, back.waiting[-1].before) == ("OK", "INSUFFICIENT_DATA")


def test_waiting_work_is_bounded() -> None:
    status = after([0, *[11, 0] * 20], alarm())
    assert len(status.waiting) == WAITING_MAX
    assert status.lost == 40 - WAITING_MAX
    assert status.waiting[-1].state == "OK", "the latest are kept"

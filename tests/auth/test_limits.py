"""A tenant's limits: valid values, and error texts."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auth.limits import UNLIMITED, Rate, TenantLimits, parse_limits, parse_rate
from tests.tables import table


def test_nothing_is_limited_unless_configured() -> None:
    assert all(getattr(UNLIMITED, name) is None for name in TenantLimits.__struct_fields__)


@pytest.mark.parametrize("per_second", [0, 0.000001, -1, math.nan, math.inf, 1_000_001, True, "5"])
def test_a_rate_has_to_let_something_through(per_second: Any) -> None:
    with pytest.raises(ValueError, match=r"calls per second from 0\.00001 to 1000000"):
        Rate(per_second, 1)


@pytest.mark.parametrize("burst", [0, -1, 1.5, 1_000_001, True])
def test_a_burst_is_at_least_one_call(burst: Any) -> None:
    with pytest.raises(ValueError, match="number of calls from 1"):
        Rate(1, burst)


@pytest.mark.parametrize("name", ["queues", "topics", "topic_partitions", "stored_bytes", "connections"])
@pytest.mark.parametrize("quota", [-1, 1.0, True, "5", 2**63])
def test_a_quota_is_a_whole_number(name: str, quota: Any) -> None:
    with pytest.raises(ValueError, match=f"the quota {name} is a whole number"):
        TenantLimits(**{name: quota})


def test_a_rate_is_no_number() -> None:
    wrong: Any = 5
    with pytest.raises(ValueError, match="the limit send is a rate"):
        TenantLimits(send=wrong)


def test_limits_are_stored_as_json() -> None:
    limits = TenantLimits(calls=Rate(50, 200), each_queue=Rate(0.1, 1), queues=0)
    assert msgspec.json.decode(msgspec.json.encode(limits), type=TenantLimits) == limits
    assert msgspec.json.encode(TenantLimits(topics=5)) == b'{"topics":5}', "no others, which an older release refuses"


@pytest.mark.parametrize("text", ['{"calls": {"per_second": 0, "burst": 1}}', '{"sends": null}', '{"queues": -1}'])
def test_stored_values_are_checked_too(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=TenantLimits)


@pytest.mark.parametrize(
    ("text", "rate"), [("50:200", Rate(50, 200)), ("50", Rate(50, 50)), ("0.1", Rate(0.1, 1)), ("2.5", Rate(2.5, 3))]
)
def test_a_rate_can_be_written(text: str, rate: Rate) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "x", "50:", ":5", "50/s", "-1", "1e3", "50:2.5", "٥", "50:200\n"])
def test_an_invalid_rate_is_refused_with_the_format(text: str) -> None:
    with pytest.raises(ValueError, match="such as 50:200"):
        parse_rate(text)


@given(st.integers(1, 10**9).map(lambda n: n / 1000), st.integers(1, 1_000_000))
def test_a_rate_reads_as_it_is_written(per_second: float, burst: int) -> None:
    rate = Rate(per_second, burst)
    assert parse_rate(str(rate)) == rate


def test_limits_can_be_written() -> None:
    assert parse_limits("") == UNLIMITED
    assert parse_limits(" calls=100:500, send=50 queues=0,") == TenantLimits(
        calls=Rate(100, 500), send=Rate(50, 50), queues=0
    )


@pytest.mark.parametrize(("text", "told"), table(__file__, "what is no limits is told"))
def test_errors_of_invalid_limits(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse_limits(text)

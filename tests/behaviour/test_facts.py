"""Every fact that is known of SQS has a behaviour case, or a reason why it has none."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.behaviour import wire
from tests.behaviour.cases import load
from tests.behaviour.match import differences

FACTS: set[int | str] = {*range(1, 71), "numbers", "fair", "errors"}


def test_every_fact_has_a_case_or_a_reason() -> None:
    with_cases = {fact for case in load() for fact in case.facts}
    reasons = yaml.safe_load(Path(__file__).with_name("facts.yaml").read_text())["without_a_case"]
    assert all(isinstance(reason, str) and len(reason) > 20 for reason in reasons.values())
    assert with_cases | set(reasons) == FACTS
    assert not with_cases & set(reasons)


@pytest.mark.parametrize("shape", sorted(wire.errors()))
def test_error_registry_agrees(shape: str) -> None:
    from frontend.sqs.errors import REGISTRY

    assert (REGISTRY[shape].query_code, REGISTRY[shape].status) == wire.errors()[shape]


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {}),
        ({"a": True}, {"a": 1}),
        ({"a": {"$absent": True}}, {"a": None}),
        ([1], [1, 2]),
        ({"$unordered": [1, 2]}, [1, 1]),
        ({"$re": "^x$"}, "xy"),
        ({"$only": {"a": 1}}, {"a": 1, "b": 2}),
        ({"$not": "x"}, "x"),
        ({"$json_text": {"a": 1}}, '{"a": 1}'),
        ({"$each": 1}, []),
        ({"$md5": "x"}, "y"),
    ],
)
def test_a_matcher_that_should_fail_fails(expected: object, actual: object) -> None:
    assert differences(expected, actual)

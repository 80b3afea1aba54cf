"""Every known fact about SQS has a behaviour case, or a reason why it has none."""

import pytest

from tests.behaviour import wire
from tests.behaviour.facts import MATRIX, cases_of_facts, known, matrix
from tests.behaviour.match import differences
from tests.tables import table


def test_every_fact_has_a_case_or_a_reason() -> None:
    table = known()
    with_cases, reasons = set(cases_of_facts()), table["without_a_case"]
    assert with_cases | set(reasons) == set(table["facts"])
    assert not with_cases & set(reasons)


def test_the_matrix_is_current() -> None:
    assert MATRIX.read_text() == matrix(), "write it anew: python -m tests.behaviour.facts"


@pytest.mark.parametrize("shape", sorted(wire.errors()))
def test_error_registry_agrees(shape: str) -> None:
    from frontend.sqs.protocol.errors import REGISTRY

    assert (REGISTRY[shape].query_code, REGISTRY[shape].status) == wire.errors()[shape]


@pytest.mark.parametrize(("expected", "actual"), table(__file__, "what does not match"))
def test_a_matcher_that_should_fail_fails(expected: object, actual: object) -> None:
    assert differences(expected, actual)

"""The page on SNS's coverage agrees with the code."""

from pathlib import Path

from frontend.sns import coverage
from frontend.sns.operations import SNS_OPERATIONS
from frontend.sns.protocol.model import SNS_ACTIONS

PAGE = Path(__file__).parents[3] / "docs" / "sns-coverage.md"


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text("utf-8")
    assert coverage.PAGE.begin in page
    assert coverage.PAGE.updated(page) == page, "run: python -m frontend.sns.coverage docs/sns-coverage.md"


def test_every_action_has_one_operation() -> None:
    assert sorted(SNS_OPERATIONS) == sorted(SNS_ACTIONS)
    for name, operation in SNS_OPERATIONS.items():
        assert operation.name == name

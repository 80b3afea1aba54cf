"""The page on coverage agrees with the code."""

from pathlib import Path

from frontend.request.context import QueueAction
from frontend.sqs import coverage
from frontend.sqs.operations import OPERATIONS
from frontend.sqs.protocol.model import ACTIONS

PAGE = Path(__file__).parents[3] / "docs" / "sqs-coverage.md"


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text("utf-8")
    assert coverage.PAGE.begin in page
    assert coverage.PAGE.updated(page) == page, "run: python -m frontend.sqs.coverage docs/sqs-coverage.md"


def test_every_action_has_one_operation() -> None:
    assert sorted(OPERATIONS) == sorted(ACTIONS)
    for name, operation in OPERATIONS.items():
        assert isinstance(operation, QueueAction) == ACTIONS[name].on_queue

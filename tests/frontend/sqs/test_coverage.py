"""The page on coverage agrees with the code."""

from __future__ import annotations

from pathlib import Path

from frontend.sqs import coverage
from frontend.sqs.operations import ON_ACCOUNT, ON_QUEUE
from frontend.sqs.protocol.model import ACTIONS

PAGE = Path(__file__).parents[3] / "docs" / "sqs-coverage.md"


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text("utf-8")
    assert coverage.BEGIN in page
    assert coverage.updated(page) == page, "run: python -m frontend.sqs.coverage docs/sqs-coverage.md"


def test_every_action_has_one_operation() -> None:
    assert sorted([*ON_QUEUE, *ON_ACCOUNT]) == sorted(ACTIONS)
    assert all(ACTIONS[name].on_queue for name in ON_QUEUE)
    assert not any(ACTIONS[name].on_queue for name in ON_ACCOUNT)

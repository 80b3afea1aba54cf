"""Generator of the tables in ``docs/sqs-coverage.md``, from the action table and the error registry.

``python -m frontend.sqs.coverage docs/sqs-coverage.md`` writes them into the page, between the two marks; the
text outside the marks is written by hand.
"""

from __future__ import annotations

from collections.abc import Iterator

from frontend.query.coverage import CoveragePage, answer_cell, member_cells
from frontend.queues.attributes import READABLE, SETTABLE
from frontend.sqs.operations import OPERATIONS
from frontend.sqs.protocol.errors import REGISTRY
from frontend.sqs.protocol.model import ACTIONS, SYSTEM_ATTRIBUTE_NAMES


def tables() -> str:
    """Tables in Markdown."""
    return "\n".join([*_actions(), "", *_attributes(), "", *_errors()])


def _actions() -> Iterator[str]:
    yield "## Actions"
    yield ""
    yield "In bold: required."
    yield ""
    yield "| action | JSON | Query | members | names in a Query request | answer |"
    yield "|---|---|---|---|---|---|"
    for name, action in sorted(ACTIONS.items()):
        done = "yes" if name in OPERATIONS else "no"
        members, wires = member_cells(action.input)
        answer = answer_cell(action.output)
        yield f"| {name} | {done} | {done} | {members} | {wires} | {answer} |"


def _attributes() -> Iterator[str]:
    yield "## Queue attributes"
    yield ""
    yield "| attribute | can be set | can be read |"
    yield "|---|---|---|"
    for name in sorted(READABLE - {"All"}):
        yield f"| {name} | {'yes' if name in SETTABLE else 'no'} | yes |"
    yield ""
    yield "## System attributes of received messages"
    yield ""
    yield ", ".join(name for name in SYSTEM_ATTRIBUTE_NAMES if name != "All")


def _errors() -> Iterator[str]:
    yield "## Errors"
    yield ""
    yield "| shape (JSON `__type`) | code (Query, and the header `x-amzn-query-error`) | status | a retry may help |"
    yield "|---|---|---|---|"
    for name, kind in sorted(REGISTRY.items()):
        yield f"| {name} | {kind.query_code} | {kind.status} | {'yes' if kind.retryable else 'no'} |"


PAGE = CoveragePage("frontend/sqs/coverage.py", tables)

if __name__ == "__main__":
    PAGE.main()

"""Generator of the tables in ``docs/sns-coverage.md``, from the action table and the error registry.

``python -m frontend.sns.coverage docs/sns-coverage.md`` writes them into the page, between the two marks; the
text outside the marks is written by hand.
"""

from __future__ import annotations

from collections.abc import Iterator

from frontend.query.coverage import CoveragePage, answer_cell, member_cells
from frontend.sns.operations import SNS_OPERATIONS
from frontend.sns.protocol.errors import SNS_REGISTRY
from frontend.sns.protocol.model import NOT_SERVED, SNS_ACTIONS
from frontend.sns.topics.attributes import TOPIC_READABLE, TOPIC_SETTABLE
from frontend.sns.topics.subscription_attributes import SUBSCRIPTION_READABLE, SUBSCRIPTION_SETTABLE


def tables() -> str:
    """Tables in Markdown."""
    return "\n".join([*_actions(), "", *_not_served(), "", *_attributes(), "", *_errors()])


def _actions() -> Iterator[str]:
    yield "## Actions"
    yield ""
    yield "In bold: required."
    yield ""
    yield "| action | members | names in a request | answer | audited | without a signature |"
    yield "|---|---|---|---|---|---|"
    for name, action in sorted(SNS_ACTIONS.items()):
        members, wires = member_cells(action.input)
        answer = answer_cell(action.output)
        operation = SNS_OPERATIONS[name]
        audited, unsigned = ("yes" if flag else "no" for flag in (operation.audited, operation.unsigned))
        yield f"| {name} | {members} | {wires} | {answer} | {audited} | {unsigned} |"


def _not_served() -> Iterator[str]:
    yield "## Actions that are not served"
    yield ""
    yield "They are answered with InvalidAction and the reason."
    yield ""
    yield "| action | reason |"
    yield "|---|---|"
    for name, reason in sorted(NOT_SERVED.items()):
        yield f"| {name} | {reason} |"


def _attributes() -> Iterator[str]:
    for title, readable, settable in (
        ("topics", TOPIC_READABLE, TOPIC_SETTABLE),
        ("subscriptions", SUBSCRIPTION_READABLE, SUBSCRIPTION_SETTABLE),
    ):
        yield f"## Attributes of {title}"
        yield ""
        yield "| attribute | can be set |"
        yield "|---|---|"
        for name in sorted(readable):
            yield f"| {name} | {'yes' if name in settable else 'no'} |"
        yield ""


def _errors() -> Iterator[str]:
    yield "## Errors"
    yield ""
    yield "| shape | code | status | a retry may help |"
    yield "|---|---|---|---|"
    for name, kind in sorted(SNS_REGISTRY.items()):
        yield f"| {name} | {kind.query_code} | {kind.status} | {'yes' if kind.retryable else 'no'} |"


PAGE = CoveragePage("frontend/sns/coverage.py", tables)

if __name__ == "__main__":
    PAGE.main()

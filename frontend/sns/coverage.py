"""Generator of the tables in ``docs/sns-coverage.md``, from the action table and the error registry.

``python -m frontend.sns.coverage docs/sns-coverage.md`` writes them into the page, between the two marks; the
text outside the marks is written by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from frontend.query.shapes import wire_names
from frontend.sns.operations import SNS_OPERATIONS
from frontend.sns.protocol.errors import SNS_REGISTRY
from frontend.sns.protocol.model import NOT_SERVED, SNS_ACTIONS
from frontend.sns.topics.attributes import TOPIC_READABLE, TOPIC_SETTABLE
from frontend.sns.topics.subscription_attributes import SUBSCRIPTION_READABLE, SUBSCRIPTION_SETTABLE

BEGIN = "<!-- made by frontend/sns/coverage.py: begin -->"
END = "<!-- made by frontend/sns/coverage.py: end -->"


def tables() -> str:
    """Tables in Markdown."""
    return "\n".join([*_actions(), "", *_not_served(), "", *_attributes(), "", *_errors()])


def updated(page: str) -> str:
    """The page with its tables generated again."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


def _actions() -> Iterator[str]:
    yield "## Actions"
    yield ""
    yield "In bold: required."
    yield ""
    yield "| action | members | names in a request | answer | audited | without a signature |"
    yield "|---|---|---|---|---|---|"
    for name, action in sorted(SNS_ACTIONS.items()):
        members = ", ".join(
            f"**{member}**" if about.required else member for member, about in action.input.members.items()
        )
        wires = ", ".join(f"`{wire}`" for about in action.input.members.values() for wire in wire_names(about))
        answer = ", ".join(action.output.members) if action.output and action.output.members else "—"
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


def main() -> None:
    path = Path(sys.argv[1])
    path.write_text(updated(path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()

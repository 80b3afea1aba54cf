"""Generator of the tables in ``docs/sqs-coverage.md``, from the action table and the error registry.

``python -m frontend.sqs.coverage docs/sqs-coverage.md`` writes them into the page, between the two marks; the
text outside the marks is written by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from frontend.query.shapes import wire_names
from frontend.queues.attributes import READABLE, SETTABLE
from frontend.sqs.operations import OPERATIONS
from frontend.sqs.protocol.errors import REGISTRY
from frontend.sqs.protocol.model import ACTIONS, SYSTEM_ATTRIBUTE_NAMES

BEGIN = "<!-- made by frontend/sqs/coverage.py: begin -->"
END = "<!-- made by frontend/sqs/coverage.py: end -->"


def tables() -> str:
    """Tables in Markdown."""
    return "\n".join([*_actions(), "", *_attributes(), "", *_errors()])


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
    yield "| action | JSON | Query | members | names in a Query request | answer |"
    yield "|---|---|---|---|---|---|"
    for name, action in sorted(ACTIONS.items()):
        done = "yes" if name in OPERATIONS else "no"
        members = ", ".join(
            f"**{member}**" if about.required else member for member, about in action.input.members.items()
        )
        wires = ", ".join(f"`{wire}`" for about in action.input.members.values() for wire in wire_names(about))
        answer = ", ".join(action.output.members) if action.output else "—"
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


def main() -> None:
    path = Path(sys.argv[1])
    path.write_text(updated(path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()

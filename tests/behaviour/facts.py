"""The matrix of facts and cases: ``python -m tests.behaviour.facts`` writes ``facts.md``."""

from pathlib import Path
from typing import Any

from tests.behaviour.cases import load
from tests.tables import read_yaml

MATRIX = Path(__file__).with_name("facts.md")


def known() -> dict[str, Any]:
    """Load ``facts``: their titles; ``without_a_case``: reasons."""
    loaded: dict[str, Any] = read_yaml(MATRIX.with_suffix(".yaml"))
    return loaded


def cases_of_facts() -> dict[int | str, list[str]]:
    """Return the names of the cases for each fact, a case with many rows once."""
    found: dict[int | str, list[str]] = {}
    for case in load():
        for fact in case.facts:
            names = found.setdefault(fact, [])
            name = case.name.partition("[")[0]
            if name not in names:
                names.append(name)
    return found


def matrix() -> str:
    """Format the table as Markdown."""
    table = known()
    cases = cases_of_facts()
    lines = [
        "# Facts about SQS, and the behaviour cases that show them",
        "",
        "Made by `python -m tests.behaviour.facts`.",
        "",
        "| fact | | cases |",
        "|---|---|---|",
    ]
    for fact, title in table["facts"].items():
        shown = ", ".join(cases.get(fact, [])) or table["without_a_case"][fact]
        lines.append(f"| {fact} | {title} | {shown} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    MATRIX.write_text(matrix())

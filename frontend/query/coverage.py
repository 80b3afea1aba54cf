"""Parts of the generators of coverage pages, whose tables stand between two marks of a page that is written by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from frontend.query.shapes import Structure, wire_names

NOTHING = "—"


class CoveragePage:
    """A page with the tables of one program."""

    def __init__(self, program: str, tables: Callable[[], str]) -> None:
        """``program``: its file, which the marks name."""
        self.begin = f"<!-- made by {program}: begin -->"
        self._end = f"<!-- made by {program}: end -->"
        self._tables = tables

    def updated(self, page: str) -> str:
        """The page with its tables generated again."""
        before, _, rest = page.partition(self.begin)
        _, _, after = rest.partition(self._end)
        return f"{before}{self.begin}\n\n{self._tables()}\n\n{self._end}{after}"

    def main(self) -> None:
        """Update the file that the command line names."""
        path = Path(sys.argv[1])
        path.write_text(self.updated(path.read_text("utf-8")), "utf-8")


def member_cells(given: Structure) -> tuple[str, str]:
    """Cells with the members of an action's input, the required ones in bold, and with their names in a request."""
    members = ", ".join(f"**{name}**" if about.required else name for name, about in given.members.items())
    return members, ", ".join(f"`{wire}`" for about in given.members.values() for wire in wire_names(about))


def answer_cell(answer: Structure | None) -> str:
    """Cell with the members of an action's answer."""
    return ", ".join(answer.members) if answer is not None and answer.members else NOTHING

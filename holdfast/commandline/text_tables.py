"""Tables and lists of facts for a terminal; control characters in values are escaped."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

_WIDE = 10_000
"""Width without a terminal: nothing is cut."""


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    nothing: str,
    unbroken: Collection[int] = (),
    right: Collection[int] = (),
    colors: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Format rows under headings; numbers are right-aligned, and so are the columns in ``right``.

    ``unbroken``: columns that are not wrapped on a narrow terminal while others can be; ``colors``: colors of cells
    with these values, on a terminal only.
    """
    if not rows:
        return nothing
    from rich.console import Console

    made = rich_table(headings, rows, unbroken=unbroken, right=right, colors=colors)
    terminal = sys.stdout.isatty()
    console = Console(width=shutil.get_terminal_size().columns if terminal else _WIDE, force_terminal=terminal)
    with console.capture() as capture:
        console.print(made)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def rich_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    unbroken: Collection[int] = (),
    right: Collection[int] = (),
    colors: Mapping[str, str] = MappingProxyType({}),
    cut: bool = False,
) -> Table:
    """Make the table of :func:`table`; ``cut``: each row is one line, and what does not fit is cut off."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place, heading in enumerate(headings):
        numbers = place in right or all(isinstance(row[place], int) for row in rows)
        made.add_column(
            heading,
            justify="right" if numbers else "left",
            overflow="ellipsis" if cut else "fold",
            no_wrap=cut or place in unbroken,
        )
    for row in rows:
        cells = map(shown, row)
        made.add_row(*(Text(cell, style=colors.get(cell, "")) for cell in cells))
    return made


def facts(values: Mapping[str, Any]) -> str:
    """One fact a line."""
    width = max(map(len, values), default=0)
    return "\n".join(f"{name:<{width}}  {shown(value)}".rstrip() for name, value in values.items())


def shown(value: Any) -> str:
    """Format a value for people; characters that cannot be printed are escaped."""
    if value is None or value == []:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(shown, value))
    text = str(value)
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape", "replace").decode() for one in text)


def shown_text(text: str) -> str:
    """Format a text of several lines for people; characters that cannot be printed are escaped, but line breaks."""
    return "\n".join(map(shown, text.split("\n")))


def moment(seconds: float | None) -> str | None:
    """Format a time, in UTC."""
    return None if seconds is None else time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(seconds))

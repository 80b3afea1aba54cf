"""Tables and lists of facts for a terminal; control characters in values are escaped."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

_WIDE = 10_000
"""Width without a terminal: nothing is cut."""


def table(
    headings: Sequence[str], rows: Sequence[Sequence[Any]], *, nothing: str, unbroken: Collection[int] = ()
) -> str:
    """Format rows under headings; numbers are right-aligned.

    ``unbroken``: columns that are not wrapped on a narrow terminal while others can be.
    """
    if not rows:
        return nothing
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place, heading in enumerate(headings):
        numbers = all(isinstance(row[place], int) for row in rows)
        made.add_column(heading, justify="right" if numbers else "left", overflow="fold", no_wrap=place in unbroken)
    for row in rows:
        made.add_row(*(Text(shown(value)) for value in row))
    terminal = sys.stdout.isatty()
    console = Console(width=shutil.get_terminal_size().columns if terminal else _WIDE, force_terminal=terminal)
    with console.capture() as capture:
        console.print(made)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


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


def moment(seconds: float | None) -> str | None:
    """Format a time, in UTC."""
    return None if seconds is None else time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(seconds))

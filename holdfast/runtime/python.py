"""Python command line for child processes."""

from __future__ import annotations

import sys
from pathlib import Path


def python() -> list[str]:
    """Return the command line of Python for a child.

    It imports nothing from the working folder, unless this process was loaded from there: others may be able to write
    to it.
    """
    from_working_folder = not sys.flags.safe_path and sys.path[:1] == [str(Path(__file__).parents[2])]
    return [sys.executable] if from_working_folder else [sys.executable, "-P"]

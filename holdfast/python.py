"""The Python that child processes run."""

from __future__ import annotations

import sys
from pathlib import Path


def python() -> list[str]:
    """Python for a child, which imports nothing from the working folder unless this process came from there: others may
    be able to write to it."""
    came_from_there = not sys.flags.safe_path and sys.path[:1] == [str(Path(__file__).parents[1])]
    return [sys.executable] if came_from_there else [sys.executable, "-P"]

"""Location of the lake, passed to processes in their environment.

A lake's URL may contain keys, and every user of the machine can read command lines.
"""

from __future__ import annotations

import os
from typing import Final

LAKE_VARIABLE: Final = "HOLDFAST_USAGE_LAKE"
"""Environment variable, named as the setting."""


def environment_of(lake: str) -> dict[str, str]:
    """Environment for a child process that works on this lake."""
    return {**os.environ, LAKE_VARIABLE: lake}


def lake_from_environment() -> str | None:
    """Lake of this process's environment; None: not set."""
    return os.environ.get(LAKE_VARIABLE) or None

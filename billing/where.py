"""How a process is told where the lake is: by its environment.

A lake's URL may have keys in it, and command lines are for everybody on the machine to read.
"""

from __future__ import annotations

import os
from typing import Final

LAKE_VARIABLE: Final = "HOLDFAST_USAGE_LAKE"
"""As the setting."""


def environment_of(lake: str) -> dict[str, str]:
    """That of a child that is to work on this lake."""
    return {**os.environ, LAKE_VARIABLE: lake}


def lake_told() -> str | None:
    """The lake that this process was told of; None: of none."""
    return os.environ.get(LAKE_VARIABLE) or None

"""What the processes that work on the lake have in common, from their arguments to their exit codes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from billing.lake import Lake, LakeUnavailable


def on_lake(arguments: list[str], usage: str, work: Callable[[Lake], str]) -> int:
    """Do something with the lake that the last argument names, and print what ``work`` says of it.

    ``usage``: the module, and a word for each argument.  Returns 0: done, 1: the lake or the disk is unavailable (try
    again), 2: wrong arguments.
    """
    logging.basicConfig(format="%(message)s", level=logging.ERROR)
    if len(arguments) != len(usage.split()) - 1:
        print(f"usage: python -m {usage}", file=sys.stderr)
        return 2
    try:
        lake = Lake(arguments[-1])
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        print(work(lake))
    except (LakeUnavailable, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0

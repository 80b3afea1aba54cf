"""Shared frame of the commands that work on the lake: arguments and exit codes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from billing.lake.lake import Lake, LakeUnavailable
from billing.metering.lake_variable import LAKE_VARIABLE, lake_from_environment


def run_on_lake(arguments: list[str], usage: str, work: Callable[[Lake], str]) -> int:
    """Run ``work`` on the lake named by the last argument, or else by the environment, and print the text it returns.

    ``usage``: the module, and a word for each argument.  Returns 0: done, 1: the lake or the disk is unavailable (try
    again), 2: wrong arguments.
    """
    logging.basicConfig(format="%(message)s", level=logging.ERROR)
    left_out = len(usage.split()) - 1 - len(arguments)
    url = lake_from_environment() if left_out == 1 else arguments[-1] if left_out == 0 else None
    if url is None:
        print(f"usage: python -m {usage} (LAKE may be left out where {LAKE_VARIABLE} is set)", file=sys.stderr)
        return 2
    try:
        lake = Lake(url)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        print(work(lake))
    except (LakeUnavailable, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0

"""Shared parts of commands that work directly on a data folder."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.runtime.data_folder import FolderLock, FolderUnusable
from holdfast.settings import Settings, is_distributed


def is_data_folder(settings: Settings) -> bool:
    """Return True if the data folder exists; print an error if not."""
    if is_distributed(settings):
        print(
            "holdfast: this command works on a data folder, but the settings (cassandra, metadata_nodes) store "
            "the data in another store; see docs/operations.md, On many machines",
            file=sys.stderr,
        )
        return False
    if settings.metadata_file.exists():
        return True
    print(f"holdfast: {settings.data} is no data folder of Holdfast", file=sys.stderr)
    return False


def run_stopped(
    settings: Settings, work: Callable[[], Coroutine[Any, Any, int]], expected: tuple[type[Exception], ...]
) -> int:
    """Do the work while no service uses the folder; returns its exit code, or 1 with an error message.

    ``expected``: errors whose text is a sufficient message.
    """
    if not is_data_folder(settings):
        return 1
    logging.disable(logging.CRITICAL)  # what a start would log is printed by the command
    try:
        claim = FolderLock(settings.data, alone=True)
    except FolderUnusable as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return 1
    try:
        return asyncio.run(work())
    except expected as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return 1
    finally:
        claim.release()

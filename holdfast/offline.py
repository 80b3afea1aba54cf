"""What commands that work on a data folder by themselves have in common."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.folder import Claim, FolderUnusable
from holdfast.settings import Settings, is_distributed


def is_data_folder(settings: Settings) -> bool:
    """Whether there is anything to work on; says so if not."""
    if is_distributed(settings):
        print(
            "holdfast: this command works on a data folder, and the settings (cassandra, metadata_nodes) say that what "
            "is kept is not there; how it is done then: docs/operations.md, On many machines",
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
    """Do the work while no service has the folder, and return its exit code; 1, with a sentence, if that cannot be.

    ``expected`` are the errors whose text is all that there is to say.
    """
    if not is_data_folder(settings):
        return 1
    logging.disable(logging.CRITICAL)  # what a start would log is printed by the command
    try:
        claim = Claim(settings.data, alone=True)
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

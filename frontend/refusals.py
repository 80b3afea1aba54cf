"""Calls that are refused because something is out of order: said once, then counted.

While the disk is full or the metadata cannot be reached, every call is refused, thousands in a second; a line for each
of them would fill the disk as well.  The first call of each kind has its line, with its request id and the reason.
Those that follow have one at level debug, and their number is said every some seconds, until there are none any more.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

COUNTED_SECONDS: Final = 10.0
KINDS_MOST: Final = 100
"""More kinds than this at once are one."""


class Refusals:
    """What is said in a log of calls that are refused."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._counts: dict[str, int] = {}

    def say(self, kind: str, text: str, *arguments: object) -> None:
        """A call was refused for a reason of this kind."""
        if kind not in self._counts and len(self._counts) >= KINDS_MOST:
            kind = "several reasons"
        if kind in self._counts:
            self._counts[kind] += 1
            self._log.debug(text, *arguments)
            return
        self._counts[kind] = 0
        self._log.error(text, *arguments)
        asyncio.get_running_loop().call_later(COUNTED_SECONDS, self._tell, kind)

    def _tell(self, kind: str) -> None:
        count = self._counts[kind]
        if not count:
            del self._counts[kind]
            return
        self._log.error("%d more calls were refused in %.0f s: %s", count, COUNTED_SECONDS, kind)
        self._counts[kind] = 0
        asyncio.get_running_loop().call_later(COUNTED_SECONDS, self._tell, kind)

"""Log of refused calls: the first ones get a line each, the others are counted.

While the disk is full or the metadata cannot be reached, every call is refused, thousands per second; clients
that ask for what does not exist, or guess keys, can also cause any number of refusals.  A line for each would
fill the disk. The first calls of each kind have their lines, with request id and reason.  Later ones have a
line at level debug, and their number is logged every some seconds, until there are none any more.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

COUNTED_SECONDS: Final = 10.0
KINDS_MAX: Final = 100
"""Maximum number of kinds; further ones share one."""


class _Kind:
    __slots__ = ("logged", "more")

    def __init__(self) -> None:
        self.logged = 0
        """Calls with a line of their own."""
        self.more = 0
        """Calls without a line since their number was last logged."""


class ErrorLog:
    """Log of refused calls: at ``level``, with the first ``lines`` of a kind."""

    def __init__(self, log: logging.Logger, *, level: int = logging.ERROR, lines: int = 1) -> None:
        self._log = log
        self._level = level
        self._lines = lines
        self._kinds: dict[str, _Kind] = {}

    def say(self, kind: str, text: str, *arguments: object) -> None:
        """Log or count a refused call of this kind."""
        if kind not in self._kinds and len(self._kinds) >= KINDS_MAX:
            kind = "several reasons"
        known = self._kinds.get(kind)
        if known is None:
            known = self._kinds[kind] = _Kind()
            asyncio.get_running_loop().call_later(COUNTED_SECONDS, self._log_count, kind, known)
        if known.logged < self._lines:
            known.logged += 1
            self._log.log(self._level, text, *arguments)
        else:
            known.more += 1
            self._log.debug(text, *arguments)

    def _log_count(self, kind: str, known: _Kind) -> None:
        if not known.more:
            del self._kinds[kind]
            return
        text = "%d more calls were refused in %.0f s: %s"
        self._log.log(self._level, text, known.more, COUNTED_SECONDS, kind)
        known.more = 0
        asyncio.get_running_loop().call_later(COUNTED_SECONDS, self._log_count, kind, known)

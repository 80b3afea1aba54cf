"""Rows that have to come to all replicas, and not to a quorum alone.

They are written at a quorum as well, beside this, so a replica that is away holds up nobody but who waits for all of
them.  While one is away nobody begins to wait: the last row that it did not take is tried again now and then, until
all have it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from backend.api import Unavailable
from backend.journal.patience import pause
from backend.journal.rows import SEGMENT_MAX
from backend.journal.tables import ROWS_MOST, Tables, Unanswered

logger = logging.getLogger(__name__)

REPLICA_AWAY: Final = "a replica of the journal does not answer"
AWAY_SECONDS: Final = 1.0
"""Between two tries of whether all replicas are back."""


class Replicas:
    """All that keep what one incarnation writes.  Rows are named by what their positions share: ``position >> 11``."""

    def __init__(self, tables: Tables, log_id: int, *, pending_bytes: int, stall_seconds: float) -> None:
        self._tables = tables
        self._log_id = log_id
        self._pending_bytes = pending_bytes
        self._stall_seconds = stall_seconds
        self._loop = asyncio.get_running_loop()
        self._bytes = 0
        """On their way."""
        self._away = False
        """One did not answer."""
        self._error: Unavailable | None = None

    def check(self) -> None:
        """Raises :class:`Unavailable` while a replica does not answer, and when too much is on its way to one."""
        if self._away or self._bytes > self._pending_bytes:
            raise Unavailable(f"{REPLICA_AWAY} now")

    def end(self, error: Unavailable) -> None:
        """Send nothing more: from now on all who wait get this error."""
        self._error = error

    def put(self, key: int, data: bytes, everywhere: asyncio.Future[None]) -> None:
        """Send a row's bytes to all, and again for a while, and settle the future."""
        began, tries = self._loop.time(), 0
        self._bytes += len(data)

        def put() -> None:
            if self._error is not None:
                written(self._error)
                return
            self._tables.put_row_everywhere(key >> 33, key >> 13 & SEGMENT_MAX, key & ROWS_MOST - 1, data, written)

        def written(error: BaseException | None) -> None:
            nonlocal tries
            if isinstance(error, Unanswered) and self._loop.time() - began < self._stall_seconds:
                tries += 1
                self._loop.call_later(pause(tries), put)
                return
            self._bytes -= len(data)
            if error is None:
                if self._away:
                    self._away = False
                    logger.warning("all replicas of log %d answer again", self._log_id)
                if not everywhere.done():
                    everywhere.set_result(None)
                return
            if not everywhere.done():
                everywhere.set_exception(
                    Unavailable(f"{REPLICA_AWAY}; whether the call took effect is not known: {error}")
                )
                everywhere.exception()  # nobody has to look
            if self._error is None and not self._away:
                self._away = True
                logger.error("%s, calls that wait for all of them are refused: %s", REPLICA_AWAY, error)
                self._loop.call_later(AWAY_SECONDS, self._look, key, data)

        put()

    def _look(self, key: int, data: bytes) -> None:
        """Try again with a row that not all have, until they have it."""
        if self._error is not None or not self._away:
            return
        everywhere = self._loop.create_future()
        everywhere.add_done_callback(
            lambda _: self._away and self._loop.call_later(AWAY_SECONDS, self._look, key, data)
        )
        self.put(key, data, everywhere)

"""Writes of rows to all replicas instead of a quorum.

The rows are also written at a quorum in parallel, so a replica that is down delays only callers that wait for all
replicas.  While one is down, further such calls are refused: the last row that it did not store is retried at
intervals, until all replicas have it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from backend.api import Unavailable
from backend.journal.cassandra.retrying_tables import pause
from backend.journal.cassandra.table_interface import ROWS_MOST, Tables, Unanswered
from backend.journal.rows import SEGMENT_MAX

logger = logging.getLogger(__name__)

REPLICA_AWAY: Final = "a replica of the journal does not answer"
AWAY_SECONDS: Final = 1.0
"""Interval of attempts to find all replicas available again."""


class Replicas:
    """All replicas of one incarnation's rows.  A row is named by the common part of its positions: ``position >>
    11``.
    """

    def __init__(self, tables: Tables, log_id: int, *, pending_bytes: int, stall_seconds: float) -> None:
        self._tables = tables
        self._log_id = log_id
        self._pending_bytes = pending_bytes
        self._stall_seconds = stall_seconds
        self._loop = asyncio.get_running_loop()
        self._bytes = 0
        """Bytes of writes in progress."""
        self._away = False
        """A replica did not answer."""
        self._error: Unavailable | None = None

    def check(self) -> None:
        """Raise :class:`Unavailable` while a replica does not answer, or too many bytes are in progress to one."""
        if self._away or self._bytes > self._pending_bytes:
            raise Unavailable(f"{REPLICA_AWAY} now")

    def end(self, error: Unavailable) -> None:
        """Stop sending: all waiting callers get this error."""
        self._error = error

    def put(self, key: int, data: bytes, everywhere: asyncio.Future[None]) -> None:
        """Send a row's bytes to all replicas, with retries for a while, and resolve the future."""
        started_at, tries = self._loop.time(), 0
        self._bytes += len(data)

        def put() -> None:
            if self._error is not None:
                written(self._error)
                return
            self._tables.put_row_everywhere(key >> 33, key >> 13 & SEGMENT_MAX, key & ROWS_MOST - 1, data, written)

        def written(error: BaseException | None) -> None:
            nonlocal tries
            if isinstance(error, Unanswered) and self._loop.time() - started_at < self._stall_seconds:
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
                everywhere.exception()  # prevents a log line for an unretrieved exception
            if self._error is None and not self._away:
                self._away = True
                logger.error("%s, calls that wait for all of them are refused: %s", REPLICA_AWAY, error)
                self._loop.call_later(AWAY_SECONDS, self._retry, key, data)

        put()

    def _retry(self, key: int, data: bytes) -> None:
        """Retry a row that not all replicas have, until they have it."""
        if self._error is not None or not self._away:
            return
        everywhere = self._loop.create_future()
        everywhere.add_done_callback(
            lambda _: self._away and self._loop.call_later(AWAY_SECONDS, self._retry, key, data)
        )
        self.put(key, data, everywhere)

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
from backend.journal.cassandra.table_interface import ROWS_MAX, Tables, Unanswered
from backend.journal.rows import SEGMENT_MAX

logger = logging.getLogger(__name__)

NO_QUORUM: Final = "the journal has no quorum now"
REPLICA_UNAVAILABLE: Final = "a replica of the journal does not answer"
UNAVAILABLE_SECONDS: Final = 1.0
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
        self._unavailable = False
        """True while a replica does not answer."""
        self._error: Unavailable | None = None

    def check(self) -> None:
        """Raise :class:`Unavailable` while a replica does not answer, or too many bytes are in progress to one."""
        if self._unavailable or self._bytes > self._pending_bytes:
            raise Unavailable(f"{REPLICA_UNAVAILABLE} now")

    def end(self, error: Unavailable) -> None:
        """Stop sending: all waiting callers get this error."""
        self._error = error

    def put(self, key: int, data: bytes, on_all: asyncio.Future[None]) -> None:
        """Send a row's bytes to all replicas, with retries for a while, and resolve the future."""
        started_at, tries = self._loop.time(), 0
        self._bytes += len(data)

        def put() -> None:
            if self._error is not None:
                written(self._error)
                return
            self._tables.put_row_at_all(key >> 33, key >> 13 & SEGMENT_MAX, key & ROWS_MAX - 1, data, written)

        def written(error: BaseException | None) -> None:
            nonlocal tries
            if isinstance(error, Unanswered) and self._loop.time() - started_at < self._stall_seconds:
                tries += 1
                self._loop.call_later(pause(tries), put)
                return
            self._bytes -= len(data)
            if error is None:
                if self._unavailable:
                    self._unavailable = False
                    logger.warning("all replicas of log %d answer again", self._log_id)
                if not on_all.done():
                    on_all.set_result(None)
                return
            if not on_all.done():
                on_all.set_exception(
                    Unavailable(f"{REPLICA_UNAVAILABLE}; whether the call took effect is not known: {error}")
                )
                on_all.exception()  # prevents a log line for an unretrieved exception
            if self._error is None and not self._unavailable:
                self._unavailable = True
                logger.error("%s, calls that wait for all of them are refused: %s", REPLICA_UNAVAILABLE, error)
                self._loop.call_later(UNAVAILABLE_SECONDS, self._retry, key, data)

        put()

    async def repeat(self, key: int) -> None:
        """Write a row that a quorum has to all replicas; it may belong to any log.

        The bytes are the same, so concurrent repetition is harmless; if the segment is dropped meanwhile, the deletion
        prevails.
        """
        log_id, segment, number = key >> 33, key >> 13 & SEGMENT_MAX, key & ROWS_MAX - 1
        try:
            data = (await self._tables.get_rows(log_id, segment, [number])).get(number)
        except Unanswered as error:
            raise Unavailable(f"{NO_QUORUM}: {error}") from error
        if data is None:
            raise Unavailable("the message has just been written to another segment")
        on_all = self._loop.create_future()
        self.put(key, data, on_all)
        await on_all

    def _retry(self, key: int, data: bytes) -> None:
        """Retry a row that not all replicas have, until they have it."""
        if self._error is not None or not self._unavailable:
            return
        on_all = self._loop.create_future()
        on_all.add_done_callback(
            lambda _: self._unavailable and self._loop.call_later(UNAVAILABLE_SECONDS, self._retry, key, data)
        )
        self.put(key, data, on_all)

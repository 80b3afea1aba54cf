"""Worker thread of a SQLite connection, with group commit.

SQLite blocks, so one thread owns the connection and the event loop submits functions to it.  Writes that wait
during a commit share the next transaction and its one fsync; each runs in a savepoint, so that a refused one
does not affect the others.  Reads requested in between run in the same transaction, in order, and are answered
with it, so that no reader sees a change that could still be undone.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

from metadata_service.store import StoreError, StoreUnavailable

T = TypeVar("T")

_TOGETHER = 256
"""Maximum number of operations per transaction, so that none waits long."""


class _Operation(NamedTuple):
    run: Callable[[sqlite3.Connection], Any]
    kind: Literal["read", "write", "alone"]
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class Worker:
    """Runs operations on ``connection`` in order of submission, until :meth:`close`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._waiting: queue.SimpleQueue[_Operation | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="metadata-sqlite", daemon=True)
        self._thread.start()

    async def read(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Return what ``run`` returns or raises.  Errors of SQLite become :class:`StoreUnavailable`."""
        return await self._submit(run, "read")

    async def write(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run a write, and return once it is durable."""
        return await self._submit(run, "write")

    async def alone(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run outside of any transaction, for statements that SQLite allows only there."""
        return await self._submit(run, "alone")

    async def write_unsynced(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run one statement without a sync: visible to all at once, but a power loss may undo it.

        For heartbeats, which are frequent and worthless after a power loss.
        """

        def unsynced(db: sqlite3.Connection) -> T:
            # in WAL mode commits are not synced, and the file stays consistent
            db.execute("PRAGMA synchronous = NORMAL")
            try:
                return run(db)
            finally:
                db.execute("PRAGMA synchronous = FULL")

        return await self._submit(unsynced, "alone")

    async def close(self) -> None:
        """Finish queued operations, then close the connection."""
        if not self._closed:
            self._closed = True
            self._waiting.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    async def _submit(self, run: Callable[[sqlite3.Connection], T], kind: Literal["read", "write", "alone"]) -> T:
        if self._closed:
            raise StoreUnavailable("the metadata store is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._waiting.put(_Operation(run, kind, future, loop))
        return await future

    def _work(self) -> None:
        closing = False
        while not closing:
            operations: list[_Operation] = []
            operation = self._waiting.get()
            while operation is not None:
                if operation.kind == "alone":
                    if operations:
                        _answer(operations, self._run(operations))
                    operations = [operation]
                    break
                operations.append(operation)
                if len(operations) == _TOGETHER:
                    break
                try:
                    operation = self._waiting.get_nowait()
                except queue.Empty:
                    break
            closing = operation is None
            if operations:
                _answer(operations, self._run(operations))
        self._connection.close()

    def _run(self, operations: list[_Operation]) -> list[Any]:
        """Run operations in a transaction; returns a value, or an exception to raise, for each."""
        connection = self._connection
        if all(operation.kind != "write" for operation in operations):
            return [_attempt(operation, connection) for operation in operations]
        try:
            connection.execute("BEGIN IMMEDIATE")
            outcomes = []
            for operation in operations:
                if operation.kind == "read":
                    outcomes.append(_attempt(operation, connection))
                    continue
                connection.execute("SAVEPOINT operation")
                outcome = _attempt(operation, connection)
                if isinstance(outcome, _Raised):
                    connection.execute("ROLLBACK TO operation")
                connection.execute("RELEASE operation")
                outcomes.append(outcome)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            return [_Raised(StoreUnavailable(f"the metadata cannot be written: {error}"))] * len(operations)
        return outcomes


class _Raised(NamedTuple):
    error: Exception


def _attempt(operation: _Operation, connection: sqlite3.Connection) -> Any:
    try:
        return operation.run(connection)
    except StoreError as error:
        return _Raised(error)
    except sqlite3.Error as error:
        return _Raised(StoreUnavailable(f"the metadata cannot be used: {error}"))
    except Exception as error:
        return _Raised(error)


def _answer(operations: list[_Operation], outcomes: list[Any]) -> None:
    """Wake the waiting callers, with one call per event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for operation, outcome in zip(operations, outcomes, strict=True):
        by_loop.setdefault(operation.loop, []).append((operation.future, outcome))
    for loop, answers in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, answers)
        except RuntimeError:
            pass  # the loop is closed: there are no waiters left


def _resolve(answers: list[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, outcome in answers:
        if future.done():
            continue  # the caller was cancelled
        if isinstance(outcome, _Raised):
            future.set_exception(outcome.error)
        else:
            future.set_result(outcome)

"""The thread that works on a SQLite connection, with group commit.

SQLite blocks, so one thread has the connection and the event loop sends it functions.  Writes that wait
while a commit is under way share the next transaction and its one fsync; each runs in a savepoint, so
that one which is refused takes nothing of the others with it.  Reads that were asked for in between run in
the same transaction, in order, and are answered with it: nobody sees what could still be undone.
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
"""At most this many operations share a transaction, so that none waits for long."""


class _Operation(NamedTuple):
    run: Callable[[sqlite3.Connection], Any]
    kind: Literal["read", "write", "alone"]
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class Worker:
    """Runs operations on ``connection`` in the order in which they come, until :meth:`close`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._waiting: queue.SimpleQueue[_Operation | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="metadata-sqlite", daemon=True)
        self._thread.start()

    async def read(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """What ``run`` returns or raises.  Errors of SQLite become :class:`StoreUnavailable`."""
        return await self._submit(run, "read")

    async def write(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """The same, once it is durable."""
        return await self._submit(run, "write")

    async def alone(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """The same outside of any transaction, for what SQLite does only there."""
        return await self._submit(run, "alone")

    async def tell(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """The same for one statement, seen by all at once, and not synced: a machine that loses power may forget it.

        For signs of life, which are many and worth nothing after that.
        """

        def unsynced(db: sqlite3.Connection) -> T:
            db.execute("PRAGMA synchronous = NORMAL")  # in WAL mode: nothing is synced at a commit, and all stays whole
            try:
                return run(db)
            finally:
                db.execute("PRAGMA synchronous = FULL")

        return await self._submit(unsynced, "alone")

    async def close(self) -> None:
        """Work off what waits, then close the connection."""
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
        """One outcome for each operation: its value, or the exception to raise."""
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
    """Wake each waiting caller in its own event loop; one hop a loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for operation, outcome in zip(operations, outcomes, strict=True):
        by_loop.setdefault(operation.loop, []).append((operation.future, outcome))
    for loop, answers in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, answers)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more


def _resolve(answers: list[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, outcome in answers:
        if future.done():
            continue  # the caller was cancelled
        if isinstance(outcome, _Raised):
            future.set_exception(outcome.error)
        else:
            future.set_result(outcome)

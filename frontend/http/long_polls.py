"""Long polls, which end early when their client disconnects or the process drains."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Any, TypeVar

from backend.api import WAIT_ENDS
from frontend.http.asgi import AsgiReceive, ClientGone

_T = TypeVar("_T")


class LongPolls:
    """The waiting calls of a process.

    A waiting call runs in its own request's task.  The wait ends by cancelling the call, after which a backend
    claims nothing more; messages already claimed durably are still returned.  Our own server reports when a
    client has disconnected; under another one a second task waits for ASGI's ``http.disconnect``.
    """

    def __init__(self) -> None:
        self._waiting: set[asyncio.Task[Any]] = set()
        self._left: set[asyncio.Task[Any]] = set()
        self.draining = False

    def drain(self) -> None:
        """Let all waiting calls answer now, and later ones not wait at all."""
        self.draining = True
        for task in self._waiting:
            task.cancel(WAIT_ENDS)

    async def run(self, waiting: Awaitable[_T], receive: AsgiReceive, nothing: _T) -> _T:
        """Result of ``waiting``, also if it arrives in spite of a drain; ``nothing`` if the drain has ended it.

        Raises :class:`ClientGone`.
        """
        task = asyncio.current_task()
        assert task is not None
        call_when_gone = getattr(receive, "call_when_gone", None)  # holdfast.http.request_cycle.RequestCycle
        watcher = None
        self._waiting.add(task)
        if call_when_gone is None:
            watcher = asyncio.ensure_future(self._watch(task, receive))
        else:
            call_when_gone(partial(self._gone, task))
        try:
            try:
                result = await waiting
            except asyncio.CancelledError:
                if task not in self._left and not self.draining:
                    raise
                result = nothing
            if task in self._left or self.draining:
                while task.uncancel():
                    pass
                if task in self._left:
                    raise ClientGone
            return result
        finally:
            self._waiting.discard(task)
            self._left.discard(task)
            if call_when_gone is not None:
                call_when_gone(None)
            elif watcher is not None:
                watcher.cancel()

    async def _watch(self, task: asyncio.Task[Any], receive: AsgiReceive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone(task)

    def _gone(self, task: asyncio.Task[Any]) -> None:
        if task in self._waiting:
            self._left.add(task)
            task.cancel()

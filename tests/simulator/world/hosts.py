"""Processes on machines of their own, in one virtual time: killed, stopped and continued, and the network between them.

Whatever a process has under way belongs to it: a callback is run in the context that it was registered in, and the
context says whose it is.  So a process that is killed does nothing more, in the middle of whatever it was at, and one
that is stopped (SIGSTOP, a suspended machine) continues later with everything that arrived meanwhile, while the others
have gone on without it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from heapq import heappop, heappush
from random import Random
from typing import Any

from tests.simulator.world.loop import SPIN_MAX, SimHandle, SimLoop, Stuck

HOST: ContextVar[Host | None] = ContextVar("host", default=None)
"""The process that is running; None: the world outside."""


class Host:
    """One start of one process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.stopped = False
        self.held: list[HostHandle] = []
        """Callbacks that have become due since it was stopped."""
        self.at_death: dict[object, Callable[[], object]] = {}
        """Callbacks at its death, by which others' connections break."""
        self.context = copy_context()
        self.context.run(HOST.set, self)

    def run(self, loop: asyncio.AbstractEventLoop, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = self.context.run(loop.create_task, work)
        return task


class HostHandle(SimHandle):
    __slots__ = ("context", "host")

    def __init__(self, callback: Any, args: tuple[Any, ...], due: float, context: Context) -> None:
        self.callback = callback
        self.args = args
        self.due = due
        self.context = context
        self.host = context.get(HOST)


class HostLoop(SimLoop):
    """A loop whose callbacks belong to processes."""

    def __init__(self, random: Random, now: float, lag: float = 0.0) -> None:
        super().__init__(random, now, lag)
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        """All that have not ended: those of dead processes are where they were."""

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name or "task", context=context)
        self._tasks[id(task)] = task
        task.add_done_callback(self._ended, context=Context())
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(id(task), None)

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        handle = HostHandle(callback, args, self.now, copy_context() if context is None else context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        handle = HostHandle(callback, args, when, copy_context() if context is None else context)
        self._count += 1
        heappush(self._timers, (when, self._count, handle))
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        when = self.now + delay
        handle = HostHandle(callback, args, when, copy_context() if context is None else context)
        self._count += 1
        heappush(self._timers, (when, self._count, handle))
        return handle

    def kill(self, host: Host) -> None:
        """Nothing of it happens any more, and what it was connected to notices."""
        host.alive = False
        host.held.clear()
        noticed, host.at_death = list(host.at_death.values()), {}
        for notice in noticed:
            notice()

    def go_on(self, host: Host) -> None:
        """It was stopped."""
        host.stopped = False
        held, host.held = host.held, []
        if host.alive:
            self._ready.extend(held)

    def _run_ready(self, reached: Callable[[], bool] | None) -> None:
        # Most of a run's time is spent here, so nothing is called that can be written out.
        ready: deque[Any] = self._ready
        timers = self._timers
        while ready and not self.halted and self.now <= self._deadline and (reached is None or not reached()):
            handle = ready.popleft()
            callback, host = handle.callback, handle.host
            if callback is None:
                continue
            if host is not None:
                if not host.alive:
                    continue
                if host.stopped:
                    host.held.append(handle)
                    continue
            try:
                handle.context.run(callback, *handle.args)
            except Exception as error:
                self.failures.append(f"a callback raised {error!r}")
            self._spin += 1
            if self._spin > SPIN_MAX:
                raise Stuck("the loop spins")
            if self.cost_seconds:
                now = self.now = self.now + self.cost_seconds
                while timers and timers[0][0] <= now:
                    ready.append(heappop(timers)[2])
                    self._spin = 0

    def bury(self) -> list[asyncio.Task[Any]]:
        self._ready.clear()
        self._timers.clear()
        dead = [task for task in self._tasks.values() if not task.done()]
        self._tasks.clear()
        for task in dead:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        return dead


class Net:
    """The ways between machines.  Each has two directions, which fail apart from each other."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.slow_seconds = 0.002
        """Usual maximum transit time of a message; a late one takes up to a hundred times as long."""
        self.late = 0.0
        self.lost = 0.0
        self.twice = 0.0
        """Probability that a message that may arrive twice does."""
        self.twice_seconds = 0.0
        """Longest time that the second copy is on its way, beside the usual."""
        self.send_seconds_max = float("inf")
        """Longest time that a send with tokens is on its way: a copy must arrive within the window of its tokens."""
        self._cut: dict[tuple[str, str], int] = {}

    def cut(self, source: str, to: str) -> None:
        self._cut[source, to] = self._cut.get((source, to), 0) + 1

    def mend(self, source: str, to: str) -> None:
        self._cut[source, to] -= 1
        if not self._cut[source, to]:
            del self._cut[source, to]

    def open(self, source: str, to: str) -> bool:
        return (source, to) not in self._cut

    def delay(self, source: str, to: str) -> float | None:
        """Seconds on the way; None: it is lost."""
        random = self.random
        if (source, to) in self._cut or (self.lost and random.random() < self.lost):
            return None
        seconds = random.random() * self.slow_seconds
        return seconds * 100 if self.late and random.random() < self.late else seconds

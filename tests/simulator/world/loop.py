"""An event loop in virtual time, all of whose choices are drawn from a seed.

Time passes only when nothing is ready to run.  What asyncio leaves open is chosen by the generator: which of the timers
that are due together (completions of the disk, arrivals of clients) runs first, and how late the loop comes to look.
Callbacks that are ready run in the order they were registered in, for asyncio promises that.

A process dies with its loop: the driver, outside the loop, drops it and continues with another.
"""

import asyncio
import warnings
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from heapq import heappop, heappush
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")

SPIN_MAX = 200_000
"""So many callbacks without any time passing are a loop that never ends."""


class Stuck(Exception):
    """A wait never ends, or the loop spins."""


class SimHandle:
    """Handle of ``call_soon`` and ``call_at``."""

    __slots__ = ("args", "callback", "due")

    def __init__(self, callback: Callable[..., object] | None, args: tuple[Any, ...], due: float) -> None:
        self.callback = callback
        self.args = args
        self.due = due

    def cancel(self) -> None:
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self.due


class SimLoop(asyncio.AbstractEventLoop):
    """As much of an event loop as the backend needs."""

    def __init__(self, random: Random, now: float, lag: float = 0.0) -> None:
        self.random = random
        self.now = now
        self.lag = lag
        """Probability that the loop is late, so that several timers are due together."""
        self.cost_seconds = 0.0
        """Time that a callback takes: timers become due while others run, as in a real loop."""
        self.halted = False
        """Set to return to the driver at once (a power cut)."""
        self.failures: list[str] = []
        """Exceptions that were not retrieved."""
        self._ready: deque[SimHandle] = deque()
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._count = 0
        self._spin = 0
        self._deadline = 0.0

    # --- what asyncio asks of a loop ---

    def time(self) -> float:
        return self.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=name or "task")

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        handle = SimHandle(callback, args, self.now)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        handle = SimHandle(callback, args, when)
        self._count += 1
        heappush(self._timers, (when, self._count, handle))
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        return self.call_at(self.now + delay, callback, *args)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.failures.append(f"{context.get('message')}: {context.get('exception')!r}")

    # --- what the driver does with it ---

    def run_for(self, seconds: float) -> None:
        """Let so much time pass."""
        self._run(self.now + seconds, None)

    def complete(self, work: Coroutine[Any, Any, T], seconds_max: float) -> T | None:
        """Run until this is done; None if the loop was halted before.  Raises what it raises, and :class:`Stuck`."""
        task = self.create_task(work)
        self.until(task.done, seconds_max)
        if not task.done():
            return None
        result: T = task.result()
        return result

    def until(self, reached: Callable[[], bool], seconds_max: float) -> None:
        """Run until the condition holds, or the loop is halted."""
        self._run(self.now + seconds_max, reached)
        if not self.halted and not reached():
            raise Stuck(f"not reached within {seconds_max} s")

    def waiting(self) -> int:
        return sum(1 for _, _, handle in self._timers if handle.callback is not None)

    def _run(self, deadline: float, reached: Callable[[], bool] | None) -> None:
        self._deadline = deadline
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            while True:
                self._run_ready(reached)
                if self._is_over(reached) or self._is_late() or not self._wake(deadline):
                    return
        finally:
            events._set_running_loop(before)

    def _is_over(self, reached: Callable[[], bool] | None) -> bool:
        return self.halted or (reached is not None and reached())

    def _is_late(self) -> bool:
        """Callbacks are ready, and have been run for so long that the deadline is past."""
        return bool(self._ready) and self.now > self._deadline

    def _took_time(self) -> None:
        """A callback was run: what is due by now is ready, behind what was before."""
        self.now += self.cost_seconds
        timers = self._timers
        while timers and timers[0][0] <= self.now:
            self._ready.append(heappop(timers)[2])
            self._spin = 0

    def _run_ready(self, reached: Callable[[], bool] | None) -> None:
        ready = self._ready
        while ready and not self._is_over(reached) and not self._is_late():
            handle = ready.popleft()
            callback = handle.callback
            if callback is None:
                continue
            try:
                callback(*handle.args)
            except Exception as error:
                self.failures.append(f"a callback raised {error!r}")
            self._spin += 1
            if self._spin > SPIN_MAX:
                raise Stuck("the loop spins")
            if self.cost_seconds:
                self._took_time()

    def _wake(self, deadline: float) -> bool:
        """Let time pass until the next timer is due; False at the deadline."""
        timers = self._timers
        while timers and timers[0][2].callback is None:
            heappop(timers)
        if not timers or timers[0][0] > deadline:
            self.now = max(self.now, deadline)
            return False
        now = max(self.now, timers[0][0])
        if now > self.now:
            self._spin = 0
        if self.lag and self.random.random() < self.lag:
            now = max(now, min(deadline, now + self.random.uniform(0, 0.005)))
        self.now = now
        due: list[SimHandle] = []
        while timers and timers[0][0] <= now:
            due.append(heappop(timers)[2])
        if len(due) > 1:
            self.random.shuffle(due)
        self._ready.extend(due)
        return True

    def bury(self) -> list[asyncio.Task[Any]]:
        """End the process: none of its tasks continues.  The owner of the tasks closes them at the end of the run."""
        self._ready.clear()
        self._timers.clear()
        dead = [task for task in asyncio.all_tasks(self) if not task.done()]
        for task in dead:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        return dead


def close_dead(dead: list[asyncio.Task[Any]]) -> None:
    """Release the objects held by the tasks of dead processes; their remaining actions have no effect."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of coroutines that never began
        while dead:
            work = dead.pop().get_coro()
            if work is not None:
                try:
                    work.close()
                except BaseException:  # the world that it cleans up after is no more
                    continue

"""The budget of one input: CPU time of the thread, and memory.

Both are measured by the interpreter: the thread's CPU time, and the peak of traced allocations.  Tracing slows
code down, so an input is handled twice, once for each.
"""

from __future__ import annotations

import re
import time
import tracemalloc
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

T = TypeVar("T")
CPU_SECONDS_MAX = 0.25
MEMORY_FACTOR_MAX = 6
"""Maximum memory as a multiple of the input's length."""
MEMORY_ALLOWANCE_BYTES = 2 * 1024 * 1024
"""Memory that any input may use, however short it is."""
SLOWNESS_SECONDS = 0.07
"""CPU time of the computation of :func:`slowness` on the machine of the documents' figures, when it is idle."""
_ESCAPE = re.compile(rb"\\u(?:[dD]8|[eE]9)")
TRIES = 4
"""Number of measurements that must all exceed the CPU budget, because the machine may be busy."""


class OverBudget(AssertionError):
    """An input exceeded the budget."""


@dataclass(frozen=True)
class Cost:
    """The cost of one input, or the maxima of several."""

    cpu_seconds: float = 0.0
    memory_factor: float = 0.0
    """Peak of memory beyond the allowance, as a multiple of the input's length."""
    inputs: int = 0
    """Number of measured inputs."""

    def maximum(self, other: Cost) -> Cost:
        """The maximum of each member."""
        return Cost(
            max(self.cpu_seconds, other.cpu_seconds),
            max(self.memory_factor, other.memory_factor),
            self.inputs + other.inputs,
        )


def measured(handle: Callable[[], object], input_bytes: int, allowance_bytes: int = MEMORY_ALLOWANCE_BYTES) -> Cost:
    """Measure the cost of an input, which each call of ``handle`` handles.  Raises :class:`OverBudget`."""
    for _ in range(TRIES):
        started = time.thread_time()
        handle()
        cpu_seconds = time.thread_time() - started
        if cpu_seconds <= CPU_SECONDS_MAX or cpu_seconds <= CPU_SECONDS_MAX * slowness():
            break
    else:
        raise OverBudget(f"{cpu_seconds:.3f} s of CPU time for {input_bytes} bytes")
    return Cost(cpu_seconds, memory_factor(peak_bytes(handle), input_bytes, allowance_bytes), 1)


def slowness() -> float:
    """CPU time of a fixed computation now, as a multiple of its time on the machine of the documents' figures.

    At least 1.  It copies and searches memory and runs bytecode, as the handling of a request does.
    """
    text = b"escape\\u0041" * 200_000
    started = time.thread_time()
    for _ in range(2):
        text.replace(b"\\", b"//")
        _ESCAPE.search(text)
        sum(len(part) for part in text.split(b"e"))
    return max(1.0, (time.thread_time() - started) / SLOWNESS_SECONDS)


def peak_bytes(handle: Callable[[], object]) -> int:
    """Peak memory during the handling of an input."""
    started = not tracemalloc.is_tracing()
    if started:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        handle()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        if started:
            tracemalloc.stop()


def memory_factor(peak: int, input_bytes: int, allowance_bytes: int = MEMORY_ALLOWANCE_BYTES) -> float:
    """Memory as a multiple of the input's length.  Raises :class:`OverBudget`."""
    factor = max(0, peak - allowance_bytes) / max(1, input_bytes)
    if factor > MEMORY_FACTOR_MAX:
        raise OverBudget(f"{peak} bytes of memory for {input_bytes} bytes, {factor:.1f} times as much")
    return factor


def feed_measured(
    feed: Callable[[T], object], given: T, input_bytes: int, allowance_bytes: int = MEMORY_ALLOWANCE_BYTES
) -> tuple[bool, Cost]:
    """Feed a short input once with tracing on; returns if it was accepted, and its cost.

    Raises :class:`OverBudget`.
    """
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    started = time.thread_time()
    taken = bool(feed(given))
    cpu_seconds = time.thread_time() - started
    if cpu_seconds > CPU_SECONDS_MAX:
        measured(lambda: feed(given), input_bytes, allowance_bytes)
    peak = tracemalloc.get_traced_memory()[1] - before
    return taken, Cost(cpu_seconds, memory_factor(peak, input_bytes), 1)


class Stepped(Generic[T]):
    """An awaitable that measures the CPU time of a coroutine's own steps, among others in its loop."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self.cpu_seconds = 0.0

    def __await__(self) -> Generator[Any, Any, T]:
        resume: Callable[[], Any] = partial(self._coroutine.send, None)
        while True:
            started = time.thread_time()
            try:
                awaited = resume()
            except StopIteration as stop:
                result: T = stop.value
                return result
            finally:
                self.cpu_seconds += time.thread_time() - started
            try:
                resume = partial(self._coroutine.send, (yield awaited))
            except BaseException as error:
                resume = partial(self._coroutine.throw, error)

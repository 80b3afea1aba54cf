"""The budget of one input: CPU time of the thread, and memory.

Both are measured with what the interpreter itself knows: the thread's CPU time, and the peak of traced allocations.
Tracing makes code slower, so an input is handled twice, once for each.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass

CPU_SECONDS_MAX = 0.25
MEMORY_FACTOR_MAX = 6
"""Times the input's length."""
MEMORY_ALLOWANCE_BYTES = 1024 * 1024
"""What an input may take in any case, however short it is."""
TRIES = 4
"""An input is over the budget of CPU time if it is so each time: the machine may be busy with something else."""


class OverBudget(AssertionError):
    """An input has cost too much."""


@dataclass(frozen=True)
class Cost:
    """The cost of one input, or the maxima of several."""

    cpu_seconds: float = 0.0
    memory_factor: float = 0.0
    """Peak of memory beyond the allowance, as a multiple of the input's length."""

    def maximum(self, other: Cost) -> Cost:
        """Of each the larger one."""
        return Cost(max(self.cpu_seconds, other.cpu_seconds), max(self.memory_factor, other.memory_factor))


def measured(handle: Callable[[], object], input_bytes: int) -> Cost:
    """The cost of an input, which ``handle`` handles as often as it is called.  Raises :class:`OverBudget`."""
    for _ in range(TRIES):
        started = time.thread_time()
        handle()
        cpu_seconds = time.thread_time() - started
        if cpu_seconds <= CPU_SECONDS_MAX:
            break
    else:
        raise OverBudget(f"{cpu_seconds:.3f} s of CPU time for {input_bytes} bytes")
    return Cost(cpu_seconds, memory_factor(peak_bytes(handle), input_bytes))


def peak_bytes(handle: Callable[[], object]) -> int:
    """The most memory that is taken at a time while an input is handled."""
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


def memory_factor(peak: int, input_bytes: int) -> float:
    """Raises :class:`OverBudget`."""
    factor = max(0, peak - MEMORY_ALLOWANCE_BYTES) / max(1, input_bytes)
    if factor > MEMORY_FACTOR_MAX:
        raise OverBudget(f"{peak} bytes of memory for {input_bytes} bytes, {factor:.1f} times as much")
    return factor

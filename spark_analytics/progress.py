"""The lines that say what is waited for: a step of several, and each day of the batch, with an estimate of the
remaining time.

The estimate is made of the work that remains, which is listed before the first day is begun: days for which nothing
has come, or nothing new, take next to no time, and the time of the others is a fixed part and one that grows with the
bytes to read.  Both are fitted to the last days of the same table, because Spark is slower at first than later.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from statistics import median
from typing import Final, NamedTuple

Step = tuple[str, date]
"""A day of a table."""

_FITTED_MAX: Final = 12
"""Days of a table, the last ones, to which its times are fitted."""


@contextmanager
def print_step(name: str) -> Iterator[None]:
    """Print a line when a step begins, and one with the seconds it took when it is done."""
    print(f"{name} …", file=sys.stderr, flush=True)
    started = time.monotonic()
    yield
    print(f"{name}: {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)


class _Sample(NamedTuple):
    read_bytes: int
    seconds: float


class Estimate:
    """The remaining time of a batch, corrected with each step that is done."""

    def __init__(self, work: Mapping[Step, int]) -> None:
        """``work``: the bytes that each step will read; 0: there is nothing to read, or nothing new."""
        self._left = dict(work)
        self._samples: dict[str, list[_Sample]] = {}
        self._skipped: list[float] = []

    def add(self, step: Step, seconds: float) -> None:
        """Record what a step took."""
        if read_bytes := self._left.pop(step, 0):
            self._samples.setdefault(step[0], []).append(_Sample(read_bytes, seconds))
        else:
            self._skipped.append(seconds)

    def remaining_seconds(self) -> float | None:
        """The time that all steps take which are not done; None: nothing is known about it, or none are left."""
        if not self._left:
            return None
        skipped = median(self._skipped) if self._skipped else 0.0
        fitted: dict[str, tuple[float, float]] = {}
        total = 0.0
        fixed_max = min((one.seconds for samples in self._samples.values() for one in samples), default=0.0)
        for (name, _), read_bytes in self._left.items():
            if not read_bytes:
                total += skipped
                continue
            if not self._samples:
                return None
            if name not in fitted:
                fitted[name] = _fit(self._samples_for(name), fixed_max)
            fixed, per_byte = fitted[name]
            total += fixed + per_byte * read_bytes
        return total

    def _samples_for(self, name: str) -> Sequence[_Sample]:
        """Those of the table; of all tables while it has none but its first, which has to start Spark."""
        own = self._samples.get(name, [])
        if len(own) > 1:
            return own[1:][-_FITTED_MAX:]
        return own or [sample for samples in self._samples.values() for sample in samples]


def _fit(samples: Sequence[_Sample], fixed_max: float) -> tuple[float, float]:
    """The fixed seconds, by least squares of the relative errors, and those per byte, which make up the sum.

    ``fixed_max`` bounds the fixed seconds: no day of any table took less.  Days of about the same size say little of
    what a much smaller one takes.
    """
    weights = [1 / max(sample.seconds, 0.01) ** 2 for sample in samples]
    weighted = list(zip(weights, samples, strict=True))
    total = sum(weights)
    mean_bytes = sum(weight * one.read_bytes for weight, one in weighted) / total
    mean_seconds = sum(weight * one.seconds for weight, one in weighted) / total
    spread = sum(weight * (one.read_bytes - mean_bytes) ** 2 for weight, one in weighted)
    if spread == 0:
        return median(sample.seconds for sample in samples), 0.0
    slope = sum(weight * (one.read_bytes - mean_bytes) * (one.seconds - mean_seconds) for weight, one in weighted)
    fixed = min(max(mean_seconds - slope / spread * mean_bytes, 0.0), fixed_max)
    seconds, read_bytes = sum(one.seconds for one in samples), sum(one.read_bytes for one in samples)
    return fixed, max(seconds - fixed * len(samples), 0.0) / read_bytes

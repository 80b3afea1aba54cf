"""Progress output: a line for each step, and for each day of the batch, with an estimate of the remaining time.

The estimate is computed from the remaining work, which is listed before the first day: days without new records take
almost no time, and the others a fixed time plus a time proportional to the bytes to read.  Both are fitted to the last
days of the same table, because Spark is slower at the beginning.
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
"""Number of a table's last days from which its speed is estimated."""


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
    """Estimate of a batch's remaining time, corrected with each finished step."""

    def __init__(self, work: Mapping[Step, int]) -> None:
        """``work``: bytes that each step will read; 0: there are no records, or no new ones."""
        self._left = dict(work)
        self._samples: dict[str, list[_Sample]] = {}
        self._skipped: list[float] = []

    def add(self, step: Step, seconds: float) -> None:
        """Record the time of a step."""
        if read_bytes := self._left.pop(step, 0):
            self._samples.setdefault(step[0], []).append(_Sample(read_bytes, seconds))
        else:
            self._skipped.append(seconds)

    def remaining_seconds(self) -> float | None:
        """Estimated time of the remaining steps; None: unknown, or none are left."""
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
        """Samples of the table; of all tables while it has only its first one, which includes the start of Spark."""
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

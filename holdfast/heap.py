"""Garbage collection in the processes of the service: rare, and without the objects that exist since their start."""

from __future__ import annotations

import gc

_THRESHOLDS = (10_000, 100, 50)
"""Thresholds of the garbage collector.

Nearly all objects of a call are freed by reference counts.  With Python's default of 700 the collector repeatedly
scanned thousands of waiting receives: two fifths of the cost of 5,000 of them.  With a first threshold of 50,000 each
collection of new objects stopped the process for 2 to 29 ms; the second threshold keeps the older ones as rare.
"""


def collect_rarely() -> None:
    """Set the thresholds, before a process imports its modules: with those of Python they take more CPU time."""
    gc.set_threshold(*_THRESHOLDS)


def freeze_heap() -> None:
    """Exclude all objects that exist when a process starts serving from garbage collection."""
    gc.collect()
    gc.freeze()

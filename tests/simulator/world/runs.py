"""Records of simulated runs, and what makes a run the same each time."""

import contextlib
import gc
import logging
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from random import Random
from types import SimpleNamespace
from typing import NamedTuple
from unittest import mock
from uuid import UUID

from tests.simulator.world.loop import SimLoop


class Report(NamedTuple):
    seed: int
    digest: str
    """Digest of all calls and answers, in order."""
    counts: Counter[str]
    seconds: float
    """Virtual time that passed."""


class RecordedRun:
    """A run from one seed, with its events."""

    loop: SimLoop

    def __init__(self, seed: int, trace: bool) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.counts: Counter[str] = Counter()
        self.reports: list[str] = []
        """Errors that the backend has logged."""
        self.events: list[str] | None = [] if trace else None
        self._digest = blake2b(digest_size=16)

    def event(self, what: str, *details: object) -> None:
        self.counts[what] += 1
        text = f"{self.loop.now:.6f} {what} {details}"
        self._digest.update(text.encode())
        if self.events is not None:
            self.events.append(text)

    def report(self) -> Report:
        return Report(self.seed, self._digest.hexdigest(), self.counts, self.loop.now)


@contextlib.contextmanager
def deterministic(random: Random, reports: list[str], tick_seconds: float = 0.0007) -> Iterator[None]:
    """Take all that the backend asks of the machine from the seed; the processor's clock moves by ``tick_seconds``."""
    ticks = iter(range(1 << 60))
    modules = {
        "backend.serving.background.time": SimpleNamespace(perf_counter=lambda: next(ticks) * tick_seconds),
        "backend.serving.orphan_collector.FORGET_SECONDS": 5.0,
        "backend.serving.commands.uuid": SimpleNamespace(uuid4=lambda: UUID(int=random.getrandbits(128))),
        "backend.journal.local.journal.secrets": SimpleNamespace(randbits=random.getrandbits),
    }
    logger = logging.getLogger("backend")
    handler = _Reports(reports)
    level, passes_on, collecting = logger.level, logger.propagate, gc.isenabled()
    with contextlib.ExitStack() as stack:
        for name, stand_in in modules.items():
            stack.enter_context(mock.patch(name, stand_in))
        logger.setLevel(logging.ERROR)
        logger.addHandler(handler)
        logger.propagate = False
        gc.disable()
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = passes_on
            if collecting:
                gc.enable()


class _Reports(logging.Handler):
    def __init__(self, reports: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._reports = reports

    def emit(self, record: logging.LogRecord) -> None:
        self._reports.append(record.getMessage())

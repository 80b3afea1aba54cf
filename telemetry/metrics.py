"""Instruments: counters and measurements within one process.

An instrument is declared once, as a constant of the module that uses it.  It holds plain lists of numbers, and
each series has an index in them, which its user computes once::

    REFUSED = Counter("holdfast_logins_refused_total", "Logins that were refused.", labels=("reason",), series_max=16)
    expired = REFUSED.index("expired")
    ...
    REFUSED.counts[expired] += 1          # some 30 ns; REFUSED.add("expired") where that does not matter

    COMMIT = Histogram("holdfast_commit_seconds", "Time to write a row and sync it.", bounds=SECONDS)
    COMMIT.observe(0.0017)

    OPEN = Gauge("holdfast_connections", "Connections that are open.")
    OPEN.read_by(lambda: len(registry.connections))

The code that composes a process registers its instruments in a :class:`Registry`; exporters read that on
request (:mod:`telemetry.prometheus`, :mod:`telemetry.otlp`).  So a count costs one addition; the rest is done only when
the value is read.

The number of series is bounded: an instrument with labels has at most ``series_max``, and further ones are counted
together, with ``other`` for every label.  Values chosen by clients (queues, accounts, ids) must not be labels.

Everything here is for the thread of the event loop.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

OTHER: Final = "other"
"""Value of every label of the series that collects surplus ones."""
SECONDS: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Bounds for durations from a tenth of a millisecond to seconds."""
BYTES: Final = tuple(float(1 << power) for power in range(8, 25, 2))
"""Bounds from 256 bytes to 16 MiB."""
COUNTS: Final = tuple(float(1 << power) for power in range(13))
"""Bounds from 1 to 4096."""

Kind = Literal["counter", "gauge", "histogram"]
Labels = tuple[str, ...]
Readings = Mapping[Labels, float]
"""Values by label values."""

logger = logging.getLogger("holdfast.telemetry")

_NAME = re.compile(r"holdfast_[a-z][a-z0-9_]*[a-z0-9]")
_LABEL = re.compile(r"[a-z][a-z_]*")


class Series(NamedTuple):
    """One series of a family, as read."""

    labels: Labels
    value: float
    """Value; for a histogram the sum of the observations."""
    buckets: tuple[int, ...] = ()
    """Observations per bucket of a histogram: each bucket ends at its bound; the last one has no bound."""


class Family(NamedTuple):
    """An instrument, as read."""

    name: str
    kind: Kind
    help: str
    labels: Labels
    bounds: tuple[float, ...]
    """Upper bounds of a histogram's buckets, except the last one."""
    series: tuple[Series, ...]


class Counter:
    """Counts events, by labels if it has any."""

    kind: Final = "counter"

    def __init__(self, name: str, help: str, *, labels: Sequence[str] = (), series_max: int = 1) -> None:
        """``series_max``: maximum number of series, besides the one that collects surplus ones."""
        _check(name, help, labels, series_max)
        if not name.endswith("_total"):
            raise ValueError(f"the name of a counter ends with _total, not {name!r}")
        self.name, self.help, self.labels = name, help, tuple(labels)
        self.counts: list[int] = []
        """Counts by index of the series."""
        self._indexes = _SeriesIndexes(self.labels, series_max)
        if not labels:
            self.index()

    def index(self, *values: str) -> int:
        """Index in :attr:`counts` of the series with these label values."""
        index = self._indexes.of(values)
        if index == len(self.counts):
            self.counts.append(0)
        return index

    def add(self, *values: str, count: int = 1) -> None:
        self.counts[self.index(*values)] += count

    def read(self) -> Family:
        counts = self.counts
        series = tuple(Series(values, counts[index]) for values, index in self._indexes.known())
        return Family(self.name, self.kind, self.help, self.labels, (), series)


class Histogram:
    """Counts observations by size, between fixed bounds, and by labels if it has any."""

    kind: Final = "histogram"

    def __init__(
        self, name: str, help: str, *, bounds: Sequence[float], labels: Sequence[str] = (), series_max: int = 1
    ) -> None:
        """``bounds``: upper bound of each bucket; ``series_max`` as in :class:`Counter`."""
        _check(name, help, labels, series_max)
        if not bounds or list(bounds) != sorted(set(bounds)):
            raise ValueError(f"the bounds of {name} have to rise")
        self.name, self.help, self.labels = name, help, tuple(labels)
        self.bounds = tuple(float(bound) for bound in bounds)
        self.counts: list[int] = []
        """Counts of all buckets; those of a series begin at its index times :attr:`width`."""
        self.sums: list[float] = []
        """Sums by index of the series."""
        self.width = len(self.bounds) + 1
        self._indexes = _SeriesIndexes(self.labels, series_max)
        if not labels:
            self.index()

    def index(self, *values: str) -> int:
        """Index of the series with these label values."""
        index = self._indexes.of(values)
        if index == len(self.sums):
            self.sums.append(0.0)
            self.counts += [0] * self.width
        return index

    def observe(self, value: float, index: int = 0) -> None:
        """Count a value, in the series at this index."""
        self.counts[index * self.width + bisect_left(self.bounds, value)] += 1
        self.sums[index] += value

    def read(self) -> Family:
        counts, sums, width = self.counts, self.sums, self.width
        series = tuple(
            Series(values, sums[index], tuple(counts[index * width : (index + 1) * width]))
            for values, index in self._indexes.known()
        )
        return Family(self.name, self.kind, self.help, self.labels, self.bounds, series)


class _Asked:
    """An instrument without a stored value: it calls a function when it is read."""

    kind: Kind

    def __init__(self, name: str, help: str, *, labels: Sequence[str] = (), series_max: int = 1) -> None:
        """``series_max``: maximum number of series shown."""
        _check(name, help, labels, series_max)
        if name.endswith("_total") != (self.kind == "counter"):
            raise ValueError(f"the name of a counter ends with _total, and no other, not {name!r}")
        self.name, self.help, self.labels, self.series_max = name, help, tuple(labels), series_max
        self._ask: Callable[[], float | Readings | None] | None = None

    def read_by(self, ask: Callable[[], float | Readings | None]) -> None:
        """Set the function that reads the value: it returns a number, or with labels a number for each set of label
        values; None: not known now."""
        self._ask = ask

    def read(self) -> Family:
        found = self._ask() if self._ask is not None else None
        if found is None:
            readings: Readings = {}
        elif isinstance(found, Mapping):
            readings = found
        else:
            readings = {(): found}
        assert all(len(values) == len(self.labels) for values in readings), self.name
        series = tuple(Series(values, float(value)) for values, value in list(readings.items())[: self.series_max])
        return Family(self.name, self.kind, self.help, self.labels, (), series)


class Gauge(_Asked):
    """A value sampled when it is read."""

    kind = "gauge"


class Total(_Asked):
    """A total since the start of the process, counted by other code and sampled when it is read."""

    kind = "counter"


Instrument = Counter | Histogram | Gauge | Total


class Registry:
    """The instruments of one process."""

    def __init__(self) -> None:
        self._instruments: dict[str, Instrument] = {}
        self._before: list[Callable[[], Awaitable[None]]] = []
        self._failing: set[str] = set()
        """Names of instruments whose last read failed."""

    def add(self, *instruments: Instrument) -> None:
        """Register instruments.  Raises ``ValueError`` if another one has the same name."""
        for instrument in instruments:
            if self._instruments.setdefault(instrument.name, instrument) is not instrument:
                raise ValueError(f"{instrument.name} is declared twice")

    def declare(
        self,
        name: str,
        help: str,
        ask: Callable[[], float | Readings | None],
        *,
        labels: Sequence[str] = (),
        series_max: int = 1,
    ) -> None:
        """Declare and register an instrument for this process's own objects: a :class:`Total` or, by its name,
        a :class:`Gauge`."""
        kind = Total if name.endswith("_total") else Gauge
        instrument = kind(name, help, labels=labels, series_max=series_max)
        instrument.read_by(ask)
        self.add(instrument)

    def before(self, refresh: Callable[[], Awaitable[None]]) -> None:
        """Register a function to be awaited before each read, which gathers the values of gauges."""
        self._before.append(refresh)

    async def read(self) -> list[Family]:
        """Read all instruments, ordered by name.

        One whose read fails is left out, with a log line, so that it does not hide the others.
        """
        for refresh in self._before:
            try:
                await refresh()
            except Exception as error:
                self._failed(refresh.__qualname__, error)
            else:
                self._failing.discard(refresh.__qualname__)
        families = []
        for name, instrument in sorted(self._instruments.items()):
            try:
                families.append(instrument.read())
            except Exception as error:
                self._failed(name, error)
            else:
                self._failing.discard(name)
        return families

    def _failed(self, name: str, error: Exception) -> None:
        if name not in self._failing:
            self._failing.add(name)
            logger.error("%s cannot be read now", name, exc_info=error)


def joined(parts: Iterable[tuple[str, Sequence[Family]]], label: str) -> list[Family]:
    """Merge the families of several processes: each series gets a label with its process."""
    families: dict[str, Family] = {}
    for part, read in parts:
        for family in read:
            known = families.get(family.name, family._replace(labels=(label, *family.labels), series=()))
            assert (known.kind, known.labels[1:], known.bounds) == (family.kind, family.labels, family.bounds)
            added = tuple(one._replace(labels=(part, *one.labels)) for one in family.series)
            families[family.name] = known._replace(series=known.series + added)
    return [families[name] for name in sorted(families)]


class _SeriesIndexes:
    """Indexes of series, by label values."""

    def __init__(self, labels: Labels, series_max: int) -> None:
        self._count = len(labels)
        self._max = series_max
        self._of: dict[Labels, int] = {}
        self._other: int | None = None

    def of(self, values: Labels) -> int:
        index = self._of.get(values)
        if index is not None:
            return index
        assert len(values) == self._count
        if len(self._of) - (self._other is not None) >= self._max:
            if self._other is None:
                self._other = self._of.setdefault((OTHER,) * self._count, len(self._of))
            return self._other
        self._of[values] = index = len(self._of)
        return index

    def known(self) -> list[tuple[Labels, int]]:
        return list(self._of.items())


def _check(name: str, help: str, labels: Sequence[str], series_max: int) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of an instrument: holdfast_, small letters, digits and _")
    if not help.endswith("."):
        raise ValueError(f"the help of {name} has to be a sentence")
    if len(set(labels)) != len(labels) or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError(f"{name} cannot have the labels {', '.join(labels)}")
    if series_max < 1:
        raise ValueError(f"{name} has to have a series")

"""Instruments: what is counted and measured inside one process.

An instrument is declared once, as a constant of the module that counts with it.  It holds plain lists of numbers, of
which each series has a place that its owner looks up once and keeps::

    REFUSED = Counter("holdfast_logins_refused_total", "Logins that were refused.", labels=("reason",), most=16)
    expired = REFUSED.place("expired")
    ...
    REFUSED.counts[expired] += 1          # some 30 ns; REFUSED.add("expired") where that does not matter

    COMMIT = Histogram("holdfast_commit_seconds", "Time to write a row and sync it.", bounds=SECONDS)
    COMMIT.observe(0.0017)

    OPEN = Gauge("holdfast_connections", "Connections that are open.")
    OPEN.read_by(lambda: len(hall.connections))

Whoever composes the process says in a :class:`Registry` which instruments are its own; exporters read that, when they
are asked (:mod:`telemetry.prometheus`, :mod:`telemetry.otlp`).  So counting costs an addition, and all else nothing
until somebody looks.

The number of series is bounded: an instrument with labels says how many it has at ``most``, and what comes beyond is
counted together, with ``other`` for every label.  Nothing that clients choose (queues, accounts, ids) may be a label.

All of it is for the thread of the event loop.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

OTHER: Final = "other"
"""For every label of the series that stands for all that are too many."""
SECONDS: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Bounds for what takes from a tenth of a millisecond to seconds."""
BYTES: Final = tuple(float(1 << power) for power in range(8, 25, 2))
"""Bounds from 256 bytes to 16 MiB."""
COUNTS: Final = tuple(float(1 << power) for power in range(13))
"""Bounds from 1 to 4096."""

Kind = Literal["counter", "gauge", "histogram"]
Labels = tuple[str, ...]
Readings = Mapping[Labels, float]
"""Values by the labels' values."""

logger = logging.getLogger("holdfast.telemetry")

_NAME = re.compile(r"holdfast_[a-z][a-z0-9_]*[a-z0-9]")
_LABEL = re.compile(r"[a-z][a-z_]*")


class Series(NamedTuple):
    """One series of a family, as it was read."""

    labels: Labels
    value: float
    """Of a histogram: the sum of what was observed."""
    buckets: tuple[int, ...] = ()
    """Of a histogram: how many observations were within each bound and above the one before; last those beyond all."""


class Family(NamedTuple):
    """An instrument, as it was read."""

    name: str
    kind: Kind
    help: str
    labels: Labels
    bounds: tuple[float, ...]
    """Of a histogram: the highest value that each bucket takes, but for the last one."""
    series: tuple[Series, ...]


class Counter:
    """Counts what happened; by labels, if it has any."""

    kind: Final = "counter"

    def __init__(self, name: str, help: str, *, labels: Sequence[str] = (), most: int = 1) -> None:
        """``most``: so many series there are, beside the one for all others."""
        _check(name, help, labels, most)
        if not name.endswith("_total"):
            raise ValueError(f"the name of a counter ends with _total, not {name!r}")
        self.name, self.help, self.labels = name, help, tuple(labels)
        self.counts: list[int] = []
        """By the series' places."""
        self._places = _Places(self.labels, most)
        if not labels:
            self.place()

    def place(self, *values: str) -> int:
        """Where in :attr:`counts` the series of these labels' values is."""
        place = self._places.of(values)
        if place == len(self.counts):
            self.counts.append(0)
        return place

    def add(self, *values: str, count: int = 1) -> None:
        self.counts[self.place(*values)] += count

    def read(self) -> Family:
        counts = self.counts
        series = tuple(Series(values, counts[place]) for values, place in self._places.known())
        return Family(self.name, self.kind, self.help, self.labels, (), series)


class Histogram:
    """Counts what was observed by its size, between fixed bounds; by labels, if it has any."""

    kind: Final = "histogram"

    def __init__(
        self, name: str, help: str, *, bounds: Sequence[float], labels: Sequence[str] = (), most: int = 1
    ) -> None:
        """``bounds``: the highest value that each bucket takes; ``most`` as in :class:`Counter`."""
        _check(name, help, labels, most)
        if not bounds or list(bounds) != sorted(set(bounds)):
            raise ValueError(f"the bounds of {name} have to rise")
        self.name, self.help, self.labels = name, help, tuple(labels)
        self.bounds = tuple(float(bound) for bound in bounds)
        self.counts: list[int] = []
        """Of all buckets; those of a series begin at its place times :attr:`width`."""
        self.sums: list[float] = []
        """By the series' places."""
        self.width = len(self.bounds) + 1
        self._places = _Places(self.labels, most)
        if not labels:
            self.place()

    def place(self, *values: str) -> int:
        """Which series is that of these labels' values."""
        place = self._places.of(values)
        if place == len(self.sums):
            self.sums.append(0.0)
            self.counts += [0] * self.width
        return place

    def observe(self, value: float, place: int = 0) -> None:
        """Count a value, in the series at this place."""
        self.counts[place * self.width + bisect_left(self.bounds, value)] += 1
        self.sums[place] += value

    def read(self) -> Family:
        counts, sums, width = self.counts, self.sums, self.width
        series = tuple(
            Series(values, sums[place], tuple(counts[place * width : (place + 1) * width]))
            for values, place in self._places.known()
        )
        return Family(self.name, self.kind, self.help, self.labels, self.bounds, series)


class _Asked:
    """What nobody keeps: it is asked for when it is read."""

    kind: Kind

    def __init__(self, name: str, help: str, *, labels: Sequence[str] = (), most: int = 1) -> None:
        """``most``: so many series are shown."""
        _check(name, help, labels, most)
        if name.endswith("_total") != (self.kind == "counter"):
            raise ValueError(f"the name of a counter ends with _total, and no other, not {name!r}")
        self.name, self.help, self.labels, self.most = name, help, tuple(labels), most
        self._ask: Callable[[], float | Readings | None] | None = None

    def read_by(self, ask: Callable[[], float | Readings | None]) -> None:
        """From now on, ``ask`` tells: a number, or with labels numbers by their values; None: it is not known now."""
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
        series = tuple(Series(values, float(value)) for values, value in list(readings.items())[: self.most])
        return Family(self.name, self.kind, self.help, self.labels, (), series)


class Gauge(_Asked):
    """What is so and so much now."""

    kind = "gauge"


class Total(_Asked):
    """What has come to so and so much since the process began, where somebody else counts it already."""

    kind = "counter"


Instrument = Counter | Histogram | Gauge | Total


class Registry:
    """The instruments of one process."""

    def __init__(self) -> None:
        self._instruments: dict[str, Instrument] = {}
        self._before: list[Callable[[], Awaitable[None]]] = []
        self._failing: set[str] = set()
        """What could not be read the last time."""

    def add(self, *instruments: Instrument) -> None:
        """These are shown.  Raises ``ValueError`` if another one has that name."""
        for instrument in instruments:
            if self._instruments.setdefault(instrument.name, instrument) is not instrument:
                raise ValueError(f"{instrument.name} is declared twice")

    def tell(
        self,
        name: str,
        help: str,
        ask: Callable[[], float | Readings | None],
        *,
        labels: Sequence[str] = (),
        most: int = 1,
    ) -> None:
        """Declare what is told of this process's own objects, and show it: a :class:`Total` by its name, or a
        :class:`Gauge`."""
        kind = Total if name.endswith("_total") else Gauge
        instrument = kind(name, help, labels=labels, most=most)
        instrument.read_by(ask)
        self.add(instrument)

    def before(self, look: Callable[[], Awaitable[None]]) -> None:
        """Await this before each reading: it finds out what gauges tell then."""
        self._before.append(look)

    async def read(self) -> list[Family]:
        """All instruments as they are now, in the order of their names.

        One that cannot be read now is left out, and the log says why: it is not to hide the others.
        """
        for look in self._before:
            try:
                await look()
            except Exception as error:
                self._failed(look.__qualname__, error)
            else:
                self._failing.discard(look.__qualname__)
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
            logger.error("%s cannot be told now", name, exc_info=error)


def joined(parts: Iterable[tuple[str, Sequence[Family]]], label: str) -> list[Family]:
    """Families of several processes as one list: each series has the label that says which one it is of."""
    families: dict[str, Family] = {}
    for part, read in parts:
        for family in read:
            known = families.get(family.name, family._replace(labels=(label, *family.labels), series=()))
            assert (known.kind, known.labels[1:], known.bounds) == (family.kind, family.labels, family.bounds)
            added = tuple(one._replace(labels=(part, *one.labels)) for one in family.series)
            families[family.name] = known._replace(series=known.series + added)
    return [families[name] for name in sorted(families)]


class _Places:
    """Places of series, by the values of their labels."""

    def __init__(self, labels: Labels, most: int) -> None:
        self._count = len(labels)
        self._most = most
        self._of: dict[Labels, int] = {}
        self._other: int | None = None

    def of(self, values: Labels) -> int:
        place = self._of.get(values)
        if place is not None:
            return place
        assert len(values) == self._count
        if len(self._of) - (self._other is not None) >= self._most:
            if self._other is None:
                self._other = self._of.setdefault((OTHER,) * self._count, len(self._of))
            return self._other
        self._of[values] = place = len(self._of)
        return place

    def known(self) -> list[tuple[Labels, int]]:
        return list(self._of.items())


def _check(name: str, help: str, labels: Sequence[str], most: int) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of an instrument: holdfast_, small letters, digits and _")
    if not help.endswith("."):
        raise ValueError(f"the help of {name} has to be a sentence")
    if len(set(labels)) != len(labels) or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError(f"{name} cannot have the labels {', '.join(labels)}")
    if most < 1:
        raise ValueError(f"{name} has to have a series")

"""Hit rates of caches in all packages."""

from __future__ import annotations

from typing import Final, NamedTuple

from telemetry.metrics import Counter

LOOKUPS: Final = Counter(
    "holdfast_cache_lookups_total",
    "Cache lookups, by cache and result: hit, or miss (the value had to be fetched).",
    labels=("cache", "result"),
    series_max=32,
)
counts: Final = LOOKUPS.counts


class CounterIndexes(NamedTuple):
    """Indexes in :data:`counts` of one cache's counters."""

    hit: int
    miss: int


def indexes(cache: str) -> CounterIndexes:
    """Indexes for the caches with this name."""
    return CounterIndexes(LOOKUPS.index(cache, "hit"), LOOKUPS.index(cache, "miss"))

"""How often caches have what they are asked for, whatever room they are in."""

from __future__ import annotations

from typing import Final, NamedTuple

from telemetry.metrics import Counter

LOOKUPS: Final = Counter(
    "holdfast_cache_lookups_total",
    "Looks into a cache, by what it keeps and whether that was there (hit) or had to be fetched (miss).",
    labels=("cache", "result"),
    most=32,
)
counts: Final = LOOKUPS.counts


class Places(NamedTuple):
    """Where in :data:`counts` one cache counts."""

    hit: int
    miss: int


def places(cache: str) -> Places:
    """Of the caches of this name."""
    return Places(LOOKUPS.place(cache, "hit"), LOOKUPS.place(cache, "miss"))

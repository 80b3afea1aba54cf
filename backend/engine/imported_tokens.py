"""Tokens that other partitions of the queue have handed over, when the queue was split or a partition of it drained.

Each names a message of the partition that stored it, its *origin*: a repeated send is answered with that message's id,
whichever partition receives it.  A token is remembered a little longer than at its origin.
"""

from __future__ import annotations

from collections.abc import Iterator

from backend.engine.timers import NEVER
from backend.engine.tokens import Tokens


class ImportedTokens:
    """Imported tokens of a partition."""

    __slots__ = ("complete", "retries", "tokens")

    def __init__(self) -> None:
        self.complete: dict[int, int] = {}
        """By partition that has handed over all its tokens: the version of the map for which it did so."""
        self.retries: dict[int, Tokens] = {}
        """Retry tokens, by origin."""
        self.tokens: dict[int, Tokens] = {}
        """Deduplication ids, by origin."""

    def __len__(self) -> int:
        return sum(map(len, self.windows()))

    def windows(self) -> Iterator[Tokens]:
        yield from self.retries.values()
        yield from self.tokens.values()

    @property
    def next_expiry(self) -> int:
        return min((window.next_expiry for window in self.windows()), default=NEVER)

    def expire(self, now: int) -> None:
        """Free the memory of tokens that have expired at ``now``."""
        for by_origin in (self.retries, self.tokens):
            for origin, window in list(by_origin.items()):
                window.expire(now)
                if not window:
                    del by_origin[origin]

    def retry(self, token: bytes, now: int) -> tuple[int, int, bytes] | None:
        """Return origin, number and digest stored with this retry token, unless it has expired at ``now``."""
        for origin, window in self.retries.items():
            found = window.find(token, now)
            if found is not None:
                return origin, *found
        return None

    def message(self, token: bytes, now: int) -> tuple[int, int] | None:
        """Return origin and number of the message with this deduplication id, unless it has expired at ``now``."""
        for origin, window in self.tokens.items():
            number = window.get(token, now)
            if number is not None:
                return origin, number
        return None

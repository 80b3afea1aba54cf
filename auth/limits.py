"""The numbers of a tenant: how fast it may call, and how much it may have."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

RATE_MOST = 1_000_000
"""Calls per second and calls of a burst: more than a service could answer, and exact in every place that counts."""
RATE_LEAST = 0.00001
"""About one call a day."""
QUOTA_MOST = 2**62
"""What the stores can keep as a number, with room for sums."""

_RATE = re.compile(r"([0-9]{1,7}(?:\.[0-9]{1,9})?)(?::([0-9]{1,7}))?\Z", re.ASCII)
_QUOTA = re.compile(r"[0-9]{1,19}\Z", re.ASCII)
_RATES = ("calls", "send", "receive", "manage", "each_queue")
_QUOTAS = ("queues", "keys", "stored_bytes", "connections", "long_polls")


class Rate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A leaky bucket's size: after a burst of ``burst`` calls, ``per_second`` calls a second.

    Raises ``ValueError`` for numbers with which nothing, or anything, would be let through.
    """

    per_second: float
    """Less than 1 is possible: 0.1 is a call every ten seconds."""
    burst: int
    """Calls at once, after a pause that was long enough."""

    def __post_init__(self) -> None:
        if not _is_number(self.per_second) or not RATE_LEAST <= self.per_second <= RATE_MOST:
            raise ValueError(
                f"the rate of a limit is a number of calls per second from {RATE_LEAST:.5f} to {RATE_MOST}, "
                f"not {self.per_second!r}"
            )
        if not _is_whole(self.burst) or not 1 <= self.burst <= RATE_MOST:
            raise ValueError(f"the burst of a limit is a number of calls from 1 to {RATE_MOST}, not {self.burst!r}")

    def __str__(self) -> str:
        """As :func:`parse_rate` reads it."""
        rate = f"{self.per_second:.9f}".rstrip("0").rstrip(".")
        return f"{rate}:{self.burst}"


def parse_rate(text: str) -> Rate:
    """``50:200`` is 50 calls a second with a burst of 200; ``50`` alone has a burst of one second.  ``ValueError``."""
    match = _RATE.match(text)
    if match is None:
        raise ValueError(
            "a rate is written as calls per second and burst, such as 50:200, or as calls per second alone, "
            f"not {text!r}"
        )
    per_second = float(match[1])
    return Rate(per_second, int(match[2]) if match[2] else max(1, math.ceil(per_second)))


class TenantLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one tenant may do at most; None: no limit.  Raises ``ValueError``, which names the field."""

    calls: Rate | None = None
    """All calls of the tenant together."""
    send: Rate | None = None
    """Its calls that send."""
    receive: Rate | None = None
    """Its calls that receive, delete, or change a visibility timeout."""
    manage: Rate | None = None
    """All its other calls."""
    each_queue: Rate | None = None
    """The calls to any single one of its queues."""
    queues: int | None = None
    """Queues that it may have."""
    keys: int | None = None
    """Access keys and API keys that it may have; None: a thousand."""
    stored_bytes: int | None = None
    """Of messages, as they are stored, in all its queues together."""
    connections: int | None = None
    """Its calls that may be under way at once."""
    long_polls: int | None = None
    """Its receives that may be waiting for a message at once."""

    def __post_init__(self) -> None:
        for name in _RATES:
            rate = getattr(self, name)
            if rate is not None and not isinstance(rate, Rate):
                raise ValueError(f"the limit {name} is a rate with a burst, not {rate!r}")
        for name in _QUOTAS:
            quota = getattr(self, name)
            if quota is not None and not (_is_whole(quota) and 0 <= quota <= QUOTA_MOST):
                raise ValueError(f"the quota {name} is a whole number from 0 on, not {quota!r}")


UNLIMITED = TenantLimits()
"""What a tenant has of whom nothing else was said."""


def parse_limits(text: str) -> TenantLimits:
    """``calls=100:500 send=50 queues=20``: rates as :func:`parse_rate` reads them and quotas, between spaces or commas.

    Empty text is no limits.  Raises ``ValueError``.
    """
    given: dict[str, Any] = {}
    for item in text.replace(",", " ").split():
        name, _, value = item.partition("=")
        if name in given:
            raise ValueError(f"the limit {name} is given twice")
        if name in _RATES:
            given[name] = parse_rate(value)
        elif name in _QUOTAS and _QUOTA.match(value):
            given[name] = int(value)
        elif name in _QUOTAS:
            raise ValueError(f"the quota {name} is a whole number from 0 on, not {value!r}")
        else:
            raise ValueError(f"{name!r} is no limit; there are {', '.join((*_RATES, *_QUOTAS))}")
    return TenantLimits(**given)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, float) or _is_whole(value)

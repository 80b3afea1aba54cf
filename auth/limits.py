"""A tenant's limits: call rates and quotas."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

RATE_MAX = 1_000_000
"""Maximum of calls per second and of a burst: more than a service can answer, and exact in every representation."""
RATE_MIN = 0.00001
"""Minimum rate: about one call a day."""
QUOTA_MAX = 2**62
"""Maximum quota that stores can represent, with room for sums."""

_RATE = re.compile(r"([0-9]{1,7}(?:\.[0-9]{1,9})?)(?::([0-9]{1,7}))?\Z", re.ASCII)
_QUOTA = re.compile(r"[0-9]{1,19}\Z", re.ASCII)
_RATES = ("calls", "send", "receive", "manage", "each_queue")
_QUOTAS = ("queues", "topics", "topic_partitions", "keys", "stored_bytes", "connections", "long_polls")


class Rate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Size of a leaky bucket: after a burst of ``burst`` calls, ``per_second`` calls per second.

    Raises ``ValueError`` for numbers that would let nothing, or everything, through.
    """

    per_second: float
    """Calls per second; may be below 1: 0.1 is a call every ten seconds."""
    burst: int
    """Number of calls at once, after a long enough pause."""

    def __post_init__(self) -> None:
        if not _is_number(self.per_second) or not RATE_MIN <= self.per_second <= RATE_MAX:
            raise ValueError(
                f"the rate of a limit is a number of calls per second from {RATE_MIN:.5f} to {RATE_MAX}, "
                f"not {self.per_second!r}"
            )
        if not _is_whole(self.burst) or not 1 <= self.burst <= RATE_MAX:
            raise ValueError(f"the burst of a limit is a number of calls from 1 to {RATE_MAX}, not {self.burst!r}")

    def __str__(self) -> str:
        """Text in the format of :func:`parse_rate`."""
        rate = f"{self.per_second:.9f}".rstrip("0").rstrip(".")
        return f"{rate}:{self.burst}"


def parse_rate(text: str) -> Rate:
    """Parse ``50:200``, 50 calls per second with a burst of 200; ``50`` alone has a burst of one second.
    ``ValueError``."""
    match = _RATE.match(text)
    if match is None:
        raise ValueError(
            "a rate is written as calls per second and burst, such as 50:200, or as calls per second alone, "
            f"not {text!r}"
        )
    per_second = float(match[1])
    return Rate(per_second, int(match[2]) if match[2] else max(1, math.ceil(per_second)))


class TenantLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Maximums for one tenant; None: no limit.  Raises ``ValueError``, which names the field.

    Only limits that are set are stored, so that a release that does not know one can read all tenants without it.
    """

    calls: Rate | None = None
    """Rate of all calls of the tenant."""
    send: Rate | None = None
    """Rate of its sends."""
    receive: Rate | None = None
    """Rate of its receives, deletes, and changes of visibility timeouts."""
    manage: Rate | None = None
    """Rate of all its other calls."""
    each_queue: Rate | None = None
    """Rate of the calls to each single queue."""
    queues: int | None = None
    """Number of queues."""
    topics: int | None = None
    """Number of topics."""
    topic_partitions: int | None = None
    """Number of partitions in all its topics together."""
    keys: int | None = None
    """Number of access keys and API keys; None: a thousand."""
    stored_bytes: int | None = None
    """Bytes of stored messages in all its queues together."""
    connections: int | None = None
    """Number of concurrent calls."""
    long_polls: int | None = None
    """Number of receives waiting for a message at once."""

    def __post_init__(self) -> None:
        for name in _RATES:
            rate = getattr(self, name)
            if rate is not None and not isinstance(rate, Rate):
                raise ValueError(f"the limit {name} is a rate with a burst, not {rate!r}")
        for name in _QUOTAS:
            quota = getattr(self, name)
            if quota is not None and not (_is_whole(quota) and 0 <= quota <= QUOTA_MAX):
                raise ValueError(f"the quota {name} is a whole number from 0 on, not {quota!r}")


UNLIMITED = TenantLimits()
"""Limits of a tenant without any settings."""


def parse_limits(text: str) -> TenantLimits:
    """Parse ``calls=100:500 send=50 queues=20``: rates (:func:`parse_rate`) and quotas, separated by spaces or
    commas.

    Empty text means no limits.  Raises ``ValueError``.
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

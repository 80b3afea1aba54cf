"""Protection against guessing of keys: failed sign-ins are counted, their answers delayed, and bursts logged once.

Each client address and each claimed key id has a leaky count of failures.  From ``ALLOWED`` on, the answer to a
*failure* is delayed, longer with each.  A caller with a valid key never waits, whatever others have tried from
the same address or with the same key id: no caller can be locked out.

Memory is bounded: the number of counts is limited, the oldest is dropped first, and the number of delayed
answers is limited; further ones are answered at once, and their connections closed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections import OrderedDict
from collections.abc import Callable

ALLOWED = 100
"""Number of failures without a delay, because a deployment with an old key also causes some."""
LEAK_PER_SECOND = 0.5
DELAY_SECONDS_EACH = 0.05
DELAY_SECONDS_MAX = 2.0
COUNTED_MAX = 10_000
WAITING_MAX = 256

_GUESSES = frozenset(("InvalidClientTokenId", "SignatureDoesNotMatch"))
"""Error codes that a wrong guess causes."""
_SHOWN_MAX = 128

log = logging.getLogger("holdfast.auth")


class _Count:
    __slots__ = ("at", "level", "logged")

    def __init__(self, at: float) -> None:
        self.level = 0.0
        self.at = at
        self.logged = False

    def add(self, now: float) -> float:
        """Count one more failure; returns the new level."""
        left = self.level - (now - self.at) * LEAK_PER_SECOND
        if left <= 0:
            left, self.logged = 0.0, False
        self.level, self.at = left + 1, now
        return self.level


class Guesses:
    """Counts of failed sign-ins in this process."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts: OrderedDict[str, _Count] = OrderedDict()
        self._waiting = 0

    def delay(self, code: str, address: str, credential: str) -> float:
        """Count a sign-in refused with ``code``; returns the delay of its answer in seconds."""
        if code not in _GUESSES:
            return 0.0
        by_address = self._count(f"from {network_of(address)}")
        by_credential = self._count(f"as {credential[:_SHOWN_MAX]}")
        now = self._clock()
        address_level, credential_level = by_address.add(now), by_credential.add(now)
        level = max(address_level, credential_level)
        if level <= ALLOWED:
            return 0.0
        worse = by_address if address_level >= credential_level else by_credential
        if not worse.logged:
            worse.logged = True
            log.warning(
                "repeated sign-in failures, answered slowly from now on: the latest from %r as %r",
                address,
                credential[:_SHOWN_MAX],
            )
        return min(DELAY_SECONDS_MAX, (level - ALLOWED) * DELAY_SECONDS_EACH)

    async def wait(self, seconds: float) -> bool:
        """Delay an answer; False if too many are delayed already."""
        if self._waiting >= WAITING_MAX:
            return False
        self._waiting += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self._waiting -= 1
        return True

    def _count(self, name: str) -> _Count:
        count = self._counts.get(name)
        if count is None:
            count = self._counts[name] = _Count(self._clock())
            if len(self._counts) > COUNTED_MAX:
                self._counts.popitem(last=False)
        else:
            self._counts.move_to_end(name)
        return count


def network_of(address: str) -> str:
    """Address by which a client is counted: for IPv6 its /64 network."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return address

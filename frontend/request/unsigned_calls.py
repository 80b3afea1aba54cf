"""Rate limits for unsigned calls that no policy allows.

A queue's policy has to be looked up and evaluated to know if it allows all callers, at the expense of the service
alone. So each such call first takes a token of its client's address, and one of the account that it names; an
allowed call returns both, because it counts towards the limits of the queue's owner.  The account has a
separate bucket for this: unauthenticated callers can neither use up its own limits, nor have its policies
evaluated without bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from auth.guessing import network_of
from frontend.request.instruments import THROTTLED
from frontend.sqs.protocol.errors import REQUEST_THROTTLED, SqsError
from ratelimit.keyed import KeyedBuckets
from ratelimit.meter import BucketMeter

ADDRESS_PER_SECOND, ADDRESS_BURST = 20.0, 100.0
"""Rate of refused calls of one address; for IPv6 of one network (/64)."""
ACCOUNT_PER_SECOND, ACCOUNT_BURST = 100.0, 500.0
"""Rate of refused calls that name the queues of one account, from all addresses together."""


def _take(buckets: KeyedBuckets, name: str) -> BucketMeter:
    """Take a token; returns its bucket.  Raises RequestThrottled."""
    meter, wait = buckets.take(name)
    if wait:
        THROTTLED.add("unsigned")
        raise SqsError(
            REQUEST_THROTTLED,
            "Too many requests without a signature were refused. Sign the request, or try again later.",
            retry_after_s=wait,
        )
    return meter


class UnsignedCall:
    """One call, until it is allowed or refused.  A context manager, so that it always ends."""

    __slots__ = ("_accounts", "_is_let_in", "_taken")

    def __init__(self, taken: BucketMeter, accounts: KeyedBuckets) -> None:
        self._taken = [taken]
        self._accounts = accounts
        self._is_let_in = False

    def at_account(self, account: str) -> None:
        """Take a token of the account that the call names.  Raises RequestThrottled."""
        self._taken.append(_take(self._accounts, account))

    def let_in(self) -> None:
        """Mark the call as allowed by a policy: it does not count."""
        self._is_let_in = True

    def __enter__(self) -> UnsignedCall:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_let_in:
            for meter in self._taken:
                meter.level = max(0.0, meter.level - 1.0)


class UnauthenticatedCallers:
    """Throttles the unsigned calls of a process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._addresses = KeyedBuckets(ADDRESS_PER_SECOND, ADDRESS_BURST, clock)
        self._accounts = KeyedBuckets(ACCOUNT_PER_SECOND, ACCOUNT_BURST, clock)

    def admit(self, address: str) -> UnsignedCall:
        """Admit a call from this address, before any lookup.  Raises RequestThrottled."""
        return UnsignedCall(_take(self._addresses, network_of(address)), self._accounts)

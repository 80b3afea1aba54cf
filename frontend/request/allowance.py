"""A tenant's limits, and their use in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from auth.limits import TenantLimits
from frontend.request.instruments import THROTTLED
from frontend.sqs.protocol.errors import REQUEST_THROTTLED, SqsError

BUSY_RETRY_SECONDS = 1.0
"""Retry time where it is not known when there will be room."""
Meters = tuple[Any, ...]
"""Meters of the process's limiter."""


class Allowance:
    """A tenant's limits, and their use in this process."""

    __slots__ = (
        "account",
        "calls",
        "calls_max",
        "limits",
        "meters",
        "polls",
        "polls_max",
        "processes",
        "queues",
        "stored_bytes",
        "stored_due",
    )

    def __init__(self, account: str, limits: TenantLimits, processes: int) -> None:
        self.account = account
        self.processes = processes
        self.set(limits)
        self.meters: dict[str, Meters] = {}
        """Meters by action, without those of queues."""
        self.queues: dict[str, Meters] = {}
        """Meters of used queues, by name."""
        self.calls = 0
        """Number of calls in progress."""
        self.polls = 0
        """Number of receives waiting for a message."""
        self.stored_bytes = 0
        """Last answer of the backend on stored bytes."""
        self.stored_due = 0.0
        """Time of the next query to the backend."""

    def check_stored_bytes(self, limit: int, caller: str) -> None:
        """Check that the account may store more.  Raises RequestThrottled; only the owner sees the numbers."""
        if self.stored_bytes < limit:
            return
        THROTTLED.add("stored_bytes")
        if caller == self.account:
            text = (
                f"The queues and streams of the account {self.account} store {self.stored_bytes} bytes, and its quota "
                f"'stored_bytes' is {limit}. Delete messages or records, and try again, or ask the operator of this "
                "service for more."
            )
        else:
            text = (
                f"The queues and streams of the account {self.account} store as much as its quota 'stored_bytes' lets "
                "them. Try again later."
            )
        raise SqsError(REQUEST_THROTTLED, text, retry_after_s=BUSY_RETRY_SECONDS)

    def set(self, limits: TenantLimits) -> None:
        """Set the limits."""
        self.limits = limits
        self.calls_max = _share(limits.connections, self.processes)
        """This process's share of the quota of concurrent calls."""
        self.polls_max = _share(limits.long_polls, self.processes)

    def start_call(self) -> None:
        """Count a call in progress; the caller decrements ``calls`` at its end.  Raises RequestThrottled."""
        limit = self.calls_max
        if limit is not None and self.calls >= limit:
            THROTTLED.add("connections")
            raise SqsError(
                REQUEST_THROTTLED,
                f"The account {self.account} has {self.calls} calls under way at this server, and its quota "
                f"'connections' is {limit} there. Try again when one of them has been answered.",
                retry_after_s=BUSY_RETRY_SECONDS,
            )
        self.calls += 1

    @contextmanager
    def long_poll(self) -> Iterator[None]:
        """Count a waiting receive within this context.  Raises RequestThrottled."""
        limit = self.polls_max
        if limit is not None and self.polls >= limit:
            THROTTLED.add("long_polls")
            raise SqsError(
                REQUEST_THROTTLED,
                f"The account {self.account} has {self.polls} receives waiting for messages at this server, and its "
                f"quota 'long_polls' is {limit} there. Receive with WaitTimeSeconds 0, or try again later.",
                retry_after_s=BUSY_RETRY_SECONDS,
            )
        self.polls += 1
        try:
            yield
        finally:
            self.polls -= 1


def _share(quota: int | None, processes: int) -> int | None:
    """Share of one process; the sum is the quota, or slightly more."""
    return None if quota is None else -(-quota // processes)

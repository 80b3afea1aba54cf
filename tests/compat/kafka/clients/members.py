"""Members of groups that come and go, in scenarios of the clients for Python."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, Self

from tests.compat.kafka.clients.kit import WAIT_SECONDS

HEARTBEAT_MS = 300
"""Rebalances end as soon as all members have heard of them."""

SESSION_MS = 60_000
"""A static member has this time to return."""


class PollingMember(ABC):
    """A member that polls in a thread of its own, from the start of the context to its end."""

    def __init__(self) -> None:
        self.partitions: set[int] = set()
        self.revoked = 0
        """Partitions that it had to give up so far."""
        self.error: Exception | None = None
        """Error that ended it."""
        self.stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self._thread.join()

    def assign(self, partitions: Iterable[Any]) -> None:
        """Note partitions that the client reports as given."""
        self.partitions |= {one.partition for one in partitions}

    def revoke(self, partitions: Iterable[Any]) -> None:
        """Note partitions that the client reports as taken away."""
        gone = {one.partition for one in partitions}
        self.revoked += len(gone)
        self.partitions -= gone

    @abstractmethod
    def poll(self) -> None:
        """Join the group, poll until ``stopped`` is set, and close the client."""

    def _run(self) -> None:
        try:
            self.poll()
        except Exception as error:
            self.error = error


class GroupScenarios(ABC):
    """Operations with members of groups."""

    @abstractmethod
    def member(self, topic: str, group: str, assignor: str, instance: str | None = None) -> PollingMember:
        """Return a member that has not joined yet; with an instance it is a static member."""

    def range_assignor(self, topic: str, group: str, partitions: int) -> list[list[list[int]]]:
        return [shares for shares, _ in self._shared(topic, group, partitions, "range")]

    def roundrobin_assignor(self, topic: str, group: str, partitions: int) -> list[list[list[int]]]:
        return [shares for shares, _ in self._shared(topic, group, partitions, "roundrobin")]

    def cooperative_assignor(self, topic: str, group: str, partitions: int) -> list[Any]:
        _, (shares, revoked), (_, revoked_until_end) = self._shared(topic, group, partitions, "cooperative-sticky")
        return [sorted(number for share in shares for number in share), revoked, revoked_until_end]

    def _shared(self, topic: str, group: str, partitions: int, assignor: str) -> list[tuple[list[list[int]], int]]:
        """Let a second member join and leave.

        Returns each member's partitions while there is one, two, and one again, and how many the first had given up.
        """
        with self.member(topic, group, assignor) as first:
            states = [(_balanced([first], partitions), first.revoked)]
            with self.member(topic, group, assignor) as second:
                states.append((sorted(_balanced([first, second], partitions // 2)), first.revoked))
            states.append((_balanced([first], partitions), first.revoked))
        return states

    def static_members(self, topic: str, group: str, partitions: int) -> list[Any]:
        half = partitions // 2
        with ExitStack() as running:
            leave = [running.enter_context(ExitStack()) for _ in range(2)]

            def join(number: int) -> PollingMember:
                return leave[number].enter_context(self.member(topic, group, "range", f"member-{number}"))

            members = [join(0)]
            _balanced(members, partitions)
            members.append(join(1))
            results: list[Any] = [_balanced(members, half)]
            for number in range(2):
                other = members[1 - number]
                revoked = other.revoked
                leave[number].close()
                members[number] = join(number)
                results.append([_balanced(members, half), other.revoked - revoked])
        return results

    def fenced_member(self, topic: str, group: str, partitions: int) -> int | None:
        with self.member(topic, group, "range", "member") as former:
            _balanced([former], partitions)
            with self.member(topic, group, "range", "member") as double:
                _balanced([double], partitions)
                _until(lambda: former.error is not None, lambda: "the former member was not fenced")
        assert former.error is not None
        return self.error_code(former.error)

    @staticmethod
    @abstractmethod
    def error_code(error: Exception) -> int | None:
        """Return the error code of the service, or None."""


def _balanced(members: list[PollingMember], count: int) -> list[list[int]]:
    """Wait until each member has so many partitions; returns them."""
    shares: list[list[int]] = []

    def done() -> bool:
        shares[:] = [sorted(one.partitions) for one in members]
        for one in members:
            if one.error is not None:
                raise one.error
        return all(len(share) == count for share in shares)

    _until(done, lambda: f"assignments are {shares}")
    return shares


def _until(condition: Callable[[], bool], describe: Callable[[], str]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(describe())
        time.sleep(0.01)

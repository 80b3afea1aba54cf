"""Statistics of queues: their size, and the operations since this node owns them.

Counting costs a command one or two additions to integers of the partition
(:class:`~backend.serving.partition.OpenPartition`). They are neither journaled nor handed over, so they start at zero
when a partition gets another owner: readers must use differences, and :attr:`~backend.api.Measures.since_ms`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from backend.api import Measures
from backend.engine.order import QUIET_AFTER_MS
from backend.serving.partition import OpenPartition

GROUPS_MOST: Final = 5_000
"""Maximum number of message groups counted for one queue: a quarter of a millisecond."""
AT_ONCE: Final = 2_000
"""Partitions checked before other tasks get a turn: about a millisecond."""
MEASURED_AT_ONCE: Final = 200
"""Partitions measured before other tasks get a turn."""


def measured(partition: OpenPartition) -> Measures:
    """Return the partition's statistics now; the caller has advanced its time."""
    fold = partition.fold
    counters = fold.counters()
    in_flight, noisy, noisy_waiting = _groups(partition)
    return Measures(
        partition.id,
        name_of(partition),
        counters.visible,
        counters.in_flight,
        counters.delayed,
        counters.stored_bytes,
        fold.first_sent_ms(),
        partition.since_ms,
        partition.sent,
        partition.sent_bytes,
        partition.deduplicated,
        partition.received,
        partition.empty_receives,
        partition.deleted,
        in_flight,
        noisy,
        None if noisy is None else max(0, counters.visible - noisy_waiting),
    )


def name_of(partition: OpenPartition) -> str:
    """Return the name of the partition's queue."""
    settings = partition.fold.settings
    assert settings is not None
    return settings.arn.rpartition(":")[2]


def _groups(partition: OpenPartition) -> tuple[int | None, int | None, int]:
    """Count groups: FIFO: with messages in flight; otherwise noisy groups, and their waiting messages."""
    fold = partition.fold
    if len(fold.lanes) > GROUPS_MOST:
        return None, None, 0
    if fold.fifo:
        return sum(1 for lane in fold.lanes.values() if lane.claimed), None, 0
    if len(fold.lanes) == 1:  # no message has a group
        return None, None, 0
    noisy = [one for one in fold.lanes.values() if one.noisy and fold.now - one.sent_ms < QUIET_AFTER_MS]
    return None, len(noisy), sum(lane.waiting for lane in noisy)


async def measured_of(
    partitions: Mapping[int, OpenPartition],
    account: str,
    prefixes: tuple[str, ...],
    after: str,
    most: int,
) -> list[Measures]:
    """Return statistics of the account's first ``most`` queues by name (:meth:`backend.api.Backend.measures_of`)."""
    found: list[tuple[str, OpenPartition]] = []
    last: str | None = None
    for count, partition in enumerate(list(partitions.values()), 1):
        if partition.account == account and not partition.fold.dropped:
            name = name_of(partition)
            if name > after and (last is None or name <= last) and (not prefixes or name.startswith(prefixes)):
                found.append((name, partition))
        if not count % AT_ONCE:
            if len(found) > 2 * most + AT_ONCE:
                found, last = _first(found, most)
            await asyncio.sleep(0)
    told: list[Measures] = []
    for _, partition in _first(found, most)[0]:
        if partition.closed or partition.fold.dropped:
            continue  # it left meanwhile
        partition.fold.advance(partition.clock())
        told.append(measured(partition))
        if not len(told) % MEASURED_AT_ONCE:
            await asyncio.sleep(0)
    return told


def _first(found: list[tuple[str, OpenPartition]], most: int) -> tuple[list[tuple[str, OpenPartition]], str | None]:
    """Return the entries of the first ``most`` names, in order, and the last name; None: there are fewer names."""
    found.sort(key=_name)
    names, last = 0, None
    for place, (name, _) in enumerate(found):
        if name != last:
            names += 1
            if names > most:
                return found[:place], last
            last = name
    return found, last if names == most else None


def _name(one: tuple[str, OpenPartition]) -> str:
    return one[0]


def merged(lists: Iterable[Sequence[Measures]], most: int) -> list[Measures]:
    """Merge statistics of several nodes, each of its first ``most`` queues by name, into the first ``most`` of all."""
    found = sorted((one for told in lists for one in told), key=lambda one: (one.queue, one.partition))
    names, last = 0, None
    for place, one in enumerate(found):
        if one.queue != last:
            names, last = names + 1, one.queue
            if names > most:
                return found[:place]
    return found

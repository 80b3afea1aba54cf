"""Statistics of queues, their size and the operations since this node owns them, and stored bytes of accounts.

Counting costs a command one or two additions to integers of the partition
(:class:`~backend.serving.partition.OpenPartition`). They are neither journaled nor handed over, so they start at zero
when a partition gets another owner: readers must use differences, and :attr:`~backend.api.Measures.since_ms`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec

from backend.api import AccountMeasures, Measures, NotificationCounts
from backend.engine.order import QUIET_AFTER_MS
from backend.serving.partition import OpenPartition
from backend.serving.stream_partition import StreamPartition
from metadata_service.topics import is_hidden

GROUPS_MAX: Final = 5_000
"""Maximum number of message groups counted for one queue: a quarter of a millisecond."""
AT_ONCE: Final = 2_000
"""Partitions checked before other tasks get a turn: about a millisecond."""
MEASURED_AT_ONCE: Final = 200
"""Partitions measured before other tasks get a turn."""
SUMMED_AT_ONCE: Final = 5_000
"""Partitions summed before other tasks get a turn: about half a millisecond."""
SUMS_KEPT_SECONDS: Final = 0.5
"""Maximum age of the sums of accounts, without the time to compute them."""


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
        fold.pending_deliveries,
        fold.dropped_deliveries,
        _notifications(partition),
        fold.next_number - 1,
    )


def name_of(partition: OpenPartition) -> str:
    """Return the name of the partition's queue."""
    settings = partition.fold.settings
    assert settings is not None
    return settings.arn.rpartition(":")[2]


def _notifications(partition: OpenPartition) -> NotificationCounts | None:
    """Return the counts of a topic."""
    expired = partition.fold.dropped_deliveries - partition.dropped_before
    counts = partition.notifications
    if counts is None and not expired:
        return None
    return msgspec.structs.replace(counts or NotificationCounts(), expired=expired)


def _groups(partition: OpenPartition) -> tuple[int | None, int | None, int]:
    """Count groups: FIFO: with messages in flight; otherwise noisy groups, and their waiting messages."""
    fold = partition.fold
    if len(fold.lanes) > GROUPS_MAX:
        return None, None, 0
    if fold.fifo:
        return sum(1 for lane in fold.lanes.values() if lane.claimed), None, 0
    if len(fold.lanes) == 1:  # no message has a group
        return None, None, 0
    noisy = [one for one in fold.lanes.values() if one.noisy and fold.now - one.sent_ms < QUIET_AFTER_MS]
    return None, len(noisy), sum(lane.waiting for lane in noisy)


async def measured_of(partitions: Mapping[int, OpenPartition], command: AccountMeasures) -> list[Measures]:
    """Return statistics of the account's first queues by name."""
    account, prefixes, after, max_names = command.account, tuple(command.prefixes), command.after, command.max_queues
    found: list[tuple[str, OpenPartition]] = []
    last: str | None = None
    for count, partition in enumerate(list(partitions.values()), 1):
        if partition.account == account and not partition.fold.dropped:
            name = name_of(partition)
            listed = name.startswith(prefixes) if prefixes else not is_hidden(name)
            if name > after and (last is None or name <= last) and listed:
                found.append((name, partition))
        if not count % AT_ONCE:
            if len(found) > 2 * max_names + AT_ONCE:
                found, last = _first(found, max_names)
            await asyncio.sleep(0)
    statistics: list[Measures] = []
    for _, partition in _first(found, max_names)[0]:
        if partition.closed or partition.fold.dropped:
            continue  # it left meanwhile
        partition.fold.advance(partition.clock())
        statistics.append(measured(partition))
        if not len(statistics) % MEASURED_AT_ONCE:
            await asyncio.sleep(0)
    return statistics


def _first(
    found: list[tuple[str, OpenPartition]], max_names: int
) -> tuple[list[tuple[str, OpenPartition]], str | None]:
    """Return the entries of the first ``max_names`` names, in order, and the last name; None: there are fewer names."""
    found.sort(key=_name)
    names, last = 0, None
    for place, (name, _) in enumerate(found):
        if name != last:
            names += 1
            if names > max_names:
                return found[:place], last
            last = name
    return found, last if names == max_names else None


def _name(one: tuple[str, OpenPartition]) -> str:
    return one[0]


class AccountUsage:
    """Stored bytes of each account on this node, for quotas.

    No sum is maintained for an account: each queue has its own (:attr:`~backend.engine.state.State.stored_bytes`), and
    they are summed on demand if the last sums are too old.  So it costs a command nothing, however many queues there
    are, and no second count can drift from the first.
    """

    def __init__(self, partitions: Mapping[int, OpenPartition], streams: Mapping[int, StreamPartition]) -> None:
        self._partitions = partitions
        self._streams = streams
        self._sums: dict[str, int] = {}
        self._due = 0.0

    async def stored_bytes(self, account: str) -> int:
        """Return the bytes of all messages and batches in the account's queues and topics here."""
        now = asyncio.get_running_loop().time()
        if now >= self._due:
            self._due = now + SUMS_KEPT_SECONDS  # concurrent callers get the last sums
            self._sums = await self._added_up()
        return self._sums.get(account, 0)

    async def _added_up(self) -> dict[str, int]:
        sums: dict[str, int] = {}
        for count, partition in enumerate(list(self._partitions.values()), 1):
            sums[partition.account] = sums.get(partition.account, 0) + partition.fold.stored_bytes
            if not count % SUMMED_AT_ONCE:
                await asyncio.sleep(0)
        for count, stream in enumerate(list(self._streams.values()), 1):
            settings = stream.fold.settings
            assert settings is not None
            sums[settings.account] = sums.get(settings.account, 0) + stream.fold.stored_bytes
            if not count % SUMMED_AT_ONCE:
                await asyncio.sleep(0)
        return sums

"""Cache of heads and payloads of messages on disk that are likely to be received soon.

Each partition has a cache of its own.  All share a budget; when it is used up, the least recently used ones are
cleared.  A receive reads messages that are not in its partition's cache from the journal, together with the
messages just behind them.  The cache does not survive a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence

from backend.api import Unavailable
from backend.engine.blocks import BACK, BLOCK_BITS, WAITING
from backend.engine.claims import Claimed
from backend.engine.fold import Fold
from backend.engine.records import Message, RetryAnswered, decode_head
from backend.journal.interface import Log
from backend.journal.rows import RecordView
from backend.journal.types import DamagedRecord
from backend.serving.partition import Entry, OpenPartition

logger = logging.getLogger(__name__)

WINDOW_MESSAGES = 8192
"""Queue length below which new messages are kept in memory, as far as the common budget allows."""
ENTRY_BYTES = 300
"""Bytes of an entry beside its payload."""
PREFETCH_MESSAGES = 64
"""Messages read ahead by a receive, in all and behind each message that it reads: reading them holds the event loop."""
PREFETCH_EACH_MIN = 8
"""Messages read ahead behind each one, if a receive reads several that are far apart, as those of a FIFO group are."""


class PayloadCache:
    """The caches of all partitions of an incarnation, and reads of messages that are not in them."""

    def __init__(self, log: Log, budget_bytes: int, quarantine: Callable[[OpenPartition, list[int]], None]) -> None:
        self.bytes_left = budget_bytes
        self._log = log
        self._quarantine = quarantine
        """Called with messages that are permanently unreadable."""
        self._used: OrderedDict[int, OpenPartition] = OrderedDict()
        """Partitions that may have cached messages, the least recently used first."""

    # --- cached entries -----------------------------------------------------------------------------------

    def keep(self, partition: OpenPartition, written: Sequence[tuple[Message | RetryAnswered, bytes]]) -> None:
        """Cache messages that have just been stored, for a receive soon, or for the deliveries of publications."""
        if partition.fold.visible - len(written) >= WINDOW_MESSAGES or not self._has_room(partition):
            return
        cached = partition.cached
        for record, payload in written:
            if payload and isinstance(record, Message):
                self.bytes_left -= len(payload) + ENTRY_BYTES
                cached[record.number] = (record, payload)

    def take(self, partition: OpenPartition, numbers: Iterable[int]) -> list[Entry | None]:
        """Remove the messages' entries from the cache and return them; None for those not in it."""
        pop = partition.cached.pop
        found, freed_bytes = [], 0
        for number in numbers:
            entry = pop(number, None)
            if entry is not None:
                freed_bytes += len(entry[1]) + ENTRY_BYTES
            found.append(entry)
        self.bytes_left += freed_bytes
        return found

    def forget(self, partition: OpenPartition, numbers: Sequence[int]) -> None:
        """Remove the entries of deleted messages."""
        if partition.cached:
            self.take(partition, numbers)

    def trim(self, partition: OpenPartition) -> None:
        """Remove entries of messages that expired."""
        fold = partition.fold
        if len(partition.cached) > fold.visible + fold.delayed + len(fold.publications):
            self.take(partition, [number for number in partition.cached if partition.fold.locate(number) is None])

    def clear(self, partition: OpenPartition) -> None:
        """Remove all entries of a partition."""
        for _, payload in partition.cached.values():
            self.bytes_left += len(payload) + ENTRY_BYTES
        partition.cached.clear()

    def remove(self, partition: OpenPartition) -> None:
        """Remove a dropped or closed partition."""
        self.clear(partition)
        self._used.pop(partition.id, None)

    def _has_room(self, partition: OpenPartition) -> bool:
        """Return whether the partition may cache more; clear the least recently used caches if necessary."""
        used = self._used
        used[partition.id] = partition
        used.move_to_end(partition.id)
        while self.bytes_left <= 0 and len(used) > 1:
            _, idle = used.popitem(last=False)
            self.clear(idle)
        return self.bytes_left > 0

    def keep_loaded(self, partition: OpenPartition, loaded: Mapping[int, Entry]) -> None:
        """Cache publications that were read, for their other deliveries."""
        if not partition.closed and self._has_room(partition):
            for number, entry in loaded.items():
                if number not in partition.cached and number in partition.fold.publications:
                    self.bytes_left -= len(entry[1]) + ENTRY_BYTES
                    partition.cached[number] = entry

    # --- reads from the journal -----------------------------------------------------------------------------

    async def fill(
        self, partition: OpenPartition, claims: Sequence[Claimed], found: list[Entry | None]
    ) -> list[Entry | None]:
        """Complete the result of :meth:`take` for the claims with reads from the journal, which also read ahead."""
        missing = [(claim.number, claim.position) for claim, entry in zip(claims, found, strict=True) if entry is None]
        while partition.loading is not None:
            # Another receive reads here: its read-ahead may include the missing entries.
            await asyncio.shield(partition.loading)
        numbers = [number for number, _ in missing]
        loaded = {
            number: entry
            for number, entry in zip(numbers, self.take(partition, numbers), strict=True)
            if entry is not None
        }
        missing = [wanted for wanted in missing if wanted[0] not in loaded]
        if missing:
            ahead = self._neighbours(partition, missing) if self._has_room(partition) else []
            partition.loading = asyncio.get_running_loop().create_future()
            try:
                loaded |= await self._load_with(partition, missing, ahead)
            finally:
                partition.loading.set_result(None)
                partition.loading = None
            for number, _ in ahead:
                entry = loaded.get(number)
                if entry is not None and not partition.closed and _is_waiting(partition.fold, number):
                    self.bytes_left -= len(entry[1]) + ENTRY_BYTES
                    partition.cached[number] = entry
        return [
            entry if entry is not None else loaded.get(claim.number) for claim, entry in zip(claims, found, strict=True)
        ]

    async def _load_with(
        self, partition: OpenPartition, missing: list[tuple[int, int]], ahead: list[tuple[int, int]]
    ) -> dict[int, Entry]:
        """Load missing messages with the read-ahead; if that fails, load them alone."""
        try:
            return await self.load(partition, missing + ahead)
        except Unavailable:
            if not ahead:
                raise
        return await self.load(partition, missing)

    def _neighbours(self, partition: OpenPartition, missing: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return waiting messages just behind these, which also follow them on the disk.

        In a FIFO queue these mostly belong to other groups, which are served next.
        """
        cached, blocks = partition.cached, partition.fold.blocks
        each = max(PREFETCH_MESSAGES // len(missing), PREFETCH_EACH_MIN)
        chosen: dict[int, int] = {}
        for number, _ in missing:
            block = blocks.get(number >> BLOCK_BITS)
            if block is None:
                continue
            start = number + 1 - block.base
            states = block.states[start : start + each]
            positions = block.positions[start : start + each]
            for place, state in enumerate(states, number + 1):
                if state in (WAITING, BACK) and place not in cached:
                    chosen[place] = positions[place - number - 1]
        return list(chosen.items())

    async def load(self, partition: OpenPartition, wanted: Sequence[tuple[int, int]]) -> dict[int, Entry]:
        """Return heads and payloads by number, for (number, position).  Corrupt messages are quarantined and omitted.

        Raises :class:`Unavailable` when they cannot be read now.
        """
        views = await self._log.read_many([position for _, position in wanted])
        loaded: dict[int, Entry] = {}
        moved: list[tuple[int, int]] = []
        damaged: list[int] = []
        for (number, position), view in zip(wanted, views, strict=True):
            head = None
            if isinstance(view, RecordView) and view.partition == partition.id:
                head = decode_head(view.kind, view.head)
            if isinstance(view, RecordView) and isinstance(head, Message) and head.number == number:
                loaded[number] = (head, view.body)
                partition.weigh(len(loaded[number][1]))
                continue
            found = partition.fold.locate(number)
            if found is None:
                continue  # it was deleted meanwhile, perhaps with its segment
            if found[0].positions[found[1]] != position:
                moved.append((number, found[0].positions[found[1]]))  # compaction has moved it
                continue
            what = str(view) if isinstance(view, DamagedRecord) else "another record is at its position"
            logger.error("message %d of partition %d is quarantined: %s", number, partition.id, what)
            damaged.append(number)
        if damaged:
            self._quarantine(partition, damaged)
        if moved:
            loaded.update(await self.load(partition, moved))
        return loaded


def _is_waiting(fold: Fold, number: int) -> bool:
    found = fold.locate(number)
    return found is not None and found[0].states[found[1]] in (WAITING, BACK)

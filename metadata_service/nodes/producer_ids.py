"""Ids of idempotent producers, which a frontend gives out from blocks that the store allocates."""

from __future__ import annotations

import asyncio
from typing import Final

from metadata_service.store import StreamStore

BLOCK: Final = 1000
"""Number of ids per allocation.  Those that a process has not used when it ends are lost."""


class ProducerIds:
    """Gives out ids in one process."""

    def __init__(self, store: StreamStore, *, block: int = BLOCK) -> None:
        self._store = store
        self._block = block
        self._next = self._end = 0
        self._lock = asyncio.Lock()

    async def allocate(self) -> int:
        """Return an id that nobody was given before.  Raises :class:`~metadata_service.store.StoreUnavailable`."""
        if self._next == self._end:
            async with self._lock:
                if self._next == self._end:  # another call may have fetched a block
                    self._next = await self._store.allocate_producer_ids(self._block)
                    self._end = self._next + self._block
        number = self._next
        self._next += 1
        return number

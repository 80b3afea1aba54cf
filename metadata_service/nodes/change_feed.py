"""Invalidation of cached queues, streams and topics that other processes have changed.

Message calls do not need it: the backend refuses callers whose queue is gone, and applies the newest settings.  But the
frontend uses cached attributes for its own decisions (policy, message limits, visibility timeout).  So it polls the
store for changed names a few times per second, and drops these from its caches.  In Cassandra a change and its record
are not one transaction, and a process may end between the two.  So all that is cached is also dropped periodically.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from metadata_service.nodes.named_cache import NamedCache
from metadata_service.store import ChangeStore, StoreError

POLL_SECONDS = 0.25
"""Interval between polls, and so the maximum delay of another process's change here."""

FORGET_SECONDS = 60
"""Maximum age of anything cached, whatever the store reports."""

log = logging.getLogger("holdfast.process.metadata")


class ChangeWatch:
    """Keeps caches of queues, streams and topics from having anything older than :data:`POLL_SECONDS`.

    While the store is unavailable nothing stays cached: each call then reads the store, and fails like without a cache.
    """

    def __init__(self, store: ChangeStore, *caches: NamedCache[Any], poll_seconds: float = POLL_SECONDS) -> None:
        self._store = store
        self._caches = caches
        self._poll_seconds = poll_seconds
        self._forget_polls = int(FORGET_SECONDS / poll_seconds)
        """Number of polls after which the whole cache is dropped."""
        self._polls = 0
        self._last: int | None = None
        self._failing = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start polling, before anything is cached."""
        await self.poll()
        self._task = asyncio.create_task(self._poll_forever(), name="watch for changes of queues")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def poll(self) -> None:
        """Drop the queues, streams and topics that changed since the last poll."""
        started = asyncio.get_running_loop().time()
        try:
            changes = await self._store.queue_changes(self._last)
        except StoreError as error:
            if not self._failing:
                self._failing = True
                log.error("changes of queues and topics cannot be polled, so they are not cached: %s", error)
            self._forget(None)
            return
        # Answers to this process's earlier calls are already cached, because the store answers in order.
        self._failing = False
        self._last = changes.last
        self._polls = (self._polls + 1) % self._forget_polls
        self._forget(changes.names if self._polls else None)
        for cache in self._caches:
            cache.checked(started)

    def _forget(self, names: list[tuple[str, str]] | None) -> None:
        for cache in self._caches:
            cache.forget(names)

    async def _poll_forever(self) -> None:
        while True:
            await asyncio.sleep(self._poll_seconds)
            await self.poll()

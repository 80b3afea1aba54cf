"""Invalidation of cached queues that other processes have changed.

Message calls do not need it: the backend refuses callers whose queue is gone, and applies the newest settings.
But the frontend uses cached attributes for its own decisions (policy, message limits, visibility timeout).  It
therefore asks the store a few times per second which queues were changed by any process, and drops these from
its cache.  Where a change and its record are not one transaction (in Cassandra), a process may end between the
two: the queue is changed, though its caller had no answer.  So the whole cache is dropped periodically.
"""

from __future__ import annotations

import asyncio
import logging

from metadata_service.nodes.cached_client import MetadataClient
from metadata_service.store import ChangeStore, StoreError

LOOK_SECONDS = 0.25
"""Interval between polls, and thus the delay until another process's change counts here."""

FORGET_SECONDS = 60
"""Maximum age of anything cached, whatever the store reports."""

log = logging.getLogger("holdfast.process.metadata")


class ChangeWatch:
    """Keeps ``client`` from caching anything older than :data:`LOOK_SECONDS`.

    While the store is unavailable nothing stays cached: each call then asks it, and is refused as without a
    cache.
    """

    def __init__(self, store: ChangeStore, client: MetadataClient, *, look_seconds: float = LOOK_SECONDS) -> None:
        self._store = store
        self._client = client
        self._look_seconds = look_seconds
        self._forget_looks = int(FORGET_SECONDS / look_seconds)
        """Number of polls after which the whole cache is dropped."""
        self._looked = 0
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
        """Drop the queues that changed since the last poll."""
        try:
            changes = await self._store.queue_changes(self._last)
        except StoreError as error:
            if not self._failing:
                self._failing = True
                log.error("changes of queues cannot be polled, so queues are not cached: %s", error)
            self._client.forget(None)
            return
        # Answers to this process's earlier calls are cached by now: the store answers in order.
        self._failing = False
        self._last = changes.last
        self._looked = (self._looked + 1) % self._forget_looks
        self._client.forget(changes.names if self._looked else None)

    async def _poll_forever(self) -> None:
        while True:
            await asyncio.sleep(self._look_seconds)
            await self.poll()

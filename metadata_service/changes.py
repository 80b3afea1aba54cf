"""What other processes of the machine change of queues, so that a cache in this one does not keep what is old.

Messages need none of this: the backend refuses who knows of a queue that is gone, and works with the newest settings.
But what the frontend decides by itself (the policy, limits of a message, the visibility timeout) it decides by what it
has cached.  So it asks the store a few times a second which queues were changed, whoever changed them, and forgets
these.  Where a change and the note of it are not one transaction (in Cassandra), a process may end between the two:
its caller had no answer, but the queue is changed.  So now and then all is forgotten.
"""

from __future__ import annotations

import asyncio
import logging

from metadata_service.client import MetadataClient
from metadata_service.store import ChangeStore, StoreError

LOOK_SECONDS = 0.25
"""Between two looks; a change in another process counts here as soon after it was made."""

FORGET_SECONDS = 60
"""After which nothing is cached any more, whatever the store says."""

log = logging.getLogger("holdfast.metadata")


class ChangeWatch:
    """Keeps ``client`` from knowing what is older than :data:`LOOK_SECONDS`.

    While the store cannot be asked nothing stays cached: then each call asks it, and is refused as it would be without
    a cache.
    """

    def __init__(self, store: ChangeStore, client: MetadataClient, *, look_seconds: float = LOOK_SECONDS) -> None:
        self._store = store
        self._client = client
        self._look_seconds = look_seconds
        self._forget_looks = int(FORGET_SECONDS / look_seconds)
        """So many looks, and all is forgotten."""
        self._looked = 0
        self._last: int | None = None
        self._failing = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin, before anything is cached."""
        await self.look()
        self._task = asyncio.create_task(self._looks(), name="watch for changes of queues")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def look(self) -> None:
        """Forget what was changed since the last look."""
        try:
            changes = await self._store.queue_changes(self._last)
        except StoreError as error:
            if not self._failing:
                self._failing = True
                log.error("changes of queues cannot be looked for, so none is kept in memory: %s", error)
            self._client.forget(None)
            return
        # What this process asked the store before is cached by now: the store answers in order.
        self._failing = False
        self._last = changes.last
        self._looked = (self._looked + 1) % self._forget_looks
        self._client.forget(changes.names if self._looked else None)

    async def _looks(self) -> None:
        while True:
            await asyncio.sleep(self._look_seconds)
            await self.look()

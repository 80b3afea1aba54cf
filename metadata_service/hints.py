"""Hints: by a Redis, processes tell each other at once which queues were changed.

A hint names a queue and the version that it has now, and who has an older one in memory forgets it.  Nothing rests on
hints.  One that is lost, late or doubled, or a Redis that is away or was flushed, only means that what is in memory
gets as old as it may without them (:mod:`metadata_service.changes`); a forged one costs a read.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from metadata_service.client import MetadataClient
from metadata_service.models import Queue

CHANNEL: Final = "holdfast:queues"
PENDING_MOST: Final = 10_000
"""Hints that wait for the Redis; more are dropped."""
CONNECT_SECONDS: Final = 1
AGAIN_SECONDS: Final = 1
"""After which a Redis that was away is tried again."""
_LISTEN_SECONDS: Final = 5

log = logging.getLogger("holdfast.metadata")


class Hint(msgspec.Struct, frozen=True, array_like=True):
    """What became of a queue."""

    account: str
    name: str
    queue_id: int
    version: int
    deleted: bool = False


_decode = msgspec.json.Decoder(Hint).decode


class Hints:
    """Tells others of changes, and ``client`` of those of others."""

    def __init__(
        self, url: str, client: MetadataClient, *, channel: str = CHANNEL, again_seconds: float = AGAIN_SECONDS
    ) -> None:
        self._redis = Redis.from_url(
            url,
            socket_connect_timeout=CONNECT_SECONDS,
            socket_timeout=_LISTEN_SECONDS + 1,
            health_check_interval=_LISTEN_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
        self._client = client
        self._channel = channel
        self._again_seconds = again_seconds
        self._pending: asyncio.Queue[bytes] = asyncio.Queue(PENDING_MOST)
        self._tasks: list[asyncio.Task[None]] = []
        self._away = False
        self._closing = False
        """The client of Redis may take a task's cancellation for an error of the connection: then this ends it."""

    def start(self) -> None:
        """Begin to listen and to tell."""
        self._tasks = [
            asyncio.create_task(self._listens(), name="hints of changed queues: listen"),
            asyncio.create_task(self._tells(), name="hints of changed queues: tell"),
        ]

    async def close(self) -> None:
        """Repeatable.  Hints that were not told yet are dropped."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._redis.aclose()

    def tell(self, queue: Queue, *, deleted: bool = False) -> None:
        """Everybody who listens hears soon, perhaps, that the queue is so now.  Never waits and never fails."""
        if not self._pending.full():
            hint = Hint(queue.account, queue.name, queue.queue_id, queue.version, deleted)
            self._pending.put_nowait(msgspec.json.encode(hint))

    async def _tells(self) -> None:
        while not self._closing:
            told = await self._pending.get()
            try:
                await self._redis.publish(self._channel, told)
            except (RedisError, OSError) as error:
                self._is_away(error)
                await asyncio.sleep(self._again_seconds)

    async def _listens(self) -> None:
        while not self._closing:
            try:
                async with self._redis.pubsub() as subscription:
                    await subscription.subscribe(self._channel)
                    while not self._closing:
                        message = await subscription.get_message(timeout=_LISTEN_SECONDS)
                        if message is not None:
                            self._hear(message["type"], message["data"])
            except (RedisError, OSError) as error:
                self._is_away(error)
            await asyncio.sleep(self._again_seconds)

    def _hear(self, kind: str, data: object) -> None:
        if kind == "subscribe":
            self._client.forget(None)  # what was told before, nobody here has heard
            if self._away:
                self._away = False
                log.info("hints of changed queues are heard again")
        elif kind == "message" and isinstance(data, bytes):
            try:
                hint = _decode(data)
            except msgspec.MsgspecError as error:
                log.warning("a hint of a changed queue cannot be read: %s", error)
                return
            self._client.outdate(hint.account, hint.name, hint.queue_id, hint.version + hint.deleted)

    def _is_away(self, error: Exception) -> None:
        if not self._away:
            self._away = True
            log.warning("hints of changed queues are neither told nor heard, so changes are seen later: %s", error)

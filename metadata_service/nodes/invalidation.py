"""Invalidation hints: processes notify each other of changed queues through Redis.

A hint names a queue and its new version; receivers drop older versions from their caches.  Correctness does not
depend on hints: if one is lost, late or duplicated, or Redis is down or was flushed, cached queues only become
as old as they may be without hints (:mod:`metadata_service.nodes.change_feed`).  A forged hint costs a read.
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

from metadata_service.models import Queue
from metadata_service.nodes.cached_client import MetadataClient

CHANNEL: Final = "holdfast:queues"
PENDING_MOST: Final = 10_000
"""Maximum number of hints waiting for Redis; more are dropped."""
CONNECT_SECONDS: Final = 1
AGAIN_SECONDS: Final = 1
"""Pause before Redis is tried again after a failure."""
_LISTEN_SECONDS: Final = 5

log = logging.getLogger("holdfast.process.metadata")


class Hint(msgspec.Struct, frozen=True, array_like=True):
    """A change of a queue."""

    account: str
    name: str
    queue_id: int
    version: int
    deleted: bool = False


_decode = msgspec.json.Decoder(Hint).decode


class Hints:
    """Publishes changes to other processes, and invalidates ``client`` by theirs."""

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
        """Ends the loops even if the Redis client takes a task's cancellation for a connection error."""

    def start(self) -> None:
        """Start listening and publishing."""
        self._tasks = [
            asyncio.create_task(self._listens(), name="hints of changed queues: listen"),
            asyncio.create_task(self._publish_all(), name="hints of changed queues: tell"),
        ]

    async def close(self) -> None:
        """Stop.  May be called more than once.  Hints not yet published are dropped."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._redis.aclose()

    def publish(self, queue: Queue, *, deleted: bool = False) -> None:
        """Publish the queue's state to all listeners, best effort.  Never waits and never fails."""
        if not self._pending.full():
            hint = Hint(queue.account, queue.name, queue.queue_id, queue.version, deleted)
            self._pending.put_nowait(msgspec.json.encode(hint))

    async def _publish_all(self) -> None:
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
            self._client.forget(None)  # earlier hints were missed
            if self._away:
                self._away = False
                log.info("hints of changed queues are received again")
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
            log.warning(
                "hints of changed queues are neither published nor received, so changes are seen later: %s", error
            )

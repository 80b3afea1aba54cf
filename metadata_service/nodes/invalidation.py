"""Invalidation messages: processes notify each other of changed queues through Redis.

A message names a queue and its new version; receivers drop older versions from their caches.  Correctness does not
depend on messages: if one is lost, late or duplicated, or Redis is down or was flushed, cached queues only become
as old as they may be without messages (:mod:`metadata_service.nodes.change_feed`).  A forged one costs a read.
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
PENDING_MAX: Final = 10_000
"""Maximum number of messages waiting for Redis; more are dropped."""
CONNECT_SECONDS: Final = 1
RETRY_SECONDS: Final = 1
"""Pause before Redis is tried again after a failure."""
_LISTEN_SECONDS: Final = 5

log = logging.getLogger("holdfast.process.metadata")


class Invalidation(msgspec.Struct, frozen=True, array_like=True):
    """A change of a queue."""

    account: str
    name: str
    queue_id: int
    version: int
    deleted: bool = False


_decode = msgspec.json.Decoder(Invalidation).decode


class InvalidationChannel:
    """Publishes changes to other processes, and invalidates ``client`` by changes received from them."""

    def __init__(
        self, url: str, client: MetadataClient, *, channel: str = CHANNEL, retry_seconds: float = RETRY_SECONDS
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
        self._retry_seconds = retry_seconds
        self._pending: asyncio.Queue[bytes] = asyncio.Queue(PENDING_MAX)
        self._tasks: list[asyncio.Task[None]] = []
        self._is_down = False
        self._closing = False
        """Ends the loops even if the Redis client treats a task's cancellation as a connection error."""

    def start(self) -> None:
        """Start listening and publishing."""
        self._tasks = [
            asyncio.create_task(self._listen_forever(), name="invalidations of queues: listen"),
            asyncio.create_task(self._publish_all(), name="invalidations of queues: publish"),
        ]

    async def close(self) -> None:
        """Stop.  May be called more than once.  Messages not yet published are dropped."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._redis.aclose()

    def publish(self, queue: Queue, *, deleted: bool = False) -> None:
        """Publish the queue's state to all listeners, best effort.  Never waits and never fails."""
        if not self._pending.full():
            message = Invalidation(queue.account, queue.name, queue.queue_id, queue.version, deleted)
            self._pending.put_nowait(msgspec.json.encode(message))

    async def _publish_all(self) -> None:
        while not self._closing:
            message = await self._pending.get()
            try:
                await self._redis.publish(self._channel, message)
            except (RedisError, OSError) as error:
                self._note_failure(error)
                await asyncio.sleep(self._retry_seconds)

    async def _listen_forever(self) -> None:
        while not self._closing:
            try:
                async with self._redis.pubsub() as subscription:
                    await subscription.subscribe(self._channel)
                    while not self._closing:
                        message = await subscription.get_message(timeout=_LISTEN_SECONDS)
                        if message is not None:
                            self._receive(message["type"], message["data"])
            except (RedisError, OSError) as error:
                self._note_failure(error)
            await asyncio.sleep(self._retry_seconds)

    def _receive(self, kind: str, data: object) -> None:
        if kind == "subscribe":
            self._client.forget(None)  # earlier messages were missed
            if self._is_down:
                self._is_down = False
                log.info("invalidations of queues are received again")
        elif kind == "message" and isinstance(data, bytes):
            try:
                changed = _decode(data)
            except msgspec.MsgspecError as error:
                log.warning("an invalidation of a queue cannot be read: %s", error)
                return
            self._client.outdate(changed.account, changed.name, changed.queue_id, changed.version + changed.deleted)

    def _note_failure(self, error: Exception) -> None:
        if not self._is_down:
            self._is_down = True
            log.warning(
                "invalidations of queues are neither published nor received, so changes are seen later: %s", error
            )

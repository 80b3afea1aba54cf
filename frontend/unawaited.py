"""Sends whose answer is not waited for: those to queues of ``HoldfastAckLevel`` none.

The message gets its id here, and its caller is answered with that as soon as the message is on its way to the backend.
What the backend refuses at once, because it is in this process and need not wait for anything, the caller still hears;
what is refused or lost later is counted and logged, and nobody else is told.

A repeat of a call gets the same ids, for they follow from its token.  What is under way is bounded: beyond that a call
waits like those of other queues.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from hashlib import blake2b
from uuid import UUID

from backend.api import NewMessage, Stored
from frontend.dedup import Retries
from frontend.sqs.calls import Call
from frontend.sqs.queues import QueueView

logger = logging.getLogger(__name__)

CALLS_MOST = 1000
BYTES_MOST = 16 << 20
"""Of calls under way that nobody waits for."""
TELL_SECONDS = 60.0
"""So often at most the log says what was lost."""


class Unawaited:
    """The sends of a process that nobody waits for."""

    def __init__(self, retries: Retries) -> None:
        self.lost = 0
        """Messages whose caller was answered and which were refused, or of which nobody knows what became."""
        self._retries = retries
        self._under_way: dict[asyncio.Task[list[Stored]], tuple[int, int]] = {}
        """Messages and bytes of each call."""
        self._bytes = 0
        self._told_at = float("-inf")

    async def send(self, call: Call, view: QueueView, messages: Sequence[NewMessage]) -> list[Stored]:
        """As :meth:`frontend.dedup.Retries.send`, but it does not wait, and numbers are 0.

        Raises what that raises, if it is known at once.
        """
        answers = []
        for message in messages:
            if message.message_id is None:
                message.message_id = _id_of(message)
            answers.append(Stored(str(UUID(bytes=message.message_id)), 0))
        task = asyncio.get_running_loop().create_task(self._retries.send(call, view, messages))
        await asyncio.sleep(0)  # it has its first turn; in one process that is mostly the only one
        if task.done():
            task.result()
            return answers
        size = sum(len(message.payload) for message in messages)
        self._under_way[task] = (len(messages), size)
        self._bytes += size
        task.add_done_callback(self._done)
        if len(self._under_way) > CALLS_MOST or self._bytes > BYTES_MOST:
            await asyncio.wait([task])
        return answers

    def _done(self, task: asyncio.Task[list[Stored]]) -> None:
        messages, size = self._under_way.pop(task)
        self._bytes -= size
        error = asyncio.CancelledError("cut off") if task.cancelled() else task.exception()
        if error is None:
            return
        self.lost += messages
        now = task.get_loop().time()
        if now - self._told_at >= TELL_SECONDS:
            self._told_at = now
            logger.error(
                "of messages sent to queues of HoldfastAckLevel none, %d were not stored, or perhaps not, since the "
                "start; the last: %s",
                self.lost,
                str(error) or type(error).__name__,
            )

    async def settle(self, seconds: float) -> None:
        """Wait so long at the most until nothing is under way; what is then, is cut off."""
        if self._under_way:
            _, left = await asyncio.wait(self._under_way, timeout=seconds)
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left)


def _id_of(message: NewMessage) -> bytes:
    """An id that looks like any other."""
    source = os.urandom(16) if message.retry is None else blake2b(message.retry, digest_size=16).digest()
    return UUID(bytes=source, version=4).bytes

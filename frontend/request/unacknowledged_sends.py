"""Sends answered before the backend has answered: those to queues of ``HoldfastAckLevel`` none.

The message gets its id here, and its caller is answered as soon as the message is on its way to the backend.  A
refusal that is known at once, because the backend is in this process and need not wait, is still returned to
the caller; later refusals and losses are only counted and logged.

A retried call gets the same ids, because they are derived from its token.  The number of unacknowledged calls
is bounded: beyond it a call waits like those of other queues.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from hashlib import blake2b
from uuid import UUID

from backend.api import NewMessage, SendResult
from frontend.queues.view import QueueView
from frontend.request.request import Call
from frontend.request.retries import Retries

logger = logging.getLogger(__name__)

CALLS_MAX = 1000
BYTES_MAX = 16 << 20
"""Maximum size of unacknowledged calls in progress."""
LOG_SECONDS = 60.0
"""Minimum interval of log lines about lost messages."""


class UnacknowledgedSends:
    """The unacknowledged sends of a process."""

    def __init__(self, retries: Retries) -> None:
        self.lost = 0
        """Number of messages that were refused or lost after their caller was answered."""
        self._retries = retries
        self._under_way: dict[asyncio.Task[list[SendResult]], tuple[int, int]] = {}
        """Number of messages and bytes of each call in progress."""
        self._bytes = 0
        self._logged_at = float("-inf")

    async def send(self, call: Call, view: QueueView, messages: Sequence[NewMessage]) -> list[SendResult]:
        """Send as :meth:`frontend.request.retries.Retries.send` does, without waiting; numbers are 0.

        Raises its errors, if they are known at once.
        """
        answers = []
        for message in messages:
            if message.message_id is None:
                message.message_id = _id_of(message)
            answers.append(SendResult(str(UUID(bytes=message.message_id)), 0))
        task = asyncio.get_running_loop().create_task(self._retries.send(call, view, messages))
        await asyncio.sleep(0)  # lets it run first; in one process it usually finishes then
        if task.done():
            task.result()
            return answers
        size = sum(len(message.payload) for message in messages)
        self._under_way[task] = (len(messages), size)
        self._bytes += size
        task.add_done_callback(self._done)
        if len(self._under_way) > CALLS_MAX or self._bytes > BYTES_MAX:
            await asyncio.wait([task])
        return answers

    def _done(self, task: asyncio.Task[list[SendResult]]) -> None:
        messages, size = self._under_way.pop(task)
        self._bytes -= size
        error = asyncio.CancelledError("cancelled") if task.cancelled() else task.exception()
        if error is None:
            return
        self.lost += messages
        now = task.get_loop().time()
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            logger.error(
                "%d messages sent to queues of HoldfastAckLevel none were lost, or possibly lost, since "
                "the start; the last: %s",
                self.lost,
                str(error) or type(error).__name__,
            )

    async def drain(self, seconds: float) -> None:
        """Wait until no call is in progress, up to a time limit; then cancel the rest."""
        if self._under_way:
            _, left = await asyncio.wait(self._under_way, timeout=seconds)
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left)


def _id_of(message: NewMessage) -> bytes:
    """An id in the usual format, derived from the token or random."""
    source = os.urandom(16) if message.retry is None else blake2b(message.retry, digest_size=16).digest()
    return UUID(bytes=source, version=4).bytes

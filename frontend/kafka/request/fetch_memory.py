"""Memory for batches of fetches that are being answered, of all connections of a process.

Each fetch may ask for many MiB, and thousands may be made at the same time: when consumers catch up after an
interruption, or when a batch arrives for which all of them wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Final, NamedTuple

BYTES_MAX: Final = 64 << 20
"""Bytes of batches; the memory is up to four times as much while they are decrypted and written."""
TURN_SECONDS: Final = 1.0
"""Time after which a fetch is answered with little, if others still hold the memory: they may wait for a backend."""


class _Turn(NamedTuple):
    size_bytes: int
    granted: asyncio.Future[None]


class FetchMemory:
    """Grants memory to fetches in the order in which they ask for it."""

    def __init__(self, bytes_max: int = BYTES_MAX, turn_seconds: float = TURN_SECONDS) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self.waiting = 0
        """Number of fetches that wait for batches, which hold nothing."""
        self._turn_seconds = turn_seconds
        self._turns: deque[_Turn] = deque()

    @property
    def share(self) -> int:
        """Bytes that each of the fetches that wait may read when it ends, so that all of them may end at once."""
        return self.bytes_max // max(1, self.waiting)

    def take_now(self, size_bytes: int) -> bool:
        """Hold so many bytes, at most :attr:`bytes_max`, if they are free and no other fetch waits for them."""
        if self._turns or self.bytes_held + size_bytes > self.bytes_max:
            return False
        self.bytes_held += size_bytes
        return True

    async def take(self, size_bytes: int) -> int:
        """Hold so many bytes; returns the number to be given back, which is 0 if they are not free in time."""
        size_bytes = min(size_bytes, self.bytes_max)
        if self.take_now(size_bytes):
            return size_bytes
        turn = _Turn(size_bytes, asyncio.get_running_loop().create_future())
        self._turns.append(turn)
        try:
            async with asyncio.timeout(self._turn_seconds):
                await turn.granted
        except TimeoutError:
            pass
        except BaseException:
            if _is_granted(turn):
                self.give_back(size_bytes)
            raise
        finally:
            if not _is_granted(turn):
                with suppress(ValueError):  # it may have been passed over already
                    self._turns.remove(turn)
                self._grant()
        return size_bytes if _is_granted(turn) else 0

    def give_back(self, size_bytes: int) -> None:
        self.bytes_held -= size_bytes
        self._grant()

    def _grant(self) -> None:
        turns = self._turns
        while turns and (turns[0].granted.done() or self.bytes_held + turns[0].size_bytes <= self.bytes_max):
            turn = turns.popleft()
            if not turn.granted.done():
                self.bytes_held += turn.size_bytes
                turn.granted.set_result(None)


def _is_granted(turn: _Turn) -> bool:
    return turn.granted.done() and not turn.granted.cancelled()

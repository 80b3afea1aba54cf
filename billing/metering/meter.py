"""The usage counters of one process: a buffer for each minute (:mod:`billing.metering.buffers`).

A call is counted before its answer is sent, in the buffer of the current minute::

    meter = Meter.start(folder, "host-1")
    cell = meter.cells_of.get((queue_id, action))
    if cell is None:
        cell = meter.open((queue_id, action), UsageKey(...))
    counters = meter.counters
    counters[cell + CALLS] += 1

So counting costs a dictionary lookup and a few additions.  :meth:`Meter.switch` starts the next minute: it creates a
new buffer, then finishes the old one.  Buffers wait in the folder until :mod:`billing.lake.upload` has uploaded them.

Possible losses: if a process is killed, nothing of an answered call.  If the machine loses power, pages that the kernel
has not written yet: all counts of the current minute, and none of a finished minute once :meth:`Buffer.close` has
returned.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Final

from billing.metering.buffers import Buffer, BufferFull, BufferHeader
from billing.metering.usage import UsageKey

logger = logging.getLogger("holdfast.usage")

MINUTE_SECONDS: Final = 60
SLOTS_MIN: Final = 256
SLOTS_MAX: Final = 65_536
ALL_KEYS_BYTES_MAX: Final = 32 << 20
"""Maximum bytes of all keys of one buffer."""


class UsageNotCounted(Exception):
    """No room to count a call, so it cannot be answered; the text names the folder."""


class Meter:
    """Usage counters of this process.  Used from one event loop.  Created by :meth:`start`."""

    def __init__(self, folder: Path, node: str, clock: Callable[[], float]) -> None:
        self._folder = folder
        self._node = node
        self._clock = clock
        self._boot = os.urandom(8).hex()
        self._sequence = 0
        self.cells_of: dict[Hashable, int] = {}
        """Index of a key's first cell in :attr:`counters`, by the caller's name of the key.

        Empty after each switch.
        """
        self._buffer = self._fresh(SLOTS_MIN, 0)
        self.counters = self._buffer.cells
        self._finishing: set[asyncio.Future[None]] = set()
        self._ticking: asyncio.Task[None] | None = None
        self._failing = False
        """True after a failed attempt to create a buffer."""

    @classmethod
    def start(cls, folder: Path, node: str, clock: Callable[[], float] = time.time) -> Meter:
        """Start counting in this folder, which other processes may share.  ``node``: the machine's name.

        Raises :class:`OSError`.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return cls(folder, node, clock)

    def run(self) -> None:
        """Start a new buffer with each minute from now on."""
        self._ticking = asyncio.get_running_loop().create_task(self._tick(), name="the minutes of usage")

    async def close(self) -> None:
        """Stop counting, and finish all buffers."""
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.wait([self._ticking])
        self._finish(self._buffer)
        while self._finishing:
            await asyncio.wait(self._finishing)

    # --- counting ---------------------------------------------------------------------------------------

    def open(self, name: Hashable, key: UsageKey) -> int:
        """Reserve cells for this key and return the first one; ``name`` finds it in :attr:`cells_of` from now on.

        Raises :class:`UsageNotCounted`.
        """
        try:
            cell = self._buffer.add(key)
        except BufferFull:
            self.switch()
            try:
                cell = self._buffer.add(key)
            except BufferFull:
                raise UsageNotCounted(
                    f"the call cannot be counted: there is no space for another file in {self._folder}"
                ) from None
        self.cells_of[name] = cell
        return cell

    def switch(self) -> None:
        """Create a buffer for the current minute, and finish the previous one.

        If there is no room for a new one, the old one continues, and its minute includes the later counts.
        """
        minute = self._minute()
        used, key_bytes = self._buffer.used, self._buffer.key_bytes
        if not used:
            if self._buffer.head.minute_s != minute:
                self._buffer.set_minute(minute)
            return
        try:
            fresh = self._fresh(min(SLOTS_MAX, max(SLOTS_MIN, 2 * used)), min(ALL_KEYS_BYTES_MAX, 2 * key_bytes))
        except OSError as error:
            if not self._failing:
                logger.error("usage is counted in an old buffer, because no other can be created: %s", error)
            self._failing = True
            return
        if self._failing:
            logger.warning("usage is counted minute by minute again")
        self._failing = False
        before, self._buffer = self._buffer, fresh
        self.counters = fresh.cells
        self.cells_of.clear()
        self._finish(before)

    def _fresh(self, slots: int, key_bytes: int) -> Buffer:
        head = BufferHeader(self._node, self._boot, self._sequence + 1, self._minute())
        buffer = Buffer.create(self._folder, head, slots, key_bytes)
        self._sequence += 1
        return buffer

    def _minute(self) -> int:
        return int(self._clock()) // MINUTE_SECONDS * MINUTE_SECONDS

    # --- beside the calls -------------------------------------------------------------------------------

    def _finish(self, buffer: Buffer) -> None:
        """Finish a buffer in a thread, as writing it blocks."""
        finishing = asyncio.get_running_loop().run_in_executor(None, _close, buffer)
        self._finishing.add(finishing)
        finishing.add_done_callback(self._finishing.discard)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(MINUTE_SECONDS - self._clock() % MINUTE_SECONDS)
            if self._minute() != self._buffer.head.minute_s:  # the timer may fire a moment early
                self.switch()


def _close(buffer: Buffer) -> None:
    try:
        buffer.close()
    except OSError as error:
        # The counts are in the file and will be uploaded as usual; only a power loss could take them.
        logger.error("usage of %s may be lost in a power failure: %s", buffer.path.name, error)

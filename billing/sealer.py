"""Starts :mod:`billing.seal` now and then, as a process of its own, and tells what becomes of it."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from billing.buffers import waiting

logger = logging.getLogger("holdfast.usage")

WAITING_BYTES_MOST: Final = 256 << 20
"""More than this waits for the lake: that is told again and again."""
PATIENCE_SECONDS: Final = 600.0
"""A process that takes longer is ended; nothing is lost by it."""


class Sealer:
    """Brings what is counted below a folder to the lake, about every so many seconds."""

    def __init__(self, spool: Path, lake: str, seconds: float, python: Sequence[str] = (sys.executable,)) -> None:
        """``lake``: its URL, or a folder.  ``python``: the command that runs a module with ``-m``."""
        self._spool = spool
        self._lake = lake
        self._seconds = seconds
        self._command = (*python, "-m", "billing.seal", os.fspath(spool), lake)
        self._running: asyncio.Task[None] | None = None
        self._failing = False

    def start(self) -> None:
        self._running = asyncio.get_running_loop().create_task(self._run(), name="the way of usage to the lake")

    async def close(self) -> None:
        """What has not been brought to the lake waits for the next start."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    async def seal(self) -> bool:
        """Once, now.  Says whether everything that was finished is in the lake."""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                _, said = await process.communicate()
        except BaseException:
            if process.returncode is None:
                process.kill()
                await process.wait()
            raise
        lines = said.decode(errors="replace").splitlines()
        if process.returncode == 0:
            for line in lines:
                logger.error("%s", line)  # what could not be read: it speaks of nothing else
            if self._failing:
                logger.warning("usage reaches the lake again")
            self._failing = False
            return True
        if not self._failing:
            logger.error("usage does not reach the lake, and waits: %s", lines[-1] if lines else process.returncode)
        self._failing = True
        return False

    async def _run(self) -> None:
        while True:
            # Processes that share a machine do not all begin at once.
            await asyncio.sleep(random.uniform(0.8, 1.2) * self._seconds)
            try:
                await self.seal()
                buffers, size = await asyncio.to_thread(waiting, self._spool)
                if size > WAITING_BYTES_MOST:
                    logger.error("%d files of usage, %d bytes, wait for the lake in %s", buffers, size, self._spool)
            except TimeoutError:
                logger.error("usage was not brought to the lake within %.0f s, and waits", PATIENCE_SECONDS)
            except OSError as error:
                logger.error("usage is not brought to the lake now: %s", error)

"""Runs :mod:`billing.lake.upload` and :mod:`billing.lake.compact` periodically as processes of their own, and logs the
results."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from billing.lake.outbox import DROPPED, Outbox
from billing.metering.lake_variable import environment_of
from billing.metering.spool import LOST, waiting

logger = logging.getLogger("holdfast.usage")

WAITING_BYTES_MAX: Final = 256 << 20
"""Bytes waiting for upload above which a warning is repeated."""
WAITING_SECONDS_MAX: Final = 3 * 3600.0
"""Waiting time, in addition to the upload interval, above which a warning is repeated.

A file of storage is written to for an hour, so it waits at least that long.
"""
COMPACT_SECONDS: Final = 3600.0
"""Approximate interval between merges of small files in the lake."""
TIMEOUT_SECONDS: Final = 600.0
"""Timeout of a process; ending it loses nothing."""


class UsageUploader:
    """Uploads the usage records of a spool folder to the lake at an interval."""

    def __init__(
        self,
        spool: Path,
        lake: str,
        seconds: float,
        python: Sequence[str] = (sys.executable,),
        *,
        outbox: Outbox | None = None,
        on_uploaded: Callable[[], None] = lambda: None,
    ) -> None:
        """Set up the uploads.

        ``lake``: its URL, or a folder.  ``python``: the command that runs a module with ``-m``.  ``outbox``: gets the
        records too.  ``on_uploaded`` is called after each upload.
        """
        self._spool = spool
        self._lake = lake
        self._seconds = seconds
        self._python = python
        self._outbox = outbox
        self._on_uploaded = on_uploaded
        self._running: asyncio.Task[None] | None = None
        self._failing = False

    def start(self) -> None:
        self._running = asyncio.get_running_loop().create_task(self._run(), name="the upload of usage")

    async def close(self) -> None:
        """Stop.  Files that are not uploaded wait for the next start."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    async def upload(self) -> bool:
        """Upload once, now.  Returns True if everything that was finished is in the lake."""
        outbox = self._outbox
        also = () if outbox is None else ("--outbox", os.fspath(outbox.folder), "--outbox-bytes", str(outbox.bytes_max))
        try:
            code, lines = await self._run_module("billing.lake.upload", *also, os.fspath(self._spool))
        finally:
            self._on_uploaded()  # also after a run that took too long: it may have added some
        for line in lines:
            if code == 0 or line.startswith((LOST, DROPPED)):  # after success, only lines about lost usage matter
                logger.error("%s", line)
        if code == 0:
            if self._failing:
                logger.warning("usage is uploaded again")
            self._failing = False
            return True
        if not self._failing:
            logger.error(
                "usage cannot be uploaded, and is kept: %s", lines[-1] if lines else f"the process ended with {code}"
            )
        self._failing = True
        return False

    async def compact(self) -> None:
        """Merge small files of the lake once, now."""
        code, lines = await self._run_module("billing.lake.compact")
        for line in lines:
            logger.error("%s", line)
        if code != 0 and not lines:
            logger.error("small files of the lake are not merged now: the process ended with %d", code)

    async def check(self) -> None:
        """Log a warning if too much waits, or for too long.  Raises :class:`OSError`."""
        found = await asyncio.to_thread(waiting, self._spool)
        waited_s = max(0.0, time.time() - found.oldest_s) if found.files else 0.0
        if found.size_bytes > WAITING_BYTES_MAX or waited_s > self._seconds + WAITING_SECONDS_MAX:
            logger.error(
                "%d usage files, %d bytes, wait for upload in %s, the oldest for %.1f hours; %d bytes are free",
                found.files,
                found.size_bytes,
                self._spool,
                waited_s / 3600,
                shutil.disk_usage(self._spool).free,
            )

    async def _run_module(self, *command: str) -> tuple[int, list[str]]:
        """Run a module; returns its exit code and the lines of its standard error."""
        process = await asyncio.create_subprocess_exec(
            *self._python,
            "-m",
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=environment_of(self._lake),
        )
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                _, errors = await process.communicate()
        except BaseException:
            if process.returncode is None:
                process.kill()
                await process.wait()
            raise
        assert process.returncode is not None
        return process.returncode, errors.decode(errors="replace").splitlines()

    async def _run(self) -> None:
        compacted_at = time.monotonic() - random.uniform(0, COMPACT_SECONDS)
        while True:
            # Jitter: processes that share a machine or a lake do not all start at once.
            await asyncio.sleep(random.uniform(0.8, 1.2) * self._seconds)
            try:
                uploaded = await self.upload()
                await self.check()
                if uploaded and time.monotonic() - compacted_at >= COMPACT_SECONDS:
                    compacted_at = time.monotonic() + random.uniform(-0.1, 0.1) * COMPACT_SECONDS
                    await self.compact()
            except TimeoutError:
                logger.error("usage was not uploaded within %.0f s, and is kept", TIMEOUT_SECONDS)
            except OSError as error:
                logger.error("usage cannot be uploaded now: %s", error)

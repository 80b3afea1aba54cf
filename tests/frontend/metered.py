"""A service whose calls are metered."""

import asyncio
from pathlib import Path
from typing import NamedTuple

from billing.metering.buffers import finished
from billing.metering.meter import Meter
from billing.metering.usage import COUNTS, UsageKey
from tests.frontend.service import KEY, FrontendService


class Metered(NamedTuple):
    """A service, and its meter."""

    service: FrontendService
    meter: Meter
    folder: Path

    async def counted(self) -> dict[UsageKey, dict[str, int]]:
        """Counts since the last call, without zero counts and bytes."""
        found = await self.all()
        return {key: {name: n for name, n in of.items() if n and "bytes" not in name} for key, of in found.items()}

    async def all(self) -> dict[UsageKey, dict[str, int]]:
        """Counts since the last call."""
        self.meter.switch()
        while self.meter._finishing:
            await asyncio.wait(set(self.meter._finishing))
        found: dict[UsageKey, dict[str, int]] = {}
        for buffer in finished(self.folder):
            for record in buffer.records():
                assert record.key not in found
                found[record.key] = dict(zip(COUNTS, record.counts, strict=True))
            buffer.remove()
            buffer.close()
        return found

    async def lines(self) -> dict[str, dict[str, int]]:
        """Counts since the last call, by action, queue, kind, tags, and account if it is not the usual one."""
        return {
            " ".join(
                filter(
                    None,
                    [
                        key.action,
                        key.queue,
                        key.kind,
                        *map("=".join, key.tags),
                        key.account if key.account != KEY.account else "",
                    ],
                )
            ): counts
            for key, counts in (await self.counted()).items()
        }

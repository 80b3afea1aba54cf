"""Finished buffers of usage."""

from pathlib import Path

from billing.metering.buffers import Buffer, BufferHeader
from billing.metering.usage import CALLS, UsageKey

HOUR = 1_700_000_400 // 3600 * 3600
BOOT = "00112233445566ff"


def count(spool: Path, sequence: int, minute_s: int = HOUR, calls: int = 1, keys: int = 1) -> None:
    """Write a buffer with so many calls of each of so many queues."""
    spool.mkdir(exist_ok=True)
    buffer = Buffer.create(spool, BufferHeader("frontend-1", BOOT, sequence, minute_s), slots=8)
    for number in range(keys):
        key = UsageKey("000000000000", f"q{number}", number + 1, "standard", "SendMessage", (("team", "a"),))
        buffer.cells[buffer.add(key) + CALLS] += calls
    buffer.close()

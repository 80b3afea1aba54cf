"""A real process on a real disk, killed while it writes."""

import asyncio
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from backend.journal.local.disk import RealDisk
from backend.journal.local.log import LocalLog, LogSettings
from backend.journal.local.scan import rewrite_tail
from backend.journal.local.segments import SegmentFiles, lock_log
from backend.journal.types import LogInUse
from tests.backend.journal.support import a_record, numbers_in, scanned

SETTINGS = LogSettings(segment_bytes=256 << 10, low_water_bytes=0, row_bytes=16 << 10, idle_seconds=0.001)


async def _write_for_ever(root: str) -> None:
    """Print the number of durable records repeatedly."""
    disk = RealDisk()
    log = await LocalLog.create(
        disk,
        SegmentFiles(disk, root),
        "n-9",
        9,
        nonce=4711,
        clock_ms=lambda: 1,
        on_failure=lambda error: sys.exit(str(error)),
        settings=SETTINGS,
    )
    random, count = Random(1), 0
    while True:
        for _ in range(random.randrange(1, 20)):
            await log.wait_for_space(2000)
            log.append(a_record(count, random.randrange(1000)))
            count += 1
        if (barrier := log.barrier()) is not None:
            await barrier
        print(count, flush=True)


@pytest.mark.parametrize("seed", range(3))
async def test_acknowledged_writes_survive_kill_9(seed: int, tmp_path: Path) -> None:
    root = str(tmp_path / "journal")
    process = subprocess.Popen([sys.executable, "-m", __name__, root], stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220
    assert process.stdout is not None
    disk = RealDisk()
    try:
        for _ in range(Random(seed).randrange(20, 300)):
            process.stdout.readline()
        with pytest.raises(LogInUse):
            lock_log(disk, f"{root}/n-9")
    finally:
        process.kill()
    acknowledged = [int(line) for line in process.stdout.read().splitlines() if line]
    process.stdout.close()
    process.wait()
    disk.close(lock_log(disk, f"{root}/n-9"))
    rows, end = await scanned(disk, f"{root}/n-9")
    found = numbers_in(rows)
    assert found == list(range(len(found)))
    assert len(found) >= max(acknowledged, default=1)
    assert (end.damage, end.severe) == ([], False)
    await rewrite_tail(disk, f"{root}/n-9", end)
    disk.close_workers()


if __name__ == "__main__":
    asyncio.run(_write_for_ever(sys.argv[1]))

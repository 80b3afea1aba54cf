"""The operating system's disk: preallocation with and without pauses."""

from pathlib import Path

import pytest

from backend.journal.local.disk import Pauses, RealDisk
from backend.journal.local.segment_allocator import PAUSE_SHARE
from tests.backend.journal import support
from tests.backend.journal.support import a_record, append_durably

SIZE_BYTES = 1 << 20


@pytest.mark.parametrize("pauses", [None, Pauses(0.001)])
def test_a_preallocation_fills_the_file_and_pauses_no_longer_than_it_may(pauses: Pauses | None, tmp_path: Path) -> None:
    disk = RealDisk()
    path = tmp_path / "segment"
    path.write_bytes(b"x" * SIZE_BYTES)
    fd = disk.open(str(path))
    disk.preallocate(fd, SIZE_BYTES, pauses)
    disk.close(fd)
    disk.close_workers()
    assert path.read_bytes() == bytes(SIZE_BYTES)
    assert pauses is None or 0 <= pauses.left_seconds < 0.001


def test_pauses_that_were_ended_are_empty() -> None:
    pauses = Pauses(3600.0)
    pauses.end()
    for _ in range(3):
        pauses.rest(1000.0)
    assert pauses.left_seconds == 600.0


@support.virtually
async def test_pauses_are_a_share_of_the_time_in_which_a_segment_fills(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, log = await support.a_new_log()
    seconds: list[float] = []
    preallocate = disk.preallocate

    def noted(fd: int, size_bytes: int, pauses: Pauses | None = None) -> None:
        seconds.append(pauses.left_seconds if pauses is not None else 0.0)
        preallocate(fd, size_bytes, pauses)

    monkeypatch.setattr(disk, "preallocate", noted)
    started_at = log._loop.time()
    for number in range(60):
        await log.wait_for_space(1200)
        await append_durably(log, a_record(number, 1000))
    assert len(seconds) > 5
    assert 0 < sum(seconds) <= PAUSE_SHARE * (log._loop.time() - started_at)
    await log.close()

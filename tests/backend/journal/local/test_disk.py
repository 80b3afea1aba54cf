"""The operating system's disk: preallocation with and without pauses."""

from pathlib import Path

import pytest

from backend.journal.local import disk as disk_module
from backend.journal.local.disk import RealDisk
from backend.journal.local.segment_allocator import PAUSE_SHARE
from tests.backend.journal import support
from tests.backend.journal.support import a_record, append_durably

SIZE_BYTES = 1 << 20


@pytest.mark.parametrize("pause_seconds", [0.0, 0.5])
def test_a_preallocation_pauses_no_longer_than_it_may(
    pause_seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    clock = iter(range(100))

    class Time:
        perf_counter = staticmethod(lambda: next(clock) * 0.05)
        sleep = staticmethod(pauses.append)

    disk = RealDisk()
    path = tmp_path / "segment"
    path.write_bytes(b"x" * SIZE_BYTES)
    fd = disk.open(str(path))
    with monkeypatch.context() as patch:
        patch.setattr(disk_module, "time", Time)
        disk.preallocate(fd, SIZE_BYTES, pause_seconds)
    disk.close(fd)
    disk.close_workers()
    assert path.read_bytes() == bytes(SIZE_BYTES)
    assert sum(pauses) == pytest.approx(pause_seconds)
    assert all(pause > 0 for pause in pauses)


@support.virtually
async def test_segments_that_are_needed_soon_are_made_without_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, log = await support.a_new_log()
    loop = log._loop
    pauses: list[float] = []
    preallocate = disk.preallocate

    def noted(fd: int, size_bytes: int, pause_seconds: float = 0.0) -> None:
        pauses.append(pause_seconds)
        preallocate(fd, size_bytes, pause_seconds)

    monkeypatch.setattr(disk, "preallocate", noted)
    started_at = loop.time()
    for number in range(60):
        await log.wait_for_space(1200)
        await append_durably(log, a_record(number, 1000))
    assert len(pauses) > 5
    assert 0 < sum(pauses) <= PAUSE_SHARE * (loop.time() - started_at)
    await log.close()

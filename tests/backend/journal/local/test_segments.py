import asyncio
import errno
from typing import Any

import pytest

from backend.api import Unavailable
from backend.journal.local import segments
from backend.journal.local.checkpoint_chunks import LocalChunks
from backend.journal.rows import place_of
from tests.backend.journal import support
from tests.simulator.world.disk import SimDisk


async def a_closed_log(records: int, size_bytes: int, **options: Any) -> tuple[SimDisk, list[int]]:
    """Write records to a log and close it; return its disk and their positions."""
    disk, log = await support.a_new_log(**options)
    positions: list[int] = []
    for number in range(records):
        await log.wait_for_space(size_bytes + 200)
        positions.append(log.append(support.a_record(number, size_bytes)))
    await log.close()
    return disk, positions


@support.virtually
async def test_dropped_segments_stay_dropped_and_count_no_more() -> None:
    disk, positions = await a_closed_log(60, 500)
    files = support.files_of(disk)
    before = await files.segments_of(9)
    assert before == [(number, support.SMALL.segment_bytes) for number in range(1, len(before) + 1)]
    await files.read_many(positions)
    await files.drop(9, [1, 2])
    await files.drop(9, [2])
    disk.crash()
    files = support.files_of(disk)
    assert [number for number, _ in await files.segments_of(9)] == [number for number, _ in before[2:]]
    views = await files.read_many(positions)
    for number, view in enumerate(views):
        if place_of(positions[number]).segment <= 2:
            assert getattr(view, "part", None) == "file"
        else:
            assert support.number_of(view) == number
    assert not await files.remove_log(9)


@support.virtually
async def test_a_segment_is_freed_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash between two of them leaves a shorter file, which the next attempt deletes."""
    monkeypatch.setattr(segments, "FREE_STEP_BYTES", 3000)
    disk, _ = await a_closed_log(60, 500)
    files = support.files_of(disk)
    before = await files.segments_of(9)
    sizes: list[int] = []
    truncate, sync = disk.truncate, disk.fdatasync

    def noted(fd: int, size_bytes: int) -> None:
        truncate(fd, size_bytes)
        sizes.append(size_bytes)

    def stopped(fd: int) -> None:
        sync(fd)
        if len(sizes) == 2:
            raise OSError(errno.EIO, "the process ends here")

    monkeypatch.setattr(disk, "truncate", noted)
    monkeypatch.setattr(disk, "fdatasync", stopped)
    with pytest.raises(OSError, match="ends here"):
        await files.drop(9, [1, 2])
    disk.crash()
    files = support.files_of(disk)
    assert (await files.segments_of(9))[:2] == [(1, 2192), before[1]]
    await files.drop(9, [1, 2])
    assert sizes == [5192, 2192, 5192, 2192]
    assert await files.segments_of(9) == before[2:]
    files.close()
    assert not disk._fds


@support.virtually
async def test_few_files_are_open_and_none_is_closed_under_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, positions = await a_closed_log(200, 1000, cold=0.8)
    files = support.files_of(disk)
    monkeypatch.setattr(segments, "OPEN_FILES_MAX", 3)
    reads = [asyncio.ensure_future(files.read_many(positions[start::5])) for start in range(5)]
    dropped = asyncio.ensure_future(files.drop(9, [1]))
    for start, views in enumerate(await asyncio.gather(*reads)):
        for at, view in enumerate(views):
            if place_of(positions[start::5][at]).segment > 1:
                assert support.number_of(view) == start + 5 * at
    await dropped
    assert len(files._open) <= 3
    assert len(disk._fds) == len(files._open)
    files.close()
    assert not disk._fds


@support.virtually
async def test_trim_gives_back_what_was_never_used() -> None:
    disk, _ = await a_closed_log(20, 500)
    rows, end = await support.scanned(disk)
    files = support.files_of(disk)
    await files.trim(9, end.segment, end.offset)
    sizes = await files.segments_of(9)
    assert sizes == [(1, 8192), (end.segment, end.offset)]
    disk.crash()
    assert (await support.scanned(disk, sealed_seq=end.seq))[1].seq == len(rows)


@pytest.mark.parametrize("end", ["dropped", "cancelled", "closed"])
@support.virtually
async def test_a_segment_that_is_let_go_while_it_is_being_opened_is_not_kept_open(end: str) -> None:
    """Otherwise an open, unlinked file would keep its disk space."""
    disk, log = await support.a_new_log(cold=1.0)
    position = log.append(support.a_record(1, 500))
    await log.close()
    assert not disk._fds
    files = support.files_of(disk)
    read = asyncio.ensure_future(files.read_many([position]))
    await asyncio.sleep(0)
    assert files._opening
    if end == "dropped":
        await files.drop(9, [1])
    elif end == "cancelled":
        read.cancel()
    else:
        files.close()
    await asyncio.wait([read])
    if end == "dropped":
        assert getattr(read.result()[0], "part", None) == "file"
    elif end == "closed":  # nothing is damaged
        assert isinstance(read.exception(), Unavailable)
    await asyncio.sleep(1)
    assert not disk._fds
    assert not files._opening
    assert not files._overtaken


@support.virtually
async def test_a_log_that_another_part_of_the_process_has_removed_is_gone() -> None:
    disk = support.sim_disk()
    disk.mkdir(f"{support.ROOT}/n-9")
    files = support.files_of(disk)
    assert all(await asyncio.gather(files.remove_log(9), files.remove_log(9)))
    assert await files.remove_log(9)
    assert await files.segments_of(9) == []
    await files.drop(9, [1])
    assert await LocalChunks(disk, files).list_files(9) == []

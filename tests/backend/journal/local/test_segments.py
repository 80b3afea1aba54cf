from __future__ import annotations

import asyncio

import pytest

from backend.api import Unavailable
from backend.journal.checkpoints import LocalPieces
from backend.journal.local import segments
from backend.journal.local.segments import SegmentFiles
from backend.journal.rows import place_of
from tests.backend.journal.support import ROOT, SMALL, a_log, a_record, number_of, scanned, sim_disk, virtual


def test_dropped_segments_stay_dropped_and_count_no_more() -> None:
    async def main() -> None:
        disk = sim_disk()
        log = await a_log(disk)
        positions: list[int] = []
        for number in range(60):
            await log.wait_room(800)
            positions.append(log.append(a_record(number, 500)))
        await log.close()
        files = SegmentFiles(disk, ROOT)
        files.register(9, "n-9")
        before = await files.segments_of(9)
        assert before == [(number, SMALL.segment_bytes) for number in range(1, len(before) + 1)]
        await files.read_many(positions)
        await files.drop(9, [1, 2])
        await files.drop(9, [2])
        disk.crash()
        files = SegmentFiles(disk, ROOT)
        files.register(9, "n-9")
        assert [number for number, _ in await files.segments_of(9)] == [number for number, _ in before[2:]]
        views = await files.read_many(positions)
        for number, view in enumerate(views):
            if place_of(positions[number]).segment <= 2:
                assert getattr(view, "part", None) == "file"
            else:
                assert number_of(view) == number
        assert not await files.remove_log(9)

    virtual(main())


def test_few_files_are_open_and_none_is_closed_under_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        disk = sim_disk(cold=0.8)
        log = await a_log(disk)
        positions: list[int] = []
        for number in range(200):
            await log.wait_room(1500)
            positions.append(log.append(a_record(number, 1000)))
        await log.close()
        files = SegmentFiles(disk, ROOT)
        files.register(9, "n-9")
        monkeypatch.setattr(segments, "OPEN_FILES_MAX", 3)
        reads = [asyncio.ensure_future(files.read_many(positions[start::5])) for start in range(5)]
        dropped = asyncio.ensure_future(files.drop(9, [1]))
        for start, views in enumerate(await asyncio.gather(*reads)):
            for at, view in enumerate(views):
                if place_of(positions[start::5][at]).segment > 1:
                    assert number_of(view) == start + 5 * at
        await dropped
        assert len(files._open) <= 3
        assert len(disk._fds) == len(files._open)
        files.close()
        assert not disk._fds

    virtual(main())


def test_trim_gives_back_what_was_never_used() -> None:
    async def main() -> None:
        disk = sim_disk()
        log = await a_log(disk)
        for number in range(20):
            await log.wait_room(800)
            log.append(a_record(number, 500))
        await log.close()
        rows, end = await scanned(disk)
        files = SegmentFiles(disk, ROOT)
        files.register(9, "n-9")
        await files.trim(9, end.segment, end.offset)
        sizes = await files.segments_of(9)
        assert sizes == [(1, 8192), (end.segment, end.offset)]
        disk.crash()
        assert (await scanned(disk, sealed_seq=end.seq))[1].seq == len(rows)

    virtual(main())


@pytest.mark.parametrize("end", ["dropped", "cancelled", "closed"])
def test_a_segment_that_is_let_go_while_it_is_being_opened_is_not_kept_open(end: str) -> None:
    """Otherwise an open, unlinked file would keep its disk space."""

    async def main() -> None:
        disk = sim_disk(cold=1.0)
        log = await a_log(disk)
        position = log.append(a_record(1, 500))
        await log.close()
        assert not disk._fds
        files = SegmentFiles(disk, ROOT)
        files.register(9, "n-9")
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

    virtual(main())


def test_a_log_that_another_part_of_the_process_has_removed_is_gone() -> None:
    async def main() -> None:
        disk = sim_disk()
        disk.mkdir(f"{ROOT}/n-9")
        files = SegmentFiles(disk, ROOT)
        files.register(9, "n-9")
        assert all(await asyncio.gather(files.remove_log(9), files.remove_log(9)))
        assert await files.remove_log(9)
        assert await files.segments_of(9) == []
        await files.drop(9, [1])
        assert await LocalPieces(disk, files).list_files(9) == []

    virtual(main())

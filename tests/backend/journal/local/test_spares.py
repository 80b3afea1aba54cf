"""Segments that are used again: they become new ones, are never read as what they were, and take little space."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import ParamSpec, TypeVar

import pytest

from backend.journal.interface import Cut
from backend.journal.local.disk import Disk
from backend.journal.local.log import LocalLog
from backend.journal.local.segment_allocator import make_segment
from backend.journal.local.segments import SPARES_MAX, SegmentFiles
from backend.journal.rows import place_of
from tests.backend.journal import support
from tests.backend.journal.support import ROOT, SMALL, a_log, a_record, all_made, append_durably, scanned, sim_disk
from tests.simulator.world.disk import SimDisk

P = ParamSpec("P")
T = TypeVar("T")

DIRECTORY = f"{ROOT}/n-9"


def spares(disk: SimDisk) -> list[str]:
    return [path for path in disk.paths() if path.endswith(".spare")]


async def fill(log: LocalLog, records: range) -> list[int]:
    positions = []
    for number in records:
        await log.wait_for_space(1200)
        positions.append(await append_durably(log, a_record(number, 1000)))
    return positions


async def drop_unneeded(log: LocalLog) -> Cut:
    """Drop all segments before the cut, as after a checkpoint there."""
    cut = log.cut()
    files = log._files
    await files.drop(9, [number for number, _ in await files.segments_of(9) if number < cut.floor_segment])
    return cut


@support.virtually
async def test_segments_are_used_again_and_hold_only_new_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, log = await support.a_new_log()
    made: list[str] = []
    create = disk.create

    def noted(path: str) -> int:
        made.append(path)
        return create(path)

    await fill(log, range(40))
    cut = await drop_unneeded(log)
    assert len(spares(disk)) == SPARES_MAX
    monkeypatch.setattr(disk, "create", noted)
    positions = await fill(log, range(100, 130))
    assert place_of(positions[-1]).segment >= place_of(positions[0]).segment + SPARES_MAX
    assert spares(disk) == []
    assert len(made) < 3, "the first ones are former segments"
    assert [support.number_of(view) for view in await log.read_many(positions)] == list(range(100, 130))
    await log.close()
    rows, end = await scanned(disk, from_segment=cut.floor_segment, from_seq=cut.floor_seq)
    assert support.numbers_in(rows)[-30:] == list(range(100, 130))
    assert (end.severe, end.damage) == (False, [])


@support.virtually
async def test_a_segment_has_its_name_only_when_it_is_full_of_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, log = await support.a_new_log()
    await fill(log, range(20))
    await drop_unneeded(log)
    spare = spares(disk)[0]
    rename = disk.rename

    def renamed(path: str, new_path: str) -> None:
        assert not any(disk.contents(path))
        rename(path, new_path)

    monkeypatch.setattr(disk, "rename", renamed)
    segment = make_segment(disk, DIRECTORY, 4711, SMALL.segment_bytes, spare=spare)
    disk.close(segment.fd)
    await log.close()
    disk.crash()
    assert disk.contents(f"{DIRECTORY}/00004711.log") == bytes(SMALL.segment_bytes)


@pytest.mark.parametrize("failing", ["open", "preallocate", "rename", "fsync_dir"])
@support.virtually
async def test_a_spare_that_cannot_be_used_is_deleted(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, log = await support.a_new_log()
    await fill(log, range(20))
    await drop_unneeded(log)
    before = spares(disk)

    def fails(*_: object) -> int:
        raise OSError("not now")

    with monkeypatch.context() as patch:
        patch.setattr(disk, failing, fails)
        with pytest.raises(OSError, match="not now"):
            make_segment(disk, DIRECTORY, 4711, SMALL.segment_bytes, spare=before[0])
    assert spares(disk) == before[1:]
    assert f"{DIRECTORY}/00004711.log" not in disk.paths()
    await log.close()
    assert not disk._fds


@support.virtually
async def test_spares_are_deleted_when_the_disk_is_nearly_full() -> None:
    disk, log = await support.a_new_log(capacity_bytes=40 * SMALL.segment_bytes)
    await fill(log, range(100))
    await drop_unneeded(log)
    assert len(spares(disk)) == SPARES_MAX
    disk.capacity_bytes -= disk.free_bytes("/") - SMALL.low_water_bytes + 1
    while spares(disk):
        log._allocator.check_free()
        await asyncio.sleep(0.3)
    assert disk.free_bytes("/") > SMALL.low_water_bytes
    await fill(log, range(200, 202))
    await log.close()


@support.virtually
async def test_a_smaller_segment_and_those_of_other_logs_are_not_kept() -> None:
    disk = sim_disk()
    log = await a_log(disk)
    await fill(log, range(30))
    other = SegmentFiles(disk, ROOT)
    other.register(9, "n-9")
    numbers = [number for number, _ in await other.segments_of(9)]
    await other.drop(9, numbers[:1])
    fd = disk.open(f"{DIRECTORY}/{numbers[1]:08d}.log")
    disk.truncate(fd, 4096)
    disk.close(fd)
    await log._files.drop(9, numbers[1:2])
    assert spares(disk) == []
    await log.close()


def test_a_power_cut_before_every_operation() -> None:
    async def run(cut_at: int | None) -> int:
        disk = sim_disk(7)
        stopped = asyncio.Event()
        disk.on_power_cut = stopped.set
        durable = kept_from = 0
        cut = Cut(0, 1)

        async def written() -> None:
            nonlocal durable, cut, kept_from
            log = await a_log(disk)
            for number in range(50):
                await log.wait_for_space(1200)
                await append_durably(log, a_record(number, 1000))
                durable = number + 1
                if number % 15 == 14:
                    cut, kept_from = log.cut(), number + 1
                    await drop_unneeded(log)
            await log.close()

        if cut_at is not None:
            disk.cut_power_at(cut_at)
        task = asyncio.ensure_future(written())
        await asyncio.wait([task, asyncio.ensure_future(stopped.wait())], return_when=asyncio.FIRST_COMPLETED)
        if cut_at is None:
            stopped.set()
            await task
            return disk.operations
        task.cancel()
        await asyncio.wait([task])
        disk.crash()
        if f"{DIRECTORY}/00000001.log" not in disk.paths() and not durable:
            return 0
        rows, end = await scanned(disk, from_segment=cut.floor_segment, from_seq=cut.floor_seq)
        numbers = support.numbers_in(rows)
        assert numbers == list(range(kept_from, kept_from + len(numbers)))
        assert durable <= kept_from + len(numbers) <= durable + 1
        assert (end.severe, end.damage) == (False, [])
        await trimmed(disk, end.segment, end.offset)
        assert spares(disk) == []
        return 0

    async def trimmed(disk: Disk, segment: int, offset: int) -> None:
        files = support.files_of(disk)
        await files.trim(9, segment, offset)
        files.close()

    operations = support.virtual(run(None))
    assert operations > 150
    for cut_at in range(1, operations):
        support.virtual(run(cut_at))


@support.virtually
async def test_the_folder_of_a_log_is_removed_with_its_spares() -> None:
    disk, log = await support.a_new_log()
    await fill(log, range(20))
    await drop_unneeded(log)
    await log.close()
    files = support.files_of(disk)
    await files.drop(9, [number for number, _ in await files.segments_of(9)])
    assert spares(disk)
    assert await files.remove_log(9)
    assert not [path for path in disk.paths() if path.startswith(DIRECTORY)]


class BlockedDisk(SimDisk):
    """A disk whose work in threads ends only when it may: then its results arrive."""

    def __init__(self) -> None:
        super().__init__(Random(1))
        self.mkdir(ROOT)
        self.blocked: set[str] = set()
        self.released = asyncio.Event()

    async def _later(self, work: Awaitable[T]) -> T:
        found = await work
        await self.released.wait()
        return found

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        work = super().run(function, *args, **kwargs)
        return asyncio.ensure_future(self._later(work)) if function.__name__ in self.blocked else work


@support.virtually
async def test_spares_of_a_drop_during_which_spares_are_deleted_are_known() -> None:
    disk = BlockedDisk()
    log = await a_log(disk)
    await fill(log, range(30))
    disk.blocked = {"_drop"}
    dropping = asyncio.ensure_future(drop_unneeded(log))
    await asyncio.sleep(1)
    assert spares(disk)
    assert not await log._files.free_spares(), "none is known yet"
    disk.released.set()
    await dropping
    assert await log._files.free_spares()
    assert spares(disk) == []
    await log.close()


@support.virtually
async def test_a_preallocation_in_progress_is_no_want_of_space() -> None:
    disk = BlockedDisk()
    log = await a_log(disk)
    await all_made(log)
    disk.blocked = {"make_segment"}
    before = log.next_segment
    number = 0
    while log.next_segment == before:
        await append_durably(log, a_record(number, 1000))
        number += 1
    assert log._allocator.available(False) < 1
    assert not log.is_nearly_full()
    disk.released.set()
    await log.close()


@support.virtually
async def test_a_caller_that_waits_for_a_segment_ends_the_pauses() -> None:
    disk = BlockedDisk()
    log = await a_log(disk)
    await all_made(log)
    disk.blocked = {"make_segment"}
    for number in range(20):
        if log._allocator.available(False) < 1 and not log._fits(1200, False):
            break
        await append_durably(log, a_record(number, 1000))
    pauses = log._allocator._pauses
    assert pauses is not None
    waiting = asyncio.ensure_future(log.wait_for_space(1200))
    await asyncio.sleep(0)
    assert pauses._ended.is_set()
    disk.released.set()
    await waiting
    await log.close()

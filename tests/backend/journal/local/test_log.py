from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from random import Random
from unittest.mock import Mock

import pytest

from backend.api import StorageFull, Unavailable
from backend.journal.local.disk import Disk, RealDisk
from backend.journal.local.log import LOOKS_MOST, RECORDS_ENOUGH, LocalLog, LogSettings
from backend.journal.local.segment_allocator import AHEAD
from backend.journal.local.segments import LogInUse, RottenRecord, lock_log
from backend.journal.rows import place_of
from tests.backend.journal.support import (
    ROOT,
    SMALL,
    Failures,
    a_log,
    a_record,
    all_made,
    number_of,
    numbers_in,
    scanned,
    sim_disk,
    virtual,
)


async def durable(log: LocalLog) -> None:
    future = log.barrier()
    if future is not None:
        await future


def test_what_is_appended_in_one_turn_of_the_loop_rides_one_row() -> None:
    async def main() -> None:
        disk = sim_disk()
        log = await a_log(disk)
        for number in range(5):
            log.append(a_record(number))
        first = log.barrier()
        assert first is not None
        other, third = log.barrier(), log.barrier()
        assert other is not None
        assert third is not None
        third.cancel()  # does not affect others
        assert log.durable_seq == 0
        await first
        assert log.durable_seq == 1
        assert other.done()
        assert log.barrier() is None
        log.append(a_record(5))
        await durable(log)
        rows, end = await scanned(disk)
        assert [len(row.records) for row in rows] == [5, 1]
        assert numbers_in(rows) == list(range(6))
        assert (end.seq, end.severe, end.damage, end.torn) == (2, False, [], None)

    virtual(main())


def test_the_next_batch_fills_while_a_row_is_under_way_and_waits_for_it() -> None:
    async def main() -> None:
        log = await a_log(sim_disk())
        log.append(a_record(0))
        first = log.barrier()
        await asyncio.sleep(0)
        done: list[int] = []
        for number in (1, 2):
            log.append(a_record(number))
        second = log.barrier()
        assert first is not None
        assert second is not None
        assert second is not first
        first.add_done_callback(lambda _: done.append(1))
        second.add_done_callback(lambda _: done.append(2))
        await second
        assert done == [1, 2]
        assert log.durable_seq == 2

    virtual(main())


def test_who_asks_again_when_answered_rides_with_those_who_waited() -> None:
    async def main() -> None:
        disk = sim_disk()
        log = await a_log(disk)
        log.append(a_record(0))
        first = log.barrier()
        assert first is not None
        await asyncio.sleep(0)
        log.append(a_record(1))
        await first
        await asyncio.sleep(0)  # the answer is sent, and the next request arrives
        log.append(a_record(2))
        await durable(log)
        rows, _ = await scanned(disk)
        assert [len(row.records) for row in rows] == [1, 2]

    virtual(main())


def test_a_row_waits_neither_for_ever_nor_when_many_ride_on_it() -> None:
    async def main(at_once: int) -> int:
        """Return the turns of the loop that a record appended right after a row waits, with more appended each turn."""
        log = await a_log(sim_disk())
        log.append(a_record(0))
        first = log.barrier()
        assert first is not None
        await first
        for number in range(at_once):
            log.append(a_record(number))
        turns = 0
        while log.next_seq == 2:
            await asyncio.sleep(0)
            log.append(a_record(turns))
            turns += 1
        await log.close()
        return turns

    assert virtual(main(1)) <= 2 * LOOKS_MOST + 3
    assert virtual(main(RECORDS_ENOUGH)) <= 3


def test_cut_separates_what_comes_after_it() -> None:
    async def main() -> None:
        disk = sim_disk()
        log = await a_log(disk)
        assert log.cut().seq == 0
        log.append(a_record(0))
        assert log.next_seq == 1
        assert log.cut().seq == 1
        assert log.cut().seq == 1
        assert log.next_seq == 2
        log.append(a_record(1))
        await durable(log)
        await log.close()
        assert log.cut().seq == 2
        rows, _ = await scanned(disk)
        assert [(row.seq, len(row.records)) for row in rows] == [(1, 1), (2, 1), (3, 0)]

    virtual(main())


def test_records_are_found_at_their_positions_before_and_after_they_are_durable() -> None:
    async def main() -> None:
        disk = sim_disk(cold=0.3)
        log = await a_log(disk)
        await all_made(log)
        positions: list[int] = []
        for number in range(150):
            record = a_record(number, number * 37 % 5300)
            await log.wait_room(len(record))
            positions.append(log.append(record))
            if number % 4 == 0:
                await asyncio.sleep(0)
                (view,) = await log.read_many(positions[-1:])
                assert number_of(view) == number
            if number % 30 == 0:
                assert [number_of(view) for view in await log.read_many(positions)] == list(range(number + 1))
        await durable(log)
        order = [*list(range(150)), 3, 3, 149]
        Random(1).shuffle(order)
        assert [number_of(view) for view in await log.read_many([positions[n] for n in order])] == order
        assert len({place_of(position).segment for position in positions}) > 5

    virtual(main())


def test_a_rotten_record_says_where_it_is() -> None:
    async def main() -> None:
        disk = sim_disk()
        log = await a_log(disk)
        positions = [log.append(a_record(number)) for number in range(3)]
        await durable(log)
        place = place_of(positions[1])
        path = f"{ROOT}/n-9/{place.segment:08d}.log"
        disk.flip_bit(path, place.offset + 52 + len(b"head 1") + 5)
        good, bad, _ = await log.read_many(positions)
        assert number_of(good) == 0
        assert isinstance(bad, RottenRecord)
        assert (bad.file, bad.offset, bad.part, bad.partition) == (path, place.offset, "body", 1001)
        assert bad.record is not None
        assert bad.record.head == b"head 1"
        disk.unreadable.add(path)
        assert [getattr(view, "part", None) for view in await log.read_many(positions)] == ["file"] * 3
        disk.unlink(path)
        for key in list(log._files._open):
            log._files._forget(key)
        assert [getattr(view, "part", None) for view in await log.read_many(positions)] == ["file"] * 3

    virtual(main())


def test_one_mark_for_each_burst() -> None:
    async def main() -> None:
        disk = sim_disk()
        log = await a_log(disk)
        await asyncio.sleep(10)
        for burst in range(3):
            for number in range(4):
                log.append(a_record(burst * 4 + number))
                await durable(log)
                await asyncio.sleep(SMALL.idle_seconds / 2)
            await asyncio.sleep(10)
        assert log.durable_seq == 15
        rows, end = await scanned(disk)
        assert [len(row.records) for row in rows] == [1, 1, 1, 1, 0] * 3
        assert (end.seq, end.answered) == (15, 14)
        await log.close()
        assert (await scanned(disk))[1].seq == 15

    virtual(main())


def test_close_waits_for_all_and_writes_the_mark() -> None:
    async def main() -> None:
        disk = sim_disk()
        log = await a_log(disk)
        with pytest.raises(LogInUse):
            lock_log(disk, f"{ROOT}/n-9")
        log.append(a_record(0))
        log.cut()
        log.append(a_record(1))
        closing = asyncio.ensure_future(log.close())
        await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            log.append(a_record(2), reserve=True)
        with pytest.raises(Unavailable):
            log.check_room(1)
        assert not log.room()
        await closing
        assert log.durable_seq == 3
        rows, end = await scanned(disk)
        assert numbers_in(rows) == [0, 1]
        assert end.answered == 2
        disk.close(lock_log(disk, f"{ROOT}/n-9"))

    virtual(main())


@pytest.mark.parametrize("seed", range(5))
def test_a_failed_sync_ends_the_log(seed: int) -> None:
    async def main() -> None:
        disk = sim_disk(seed)
        failures = Failures()
        log = await a_log(disk, failures=failures)
        await all_made(log)
        log.append(a_record(0))
        await durable(log)
        disk.failing_syncs = 1
        log.append(a_record(1))
        lost = log.barrier()
        await asyncio.sleep(0)
        log.append(a_record(2))
        log.cut()
        log.append(a_record(3))
        later = log.barrier()
        assert lost is not None
        assert later is not None
        for future in (lost, later):
            with pytest.raises(Unavailable):
                await future
        assert [getattr(error, "errno", None) for error in failures] == [errno.EIO]
        # The disk would succeed now, but the log must not try again.
        operations = disk.operations
        with pytest.raises(Unavailable):
            log.append(a_record(4), reserve=True)
        with pytest.raises(Unavailable):
            log.check_room(10, reserve=True)
        failed = log.barrier()
        assert failed is not None
        with pytest.raises(Unavailable):
            await failed
        await asyncio.sleep(5)
        assert not log.room()
        assert log.durable_seq == 1
        await log.close()
        assert disk.operations == operations
        assert len(failures) == 1
        disk.crash()
        rows, end = await scanned(disk)
        assert numbers_in(rows)[:1] == [0]
        assert end.seq in (1, 2)

    virtual(main())


async def fill(log: LocalLog, *, reserve: bool = False) -> int:
    """Append until it is refused."""
    count = 0
    while True:
        try:
            await log.wait_room(200, reserve)
            log.append(a_record(count, 100), reserve=reserve)
        except StorageFull:
            return count
        count += 1
        await durable(log)


def test_a_full_disk_refuses_what_may_not_use_the_reserve() -> None:
    async def main() -> None:
        disk = sim_disk(capacity_bytes=64 << 10)
        log = await a_log(disk)
        stored = await fill(log)
        assert stored > 100
        assert not log.room()
        for _ in range(3):
            with pytest.raises(StorageFull):
                log.append(a_record(0, 3000))
        freed = await fill(log, reserve=True)
        assert freed > 20
        assert disk.free_bytes("/") >= SMALL.low_water_bytes // 4
        with pytest.raises(StorageFull):
            log.append(a_record(0, 3000), reserve=True)
        disk.capacity_bytes += 128 << 10
        await asyncio.sleep(1)  # virtual time
        assert log.room()
        assert await fill(log) > 100
        await log.close()
        rows, end = await scanned(disk)
        assert not end.damage
        assert len(numbers_in(rows)) > stored + freed

    virtual(main())


def test_no_room_is_said_with_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        disk = sim_disk(capacity_bytes=1 << 20)
        log = await a_log(disk)
        await all_made(log)
        create = disk.create
        disk.create = Mock(side_effect=OSError(errno.EMFILE, "Too many open files"))  # type: ignore[method-assign]
        assert await fill(log) > 0
        with pytest.raises(StorageFull, match=r"no segment can be made: .*Too many open files"):
            log.append(a_record(0, 3000))
        assert "full: no room in the journal, for no segment can be made: [Errno 24] Too many open files" in caplog.text
        disk.create = create  # type: ignore[method-assign]
        await asyncio.sleep(1)  # virtual time
        assert log.room()
        await log.close()

        disk = sim_disk(capacity_bytes=64 << 10)
        log = await a_log(disk)
        await fill(log)
        with pytest.raises(StorageFull, match="the disk is full, or nearly so"):
            log.append(a_record(0, 3000))
        await log.close()

    virtual(main())


def test_others_fill_the_disk() -> None:
    """Check that nothing is lost or failed, and that the log continues by itself when there is room again."""

    async def main() -> None:
        disk = sim_disk(capacity_bytes=1 << 20)
        failures = Failures()
        log = await a_log(disk, failures=failures)
        await all_made(log)
        used = disk.capacity_bytes - disk.free_bytes("/")
        disk.capacity_bytes = used
        log.append(a_record(0))
        await durable(log)
        await asyncio.sleep(1)
        log.append(a_record(1), reserve=True)
        await durable(log)
        await asyncio.sleep(1)
        with pytest.raises(StorageFull):
            log.check_room(100)
        log.append(a_record(2), reserve=True)
        await durable(log)
        disk.capacity_bytes = 1 << 20
        await asyncio.sleep(1)
        log.check_room(100)
        assert not failures

    virtual(main())


@pytest.mark.parametrize("reserve", [False, True])
def test_after_check_room_appends_of_that_size_do_not_fail(reserve: bool) -> None:
    async def main() -> None:
        random = Random(3)
        disk = sim_disk(capacity_bytes=200 << 10)
        log = await a_log(disk)
        passed = 0
        while True:
            records = [a_record(n, random.randrange(600)) for n in range(random.randrange(1, 9))]
            try:
                await log.wait_room(sum(map(len, records)), reserve)
            except StorageFull:
                break
            for record in records:
                log.append(record, reserve=reserve)
            passed += 1
            if random.random() < 0.3:
                await durable(log)
        assert passed > 30

    virtual(main())


def test_it_starts_smaller_where_there_is_little_room() -> None:
    async def main() -> None:
        disk = sim_disk(capacity_bytes=5000)
        log = await a_log(disk)
        log.append(a_record(0), reserve=True)
        await durable(log)
        with pytest.raises(StorageFull):
            log.append(a_record(0))
        await log.close()
        assert numbers_in((await scanned(disk))[0]) == [0]
        with pytest.raises(StorageFull):
            await a_log(disk, log_id=10)

    virtual(main())


def test_a_record_larger_than_a_usual_row_has_its_own() -> None:
    async def main() -> None:
        disk = sim_disk()
        log = await a_log(disk)
        await all_made(log)
        for number, size in enumerate((10, 5500, 10, 3000, 3000, 10)):
            await log.wait_room(size)
            log.append(a_record(number, size))
        await durable(log)
        with pytest.raises(ValueError, match="does not fit"):
            log.append(a_record(9, 9000))
        rows, end = await scanned(disk)
        assert numbers_in(rows) == list(range(6))
        assert not end.damage
        assert [len(row.records) for row in rows if row.size_bytes > 3000] == [1, 1, 1]

    virtual(main())


# --- the real disk ---


@pytest.fixture
def disk() -> object:
    real = RealDisk()
    yield real
    real.close_workers()


async def test_on_a_real_disk(disk: RealDisk, tmp_path: Path) -> None:
    root = str(tmp_path / "data" / "journal")
    settings = LogSettings(segment_bytes=64 << 10, low_water_bytes=0, row_bytes=8 << 10, idle_seconds=0.001)
    log = await a_log(disk, root, settings=settings)
    positions: list[int] = []
    for number in range(500):
        await log.wait_room(2000)
        positions.append(log.append(a_record(number, 1000)))
        if number % 10 == 0:
            await durable(log)
    await durable(log)
    assert [number_of(view) for view in await log.read_many(positions)] == list(range(500))
    await log.close()
    rows, end = await scanned(disk, f"{root}/n-9")
    assert numbers_in(rows) == list(range(500))
    assert (end.damage, end.severe, end.torn) == ([], False, None)


async def test_the_lock_is_held_by_the_process(disk: RealDisk, tmp_path: Path) -> None:
    log = await a_log(disk, str(tmp_path), settings=SMALL._replace(low_water_bytes=0))
    with pytest.raises(LogInUse):
        lock_log(disk, str(tmp_path / "n-9"))
    await log.close()
    os.close(lock_log(disk, str(tmp_path / "n-9")))


class NoNowait(RealDisk):
    def pread_now(self, fd: int, size_bytes: int, offset: int) -> bytes | None:
        return None


@pytest.mark.parametrize("folder", ["/dev/shm", "/tmp", "."])
async def test_reads_that_do_not_wait(folder: str, disk: RealDisk) -> None:
    """Without support in the filesystem the result is None, and the worker reads."""
    path = os.path.join(folder, f"holdfast-test-{os.getpid()}")
    fd = disk.create(path)
    try:
        disk.pwrite(fd, b"abcdef" * 1000, 0)
        for size, offset in ((100, 60), (10, 5995), (10, 7000)):
            data = disk.pread_now(fd, size, offset)
            assert data in (None, disk.pread(fd, size, offset))
    finally:
        disk.close(fd)
        disk.unlink(path)


async def test_without_reads_that_do_not_wait(tmp_path: Path) -> None:
    disk: Disk = NoNowait()
    log = await a_log(disk, str(tmp_path), settings=SMALL._replace(low_water_bytes=0))
    position = log.append(a_record(1))
    assert [number_of(view) for view in await log.read_many([position])] == [1]
    await durable(log)
    assert [number_of(view) for view in await log.read_many([position])] == [1]
    await log.close()
    assert isinstance(disk, RealDisk)
    disk.close_workers()


def test_a_bug_in_a_commit_leaves_nobody_waiting() -> None:
    async def main() -> None:
        failures = Failures()
        log = await a_log(sim_disk(), failures=failures)
        log.append(a_record(0))
        future = log.barrier()
        log.durable_seq = 7
        assert future is not None
        with pytest.raises(Unavailable):
            await future
        assert [type(error) for error in failures] == [AssertionError]
        await log.close()

    virtual(main())


def test_a_full_segment_is_let_go_also_when_nothing_was_under_way() -> None:
    """Otherwise a later deletion would not free its disk space while the process lives."""

    async def main() -> None:
        disk = sim_disk()
        log = await a_log(disk)
        for number in range(40):
            await log.wait_room(1200)
            log.append(a_record(number, 1000))
            await durable(log)
        await all_made(log)
        assert log.next_segment > 4
        held = {path for path, _ in disk._fds.values() if path.endswith(".log")}
        assert len(held) == 1 + AHEAD
        await log.close()
        assert not disk._fds

    virtual(main())

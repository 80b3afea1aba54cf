import asyncio
import contextlib
import errno
import os
from pathlib import Path
from random import Random
from unittest.mock import Mock

import pytest

from backend.api import StorageFull, Unavailable
from backend.journal.local.disk import Disk, RealDisk
from backend.journal.local.log import POLLS_MAX, WAIT_RECORDS_MAX, LocalLog
from backend.journal.local.segment_allocator import AHEAD
from backend.journal.local.segments import list_segments, lock_log
from backend.journal.rows import place_of
from backend.journal.types import DamagedRecord, LogInUse
from tests.backend.journal.support import (
    ROOT,
    SMALL,
    Failures,
    a_log,
    a_new_log,
    a_record,
    all_made,
    append_durably,
    durable,
    number_of,
    numbers_in,
    pending,
    scanned,
    sim_disk,
    virtual,
    virtually,
)


@virtually
async def test_records_appended_in_one_iteration_share_a_row() -> None:
    disk, log = await a_new_log()
    for number in range(5):
        log.append(a_record(number))
    first = pending(log)
    other, third = pending(log), pending(log)
    third.cancel()  # does not affect others
    assert log.durable_seq == 0
    await first
    assert log.durable_seq == 1
    assert other.done()
    assert log.barrier() is None
    await append_durably(log, a_record(5))
    rows, end = await scanned(disk)
    assert [len(row.records) for row in rows] == [5, 1]
    assert numbers_in(rows) == list(range(6))
    assert (end.seq, end.severe, end.damage, end.torn) == (2, False, [], None)


@virtually
async def test_the_next_batch_fills_while_a_row_is_under_way_and_waits_for_it() -> None:
    log = await a_log(sim_disk())
    log.append(a_record(0))
    first = pending(log)
    await asyncio.sleep(0)
    done: list[int] = []
    for number in (1, 2):
        log.append(a_record(number))
    second = pending(log)
    assert second is not first
    first.add_done_callback(lambda _: done.append(1))
    second.add_done_callback(lambda _: done.append(2))
    await second
    assert done == [1, 2]
    assert log.durable_seq == 2


@virtually
async def test_a_repeated_request_joins_the_waiting_ones() -> None:
    disk, log = await a_new_log()
    log.append(a_record(0))
    first = pending(log)
    await asyncio.sleep(0)
    log.append(a_record(1))
    await first
    await asyncio.sleep(0)  # the answer is sent, and the next request arrives
    await append_durably(log, a_record(2))
    rows, _ = await scanned(disk)
    assert [len(row.records) for row in rows] == [1, 2]


def test_a_row_waits_neither_for_ever_nor_when_many_ride_on_it() -> None:
    async def main(at_once: int) -> int:
        """Return the turns of the loop that a record appended right after a row waits, with more appended each turn."""
        log = await a_log(sim_disk())
        log.append(a_record(0))
        await pending(log)
        for number in range(at_once):
            log.append(a_record(number))
        turns = 0
        while log.next_seq == 2:
            await asyncio.sleep(0)
            log.append(a_record(turns))
            turns += 1
        await log.close()
        return turns

    assert virtual(main(1)) <= 2 * POLLS_MAX + 3
    assert virtual(main(WAIT_RECORDS_MAX)) <= 3


@virtually
async def test_records_are_found_at_their_positions_before_and_after_they_are_durable() -> None:
    _, log = await a_new_log(cold=0.3)
    await all_made(log)
    positions: list[int] = []
    for number in range(150):
        record = a_record(number, number * 37 % 5300)
        await log.wait_for_space(len(record))
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


@virtually
async def test_the_error_of_a_damaged_record_has_its_position() -> None:
    disk, log = await a_new_log()
    positions = [log.append(a_record(number)) for number in range(3)]
    await durable(log)
    place = place_of(positions[1])
    path = f"{ROOT}/n-9/{place.segment:08d}.log"
    disk.flip_bit(path, place.offset + 52 + len(b"head 1") + 5)
    good, bad, _ = await log.read_many(positions)
    assert number_of(good) == 0
    assert isinstance(bad, DamagedRecord)
    assert (bad.file, bad.offset, bad.part, bad.partition) == (path, place.offset, "body", 1001)
    assert bad.record is not None
    assert bad.record.head == b"head 1"
    disk.unreadable.add(path)
    assert [getattr(view, "part", None) for view in await log.read_many(positions)] == ["file"] * 3
    disk.unlink(path)
    for key in list(log._files._open):
        log._files._forget(key)
    assert [getattr(view, "part", None) for view in await log.read_many(positions)] == ["file"] * 3


@virtually
async def test_one_mark_for_each_burst() -> None:
    disk, log = await a_new_log()
    await asyncio.sleep(10)
    for burst in range(3):
        for number in range(4):
            await append_durably(log, a_record(burst * 4 + number))
            await asyncio.sleep(SMALL.idle_seconds / 2)
        await asyncio.sleep(10)
    assert log.durable_seq == 15
    rows, end = await scanned(disk)
    assert [len(row.records) for row in rows] == [1, 1, 1, 1, 0] * 3
    assert (end.seq, end.answered) == (15, 14)
    await log.close()
    assert (await scanned(disk))[1].seq == 15


@virtually
async def test_close_waits_for_all_and_writes_the_mark() -> None:
    disk, log = await a_new_log()
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
        log.check_space(1)
    assert not log.has_space()
    await closing
    assert log.durable_seq == 3
    rows, end = await scanned(disk)
    assert numbers_in(rows) == [0, 1]
    assert end.answered == 2
    disk.close(lock_log(disk, f"{ROOT}/n-9"))


@pytest.mark.parametrize("seed", range(5))
@virtually
async def test_a_failed_sync_ends_the_log(seed: int) -> None:
    disk = sim_disk(seed)
    failures = Failures()
    log = await a_log(disk, failures=failures)
    await all_made(log)
    await append_durably(log, a_record(0))
    disk.failing_syncs = 1
    log.append(a_record(1))
    lost = pending(log)
    await asyncio.sleep(0)
    log.append(a_record(2))
    log.cut()
    log.append(a_record(3))
    later = pending(log)
    for future in (lost, later):
        with pytest.raises(Unavailable):
            await future
    assert [getattr(error, "errno", None) for error in failures] == [errno.EIO]
    # The disk would succeed now, but the log must not try again.
    operations = disk.operations
    with pytest.raises(Unavailable):
        log.append(a_record(4), reserve=True)
    with pytest.raises(Unavailable):
        log.check_space(10, reserve=True)
    with pytest.raises(Unavailable):
        await pending(log)
    await asyncio.sleep(5)
    assert not log.has_space()
    assert log.durable_seq == 1
    await log.close()
    assert disk.operations == operations
    assert len(failures) == 1
    disk.crash()
    rows, end = await scanned(disk)
    assert numbers_in(rows)[:1] == [0]
    assert end.seq in (1, 2)


async def fill(log: LocalLog, *, reserve: bool = False) -> int:
    count = 0
    while True:
        try:
            await log.wait_for_space(200, reserve)
            log.append(a_record(count, 100), reserve=reserve)
        except StorageFull:
            return count
        count += 1
        await durable(log)


@virtually
async def test_a_full_disk_refuses_what_may_not_use_the_reserve() -> None:
    disk, log = await a_new_log(capacity_bytes=64 << 10)
    stored = await fill(log)
    assert stored > 100
    assert not log.has_space()
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
    assert log.has_space()
    assert await fill(log) > 100
    await log.close()
    rows, end = await scanned(disk)
    assert not end.damage
    assert len(numbers_in(rows)) > stored + freed


@virtually
async def test_no_room_is_reported_with_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    disk, log = await a_new_log(capacity_bytes=1 << 20)
    await all_made(log)
    create = disk.create
    disk.create = Mock(side_effect=OSError(errno.EMFILE, "Too many open files"))  # type: ignore[method-assign]
    assert await fill(log) > 0
    with pytest.raises(StorageFull, match=r"no segment can be created: .*Too many open files"):
        log.append(a_record(0, 3000))
    assert "full: no space in the journal: no segment can be created: [Errno 24] Too many open files" in caplog.text
    disk.create = create  # type: ignore[method-assign]
    await asyncio.sleep(1)  # virtual time
    assert log.has_space()
    await log.close()

    disk, log = await a_new_log(capacity_bytes=64 << 10)
    await fill(log)
    with pytest.raises(StorageFull, match="the disk is full or nearly full"):
        log.append(a_record(0, 3000))
    await log.close()


@virtually
async def test_others_fill_the_disk() -> None:
    """Check that nothing is lost or failed, and that the log continues by itself when there is room again."""
    disk = sim_disk(capacity_bytes=1 << 20)
    failures = Failures()
    log = await a_log(disk, failures=failures)
    await all_made(log)
    disk.capacity_bytes -= disk.free_bytes("/")
    await append_durably(log, a_record(0))
    await asyncio.sleep(1)
    await append_durably(log, a_record(1), reserve=True)
    await asyncio.sleep(1)
    with pytest.raises(StorageFull):
        log.check_space(100)
    await append_durably(log, a_record(2), reserve=True)
    disk.capacity_bytes = 1 << 20
    await asyncio.sleep(1)
    log.check_space(100)
    assert not failures


@pytest.mark.parametrize("reserve", [False, True])
@virtually
async def test_after_check_room_appends_of_that_size_do_not_fail(reserve: bool) -> None:
    random = Random(3)
    _, log = await a_new_log(capacity_bytes=200 << 10)
    passed = 0
    while True:
        records = [a_record(n, random.randrange(600)) for n in range(random.randrange(1, 9))]
        try:
            await log.wait_for_space(sum(map(len, records)), reserve)
        except StorageFull:
            break
        for record in records:
            log.append(record, reserve=reserve)
        passed += 1
        if random.random() < 0.3:
            await durable(log)
    assert passed > 30


@virtually
async def test_it_starts_smaller_where_there_is_little_room() -> None:
    disk, log = await a_new_log(capacity_bytes=5000)
    await append_durably(log, a_record(0), reserve=True)
    with pytest.raises(StorageFull):
        log.append(a_record(0))
    await log.close()
    assert numbers_in((await scanned(disk))[0]) == [0]
    with pytest.raises(StorageFull):
        await a_log(disk, log_id=10)


@virtually
async def test_a_record_larger_than_a_usual_row_has_its_own() -> None:
    disk, log = await a_new_log()
    await all_made(log)
    for number, size in enumerate((10, 5500, 10, 3000, 3000, 10)):
        await log.wait_for_space(size)
        log.append(a_record(number, size))
    await durable(log)
    with pytest.raises(ValueError, match="does not fit"):
        log.append(a_record(9, 9000))
    rows, end = await scanned(disk)
    assert numbers_in(rows) == list(range(6))
    assert not end.damage
    assert [len(row.records) for row in rows if row.size_bytes > 3000] == [1, 1, 1]


# --- the real disk ---


@pytest.fixture
def disk() -> object:
    real = RealDisk()
    yield real
    real.close_workers()


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


@virtually
async def test_a_bug_in_a_commit_leaves_no_caller_waiting() -> None:
    failures = Failures()
    log = await a_log(sim_disk(), failures=failures)
    log.append(a_record(0))
    future = pending(log)
    log.durable_seq = 7
    with pytest.raises(Unavailable):
        await future
    assert [type(error) for error in failures] == [AssertionError]
    await log.close()


@virtually
async def test_a_log_without_further_segment_numbers_ends_before_it_refuses_anything() -> None:
    failures = Failures()
    disk = sim_disk()
    log = await a_log(disk, failures=failures, settings=SMALL._replace(segments=6))
    stored = 0
    with contextlib.suppress(Unavailable):
        while True:
            await log.wait_for_space(1200)
            await append_durably(log, a_record(stored, 1000))
            stored += 1
    assert [str(error) for error in failures] == ["log 9 is full, another one is started"]
    await log.close()
    rows, end = await scanned(disk)
    assert numbers_in(rows)[:stored] == list(range(stored))
    assert not end.severe
    assert list_segments(disk, f"{ROOT}/n-9")[-1] <= 6


@virtually
async def test_a_full_segment_is_let_go_also_when_nothing_was_under_way() -> None:
    """Otherwise a later deletion would not free its disk space while the process lives."""
    disk, log = await a_new_log()
    for number in range(40):
        await log.wait_for_space(1200)
        await append_durably(log, a_record(number, 1000))
    await all_made(log)
    assert log.next_segment > 4
    held = {path for path, _ in disk._fds.values() if path.endswith(".log")}
    assert len(held) == 1 + AHEAD
    await log.close()
    assert not disk._fds

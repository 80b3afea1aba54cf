import asyncio
import errno
from random import Random
from unittest import mock

import pytest

from backend.journal.local.disk import Pauses
from backend.journal.local.log import LocalLog, LogSettings
from backend.journal.local.scan import rewrite_tail
from backend.journal.rows import (
    ROW_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    RecordView,
    SegmentHeader,
    decode_row_header,
    encode_record,
    encode_row,
    encode_segment_header,
    place_of,
)
from backend.journal.types import Damage, DamagedRecord, LogEnd, Row
from tests.backend.journal.support import (
    NONCE,
    ROOT,
    SMALL,
    a_log,
    a_new_log,
    a_record,
    all_made,
    files_of,
    number_of,
    numbers_in,
    pending,
    plain,
    scanned,
    sim_disk,
    virtual,
    virtually,
)
from tests.simulator.world.disk import BLOCK_BYTES, SimDisk

DIRECTORY = f"{ROOT}/n-9"


def segment_path(number: int) -> str:
    return f"{DIRECTORY}/{number:08d}.log"


async def written(log: LocalLog, rows: int, each: int = 3, size_bytes: int = 60) -> None:
    """Write rows with this many records each."""
    count = 0
    for _ in range(rows):
        for _ in range(each):
            await log.wait_for_space(size_bytes + 200)
            log.append(a_record(count, size_bytes))
            count += 1
        await pending(log)


async def a_closed_log(
    rows: int, each: int = 3, size_bytes: int = 60, settings: LogSettings = SMALL
) -> tuple[SimDisk, list[Row]]:
    """Write a log that ends regularly; the last row is a mark."""
    disk = sim_disk()
    log = await a_log(disk, settings=settings)
    await written(log, rows, each, size_bytes)
    await log.close()
    found, end = await scanned(disk)
    assert (end.seq, end.damage, end.severe, end.torn) == (len(found), [], False, None)
    assert len(found) > rows
    return disk, found


async def a_small_log(rows: int = 4, size_bytes: int = 300) -> tuple[SimDisk, list[Row]]:
    """Write a log with two segments that ends regularly; the last row is a mark."""
    return await a_closed_log(rows, 3, size_bytes, SMALL._replace(segment_bytes=4096))


@virtually
async def test_a_log_in_which_nothing_was_written() -> None:
    disk, log = await a_new_log()
    disk.crash()
    rows, end = await scanned(disk)
    assert rows == []
    assert (end.seq, end.segment, end.offset, end.damage, end.severe) == (0, 1, 0, [], False)
    files = files_of(disk)
    await files.trim(9, end.segment, end.offset)
    assert await files.segments_of(9) == []
    assert (await scanned(disk, sealed_seq=0))[1].seq == 0
    assert await files.remove_log(9)
    assert disk.listdir(ROOT) == []
    assert (await scanned(disk))[1].seq == 0
    del log


@virtually
async def test_a_first_segment_that_was_too_small_for_the_first_row() -> None:
    """It was created while there was little room; when there was more, a large record was first."""
    disk = sim_disk()
    real, refusals = disk.preallocate, [OSError(errno.ENOSPC, "full")]

    def preallocate(fd: int, size_bytes: int, pauses: Pauses | None = None) -> None:
        if refusals:
            raise refusals.pop()
        real(fd, size_bytes)

    with mock.patch.object(disk, "preallocate", preallocate):
        log = await a_log(disk)
    await all_made(log)
    log.append(a_record(0, 5000))
    await log.close()
    rows, end = await scanned(disk)
    assert rows[0].segment == 2
    assert (numbers_in(rows), end.damage, end.severe) == ([0], [], False)


@virtually
async def test_rows_from_a_floor_on() -> None:
    disk, rows = await a_closed_log(90)
    floor = rows[len(rows) // 2]
    assert floor.segment > 2
    files = files_of(disk)
    await files.drop(9, range(1, floor.segment))
    later, end = await scanned(disk, from_segment=floor.segment, from_seq=floor.seq)
    assert plain(later) == plain([row for row in rows if row.seq >= floor.seq])
    assert numbers_in(later)[-1] == 269
    assert (end.seq, end.damage, end.severe) == (91, [], False)
    _, end = await scanned(disk, from_segment=1, from_seq=1)
    assert end.severe
    assert "missing" in str(end.damage[0])


@virtually
async def test_a_sealed_log_ends_at_its_seal_despite_later_rows() -> None:
    disk, _ = await a_closed_log(20)
    rows, end = await scanned(disk, sealed_seq=7)
    assert [row.seq for row in rows] == list(range(1, 8))
    assert (end.seq, end.severe) == (7, False)
    _, end = await scanned(disk, sealed_seq=99)
    assert end.severe
    _, end = await scanned(disk, known_seq=22)
    assert end.severe
    assert "row 22 was durable" in str(end.damage[0])


@pytest.mark.parametrize("power", [True, False])
@pytest.mark.parametrize("seed", range(60))
@virtually
async def test_after_a_crash_all_that_was_durable_is_there(seed: int, power: bool) -> None:
    """Crashes at a random moment of a random run; recovers twice, the second time after another crash."""
    random = Random(seed)
    disk, log = await a_new_log(seed, capacity_bytes=1 << 20)
    appended, durable = 0, 0

    async def writer() -> None:
        nonlocal appended, durable
        while True:
            for _ in range(random.randrange(1, 6)):
                size = random.choice((0, 50, 700, 3000))
                await log.wait_for_space(size + 200)
                log.append(a_record(appended, size))
                appended += 1
            future, upto = log.barrier(), appended
            if random.random() < 0.7 and future is not None:
                await future
                durable = upto
            elif random.random() < 0.2:
                await asyncio.sleep(0.1)

    task = asyncio.ensure_future(writer())
    await asyncio.sleep(random.uniform(0, 0.4))
    (disk.crash if power else disk.kill)()
    task.cancel()
    await asyncio.wait([task])

    rows, end = await scanned(disk)
    found = numbers_in(rows)
    assert found == list(range(len(found)))
    assert durable <= len(found) <= appended
    assert (end.severe, end.damage) == (False, [])
    assert [extent.header.seq for extent in end.tail] == [n for n in (end.seq,) if n]
    await rewrite_tail(disk, DIRECTORY, end)
    disk.crash()
    again, end_again = await scanned(disk)
    assert plain(again) == plain(rows)
    assert end_again.seq == end.seq
    assert end_again.damage == []
    files = files_of(disk)
    await files.trim(9, end.segment, end.offset)
    trimmed, end = await scanned(disk, sealed_seq=end.seq)
    assert numbers_in(trimmed) == found
    assert (end.severe, end.damage, end.torn) == (False, [], None)


@pytest.mark.parametrize("seed", range(20))
@virtually
async def test_data_known_only_to_the_page_cache_are_written_again(seed: int) -> None:
    disk, log = await a_new_log(seed)
    await written(log, 3)
    disk.failing_syncs = 1
    log.append(a_record(9, 2000))
    await asyncio.wait([pending(log)])
    disk.kill()
    rows, end = await scanned(disk)
    assert numbers_in(rows)[:9] == list(range(9))
    await rewrite_tail(disk, DIRECTORY, end)
    disk.crash()
    again, end_again = await scanned(disk)
    assert plain(again) == plain(rows)
    assert end_again == end


def test_a_power_cut_before_every_operation() -> None:
    async def run(cut_at: int | None) -> int:
        disk = sim_disk(7)
        stopped = asyncio.Event()
        disk.on_power_cut = stopped.set
        durable = 0

        async def nonce() -> None:
            nonlocal durable
            log = await a_log(disk)
            for number in range(30):
                await log.wait_for_space(1000)
                log.append(a_record(number, 800))
                await pending(log)
                durable = number + 1
            await log.close()

        if cut_at is not None:
            disk.cut_power_at(cut_at)
        task = asyncio.ensure_future(nonce())
        await asyncio.wait([task, asyncio.ensure_future(stopped.wait())], return_when=asyncio.FIRST_COMPLETED)
        if cut_at is not None:
            assert stopped.is_set()
            task.cancel()
            await asyncio.wait([task])
            disk.crash()
            rows, end = await scanned(disk)
            assert durable <= len(numbers_in(rows)) <= durable + 1
            assert (end.severe, end.damage) == (False, [])
        else:
            stopped.set()
            await task
        return disk.operations

    operations = virtual(run(None))
    assert operations > 80
    for cut_at in range(1, operations):
        virtual(run(cut_at))


def lost(rows: list[Row], end: LogEnd) -> tuple[list[int], list[DamagedRecord]]:
    good: list[int] = []
    bad: list[DamagedRecord] = []
    for row in rows:
        for _, record in row.records:
            if isinstance(record, RecordView):
                good.append(number_of(record))
            else:
                bad.append(record)
    return good, bad


@virtually
async def test_a_flipped_bit_anywhere_is_reported_and_costs_at_most_one_record() -> None:
    disk, intact = await a_small_log(rows=6, size_bytes=150)
    assert [row.segment for row in intact].count(1) > 2
    assert [row.segment for row in intact].count(2) > 2
    pristine = {path: disk.contents(path) for path in disk.paths()}
    places = {position: number_of(record) for row in intact for position, record in row.records}
    extents = [(row.segment, row.offset, row.offset + row.size_bytes, row) for row in intact]
    random = Random(5)
    flips = 0
    for number in {row.segment for row in intact}:
        last = max(end for segment, _, end, _ in extents if segment == number)
        for at in range(last):
            path = segment_path(number)
            disk.overwrite(path, pristine[path])
            disk.flip_bit(path, at, random.randrange(8))
            rows, end = await scanned(disk)
            flips += 1
            good, bad = lost(rows, end)
            where = f"{path}:{at}: {end.damage}"
            assert not end.severe, where
            assert end.seq == len(intact), where
            if number == intact[-1].segment and at >= intact[-1].offset:
                # The mark, which nothing follows: it may have been the row being written.
                assert (end.damage, good) == ([], sorted(places.values())), where
                assert end.torn is not None, where
                assert end.torn[:3] == (path, intact[-1].offset, end.seq), where
                await rewrite_tail(disk, DIRECTORY, end)
                assert disk.contents(path) == pristine[path]
                continue
            assert not end.torn, where
            assert len(end.damage) == 1, where
            damage = end.damage[0]
            assert damage.file == path, where
            assert damage.offset <= at, where
            if at < SEGMENT_HEADER_BYTES:
                assert damage.offset == 0
                assert not bad
                continue
            row = next(row for segment, start, stop, row in extents if segment == number and start <= at < stop)
            assert damage.seq == row.seq, where
            starts = [place_of(position).offset for position, _ in row.records if place_of(position).offset <= at]
            payload_end = (
                row.offset
                + ROW_HEADER_BYTES
                + sum(record.size_bytes for _, record in row.records if isinstance(record, RecordView))
            )
            if at < row.offset + ROW_HEADER_BYTES or at >= payload_end:
                assert not bad, where
            elif bad:
                # Only the record that was hit.
                assert len(bad) == 1, where
                assert bad[0].offset == damage.offset == starts[-1], where
                hit = places[bad[0].position]
                assert sorted([*good, hit]) == sorted(places.values()), where
                assert bad[0].shard == damage.shard == hit % 7, where
                if bad[0].part != "header":
                    assert bad[0].partition == damage.partition == 1000 + hit, where
                if bad[0].part == "body":
                    assert bad[0].record is not None
                    assert bad[0].record.head == b"head %d" % hit
            if not bad:
                assert good == sorted(places.values()), where
        disk.overwrite(path, pristine[path])
    assert flips > 3000


@virtually
async def test_a_flipped_bit_behind_the_end_is_noticed() -> None:
    disk, rows = await a_small_log()
    last = rows[-1]
    path = segment_path(last.segment)
    disk.flip_bit(path, last.offset + last.size_bytes + 100)
    again, end = await scanned(disk)
    assert plain(again) == plain(rows)
    assert not end.severe
    assert end.torn is not None
    assert (end.torn.file, end.torn.offset) == (path, last.offset + last.size_bytes)


@virtually
async def test_a_row_that_is_gone_is_severe_and_the_rows_behind_it_are_read() -> None:
    for seq in (2, 3, 5, 6):
        disk, rows = await a_closed_log(12, 1, 1500)
        row = rows[seq - 1]
        path = segment_path(row.segment)
        data = bytearray(disk.contents(path))
        data[row.offset : row.offset + row.size_bytes] = bytes(row.size_bytes)
        disk.overwrite(path, bytes(data))
        again, end = await scanned(disk)
        assert end.severe
        assert [r.seq for r in again] == [r.seq for r in rows if r.seq != seq]
        assert [(d.file, d.seq) for d in end.damage] == [(path, seq)]
        assert end.damage[0].offset == row.offset
        assert end.seq == 13


@virtually
async def test_a_missing_segment_is_severe() -> None:
    disk, rows = await a_closed_log(12, 1, 1500)
    disk.unlink(segment_path(2))
    again, end = await scanned(disk)
    assert end.severe
    assert Damage(segment_path(2), 0, 0, "the segment is missing") in end.damage
    assert plain(again) == plain([row for row in rows if row.segment != 2])


@virtually
async def test_giving_back_what_a_sealed_log_never_used_may_be_cut_short() -> None:
    disk, log = await a_new_log()
    await written(log, 4, 1, 1500)
    await all_made(log)
    disk.crash()
    rows, end = await scanned(disk)
    disk.create(segment_path(end.segment + 5))
    again, sealed = await scanned(disk, sealed_seq=end.seq)
    assert (sealed.severe, sealed.damage, plain(again)) == (False, [], plain(rows))


@virtually
async def test_the_last_answered_row_is_damage_not_a_torn_tail() -> None:
    """The mark proves it; without a mark, a damaged last row looks like one that was being written."""
    for marked in (True, False):
        disk = sim_disk()
        log = await a_log(disk)
        await written(log, 3)
        if marked:
            await asyncio.sleep(1)
        disk.kill()
        rows, _ = await scanned(disk)
        row = rows[2]
        position, _ = row.records[1]
        disk.flip_bit(segment_path(row.segment), place_of(position).offset + 70)
        again, end = await scanned(disk)
        if marked:
            assert (end.seq, end.severe, end.torn) == (4, False, None)
            assert [d.partition for d in end.damage] == [1007]
            assert len(lost(again, end)[0]) == 8
        else:
            assert (end.seq, end.damage) == (2, [])
            assert end.torn is not None
            assert end.torn.seq == 3
            # If its durability is known from another source, it is damage.
            again, end = await scanned(disk, known_seq=3)
            assert (end.seq, end.severe, end.torn) == (3, False, None)
            assert len(lost(again, end)[1]) == 1


@virtually
async def test_rows_of_another_life_do_not_join() -> None:
    """Not even those that continue the numbers and the chain: neither stale bytes, nor what a client has made up."""
    disk, rows = await a_small_log()
    last = rows[-1]
    path = segment_path(last.segment)
    header = decode_row_header(disk.contents(path), last.offset)
    assert header is not None
    for nonce, log_id in ((NONCE + 8, 9), (NONCE + 9, 8)):
        forged, _ = encode_row(
            nonce=nonce,
            log_id=log_id,
            seq=last.seq + 1,
            answered=last.seq + 1,
            time_ms=1,
            chain=header.check,
            records=[],
            directory=b"",
        )
        data = bytearray(disk.contents(path))
        at = last.offset + last.size_bytes
        data[at : at + len(forged)] = forged
        disk.overwrite(path, bytes(data))
        again, end = await scanned(disk)
        assert plain(again) == plain(rows)
        assert (end.seq, end.severe, end.damage) == (last.seq, False, [])
        assert end.torn is not None


@virtually
async def test_a_segment_of_another_life_does_not_join() -> None:
    """It does not prove either that a torn row was durable once."""
    disk, log = await a_new_log()
    await written(log, 3)
    await asyncio.sleep(0)
    disk.kill()
    rows, end = await scanned(disk)
    disk.flip_bit(segment_path(1), rows[-1].offset + 100)
    stale = SegmentHeader(NONCE, 9, 2, 50, 1, 0)
    disk.overwrite(segment_path(2), encode_segment_header(stale).ljust(SMALL.segment_bytes, b"\0"))
    again, end = await scanned(disk)
    assert plain(again) == plain(rows[:-1])
    assert (end.severe, end.damage) == (False, [])
    assert end.torn is not None


@virtually
async def test_the_header_of_a_segment_is_written_again_with_its_first_row() -> None:
    tried = 0
    for seed in range(20):
        disk = sim_disk(seed)
        log = await a_log(disk)
        await all_made(log)
        disk.failing_syncs = 1
        log.append(a_record(0))
        await asyncio.wait([pending(log)])
        disk.kill()
        rows, end = await scanned(disk)
        assert end.damage == []
        if rows:
            tried += 1
            assert numbers_in(rows) == [0]
            await rewrite_tail(disk, DIRECTORY, end)
            disk.crash()
            again, end = await scanned(disk)
            assert plain(again) == plain(rows)
            assert end.damage == []
    assert tried > 3


@virtually
async def test_a_message_that_looks_like_a_row_does_not_make_a_torn_tail_damage() -> None:
    forged, _ = encode_row(nonce=NONCE, log_id=9, seq=9, answered=8, time_ms=1, chain=0, records=[], directory=b"")
    disk, log = await a_new_log()
    await written(log, 2)
    position = log.append(encode_record(1, 0, 1, 1, 1, b"h" * 4, forged * 5))
    await pending(log)
    disk.kill()
    offset = place_of(position).offset
    disk.flip_bit(segment_path(1), offset)
    _, end = await scanned(disk)
    assert (end.seq, end.damage, end.severe) == (2, [], False)
    assert end.torn is not None


@virtually
async def test_unreadable_data_are_severe_damage() -> None:
    disk, rows = await a_small_log()
    disk.unreadable.add(segment_path(1))
    again, end = await scanned(disk)
    assert end.severe
    assert end.damage[0].file == segment_path(1)
    assert plain(again) == plain([row for row in rows if row.segment > 1])


@pytest.mark.parametrize("marked", [True, False])
@virtually
async def test_a_bad_block_costs_what_is_in_it_and_hides_no_row(marked: bool) -> None:
    """Damages each block in turn: answered records are recovered or reported; only unplaceable damage is severe."""
    disk = sim_disk()
    log = await a_log(disk, settings=SMALL._replace(segment_bytes=32768, row_bytes=16384))
    await written(log, 5, 3, 200)
    await written(log, 3, 2, 7000)
    await written(log, 4, 3, 1500)
    await written(log, 2, 1, 60)
    if marked:
        await asyncio.sleep(1)
    await all_made(log)
    disk.kill()
    intact, _ = await scanned(disk)
    last = intact[-1]
    assert last.segment > 1
    paths = [path for path in disk.paths() if path.endswith(".log")]
    assert len(paths) > last.segment, "one was made ahead"
    severe = 0
    for number, path in enumerate(sorted(paths), 1):
        for block in range(disk.size(path) // BLOCK_BYTES):
            start, end_of_block = block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES
            disk.bad_blocks = {(path, block)}
            rows, end = await scanned(disk)
            where = f"{path}, block {block}: {end.damage}"
            good, bad = lost(rows, end)
            touched = [
                row
                for row in intact
                if row.segment == number and row.offset < end_of_block and row.offset + row.size_bytes > start
            ]
            spared = numbers_in([row for row in intact if row not in touched])
            assert set(good) >= set(spared), where
            assert end.damage, where
            severe += end.severe
            if end.severe:
                assert touched or number > last.segment or start <= last.offset + last.size_bytes, where
                continue
            assert end.seq == last.seq, where
            assert len(good) + len(bad) == len(numbers_in(intact)), where
            assert touched or not bad, where
            await rewrite_tail(disk, DIRECTORY, end)
            again, _ = await scanned(disk)
            assert sorted(lost(again, end)[0]) == sorted(good), where
    blocks = sum(disk.size(path) // BLOCK_BYTES for path in paths)
    assert 3 <= severe <= blocks // 2


@virtually
async def test_an_error_that_may_pass_is_no_damage() -> None:
    disk, rows = await a_small_log()
    real = disk.pread
    for error in (errno.EMFILE, errno.ENOMEM, errno.ETIMEDOUT, errno.ESTALE):
        for name in ("open", "pread", "size"):
            with (
                mock.patch.object(disk, name, side_effect=OSError(error, "passes")),
                pytest.raises(OSError, match="passes"),
            ):
                await scanned(disk)
    for fails_at in range(1, 12):
        calls = 0

        def pread(fd: int, size_bytes: int, offset: int, fails_at: int = fails_at) -> bytes:
            nonlocal calls
            calls += 1
            if calls == fails_at:
                raise OSError(errno.ENOMEM, "passes")
            return real(fd, size_bytes, offset)

        with mock.patch.object(disk, "pread", pread):
            try:
                again, end = await scanned(disk)
            except OSError:
                continue
        assert calls < fails_at
        assert (plain(again), end.damage) == (plain(rows), [])


@pytest.mark.parametrize("seed", range(300))
@virtually
async def test_no_bytes_make_the_scan_fail(seed: int) -> None:
    random = Random(seed)
    disk, intact = await a_small_log()
    numbers = set(range(12))
    for _ in range(random.choice((1, 2, 5, 20))):
        path = random.choice([p for p in disk.paths() if p.endswith(".log")])
        data = bytearray(disk.contents(path))
        at = random.randrange(max(1, len(data)))
        length = random.choice((1, 8, 64, 512, 3000))
        match random.randrange(6):
            case 0:
                data[at : at + length] = random.randbytes(len(data[at : at + length]))
            case 1:
                data[at : at + length] = bytes(len(data[at : at + length]))
            case 2:
                other = disk.contents(random.choice([p for p in disk.paths() if p.endswith(".log")]))
                start = random.randrange(max(1, len(other)))
                data[at : at + length] = other[start : start + length]
            case 3:
                del data[at : at + length]
            case 4:
                data[at:at] = data[max(0, at - length) : at]
            case _:
                if data:
                    data[at % len(data)] ^= 1 << random.randrange(8)
        disk.overwrite(path, bytes(data))
    rows, end = await scanned(disk, sealed_seq=random.choice((None, len(intact))))
    good, _ = lost(rows, end)
    assert set(good) <= numbers
    assert [row.seq for row in rows] == sorted({row.seq for row in rows})
    if set(good) != numbers:
        assert end.damage or end.torn or end.seq < len(intact)
    await rewrite_tail(disk, DIRECTORY, end)


@virtually
async def test_the_loop_gets_its_turn_while_a_long_log_is_read() -> None:
    disk = sim_disk(latency_seconds=(0, 0))
    log = await a_log(disk, settings=SMALL._replace(segment_bytes=4 << 20, row_bytes=64 << 10))
    await all_made(log)
    await written(log, 40, 100, 500)
    await log.close()
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    await scanned(disk)
    task.cancel()
    assert turns > 8

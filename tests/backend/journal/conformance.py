"""Conformance tests of journals (:mod:`backend.journal.interface`), for files and tables alike."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any, Protocol

import msgspec
import pytest

from backend.api import StorageFull, Unavailable
from backend.journal.checkpoints import PieceDamaged
from backend.journal.interface import Cut, Journal, Log
from backend.journal.local.scan import LogEnd, Row
from backend.journal.local.segments import LogInUse
from metadata_service.models import LogEntry
from tests.backend.journal.support import Failures, a_record, number_of, numbers_in


class LogStorage(Protocol):
    """Storage of logs, which survives the processes that write them."""

    def run(self, main: Coroutine[Any, Any, None]) -> None: ...

    def journal(self) -> Journal:
        """Make a journal as another process would.  Segments hold about ten records of 1000 bytes."""

    async def set_state(self, entry: LogEntry, state: str) -> None:
        """Set the state in the entry of a log, as a transaction."""

    async def kill(self) -> None:
        """Kill the writing process."""


class Writer:
    """One incarnation."""

    def __init__(self, world: LogStorage, log_id: int = 9) -> None:
        self.world = world
        self.journal = world.journal()
        self.entry = LogEntry(log_id=log_id, node="n", incarnation=log_id)
        self.failures = Failures()
        self.log: Log

    async def begin(self) -> Log:
        await self.journal.prepare()
        await self.world.set_state(self.entry, "open")
        self.log = await self.journal.create(self.entry, clock_ms=lambda: 77, on_failure=self.failures)
        return self.log


async def durable(log: Log) -> None:
    barrier = log.barrier()
    if barrier is not None:
        await barrier


async def append(log: Log, number: int, size_bytes: int = 100) -> int:
    await log.wait_room(size_bytes + 200)
    return log.append(a_record(number, size_bytes))


async def everywhere(log: Log, positions: list[int]) -> None:
    """Wait for all replicas, with retries as a client makes them."""
    for _ in range(20):
        try:
            log.check_replicas()
            return await log.on_all_replicas(positions)
        except Unavailable:
            await asyncio.sleep(1)
    raise AssertionError("some replica never has them")


async def appended(log: Log, number: int) -> None:
    await append(log, number)
    await durable(log)


async def taken_over(world: LogStorage, entry: LogEntry) -> tuple[Journal, list[Row], LogEnd]:
    """Take a log over as a successor does, up to the seal."""
    await world.set_state(entry, "recovering")
    journal = world.journal()
    await journal.prepare()
    assert await journal.find([entry]) == {entry.log_id}
    scan = journal.scan(entry, 0)
    rows = [row async for row in scan.rows()]
    assert not scan.end.damage
    await journal.finalize(entry, scan.end)
    await world.set_state(entry, "sealed")
    sealed = msgspec.structs.replace(entry, state="sealed", sealed_seq=scan.end.seq)
    await journal.trim(sealed, scan.end)
    again = journal.scan(sealed, scan.end.seq)
    assert [row.seq async for row in again.rows()] == [row.seq for row in rows]
    return journal, rows, scan.end


class JournalConformance:
    """Tests for each implementation: its test class has a fixture ``world`` and inherits these."""

    def test_what_is_durable_is_read_back_at_its_position(self, world: LogStorage) -> None:
        async def main() -> None:
            writer = Writer(world)
            log = await writer.begin()
            assert log.log_id == 9
            positions = [await append(log, number) for number in range(30)]
            assert positions == sorted(set(positions))
            assert [number_of(view) for view in await log.read_many(positions[::-1])] == list(range(29, -1, -1))
            await durable(log)
            positions.append(await append(log, 30))
            await durable(log)
            assert log.durable_seq >= 2
            assert [number_of(view) for view in await log.read_many(positions)] == list(range(31))
            assert not writer.failures
            await world.kill()
            journal, rows, end = await taken_over(world, writer.entry)
            assert numbers_in(rows) == list(range(31))
            assert [row.seq for row in rows] == list(range(1, end.seq + 1))
            assert [position for row in rows for position, _ in row.records] == positions
            assert end.time_ms == 77
            journal.release()
            successor = await journal.create(
                LogEntry(log_id=10, node="n", incarnation=10), clock_ms=lambda: 78, on_failure=Failures()
            )
            assert [number_of(view) for view in await successor.read_many(positions)] == list(range(31))
            await successor.close()

        world.run(main())

    def test_a_log_that_is_closed_holds_all(self, world: LogStorage) -> None:
        async def main() -> None:
            writer = Writer(world)
            log = await writer.begin()
            for number in range(5):
                await append(log, number)
            await log.close()
            with pytest.raises(Unavailable):
                log.append(a_record(6))
            with pytest.raises(Unavailable):
                log.check_room(10)
            assert not log.room()
            _, rows, end = await taken_over(world, writer.entry)
            assert numbers_in(rows) == list(range(5))
            assert end.answered >= end.seq - 1, "a last row says what was answered"
            assert not writer.failures

        world.run(main())

    def test_a_log_that_was_begun_and_never_used_is_empty(self, world: LogStorage) -> None:
        async def main() -> None:
            writer = Writer(world)
            await writer.begin()
            await world.kill()
            journal, rows, end = await taken_over(world, writer.entry)
            assert not rows
            assert end.seq == 0
            if await journal.segments.remove_log(9):
                assert 9 not in journal.segments.logs()
            journal.release()

        world.run(main())

    def test_a_cut_parts_rows(self, world: LogStorage) -> None:
        async def main() -> None:
            writer = Writer(world)
            log = await writer.begin()
            assert log.cut().seq == 0
            await append(log, 0)
            through = log.cut().seq
            assert log.cut().seq == through
            assert log.next_seq == through + 1
            await append(log, 1)
            await durable(log)
            await log.close()
            _, rows, _ = await taken_over(world, writer.entry)
            assert numbers_in([row for row in rows if row.seq <= through]) == [0]
            assert numbers_in([row for row in rows if row.seq > through]) == [1]

        world.run(main())

    def test_a_log_can_be_read_from_any_cut(self, world: LogStorage) -> None:
        """Includes a cut before an empty row that is the last one of its segment."""

        async def main() -> None:
            writer = Writer(world)
            log = await writer.begin()
            cuts: list[Cut] = []
            while log.next_segment < 4:
                await append(log, log.next_seq, len(cuts) % 2 * 400)
                row = log.next_seq
                await durable(log)
                if len(cuts) % 3:
                    while log.next_seq < row + 2:  # until the log has marked that it is idle
                        await asyncio.sleep(0.01)
                cuts.append(log.cut())
            await log.close()
            journal, rows, end = await taken_over(world, writer.entry)
            places = {row.seq: row.segment for row in rows}
            for cut in cuts:
                assert cut.floor_seq == cut.seq + 1
                assert cut.floor_segment <= places.get(cut.floor_seq, end.segment)
                sealed = msgspec.structs.replace(
                    writer.entry,
                    state="sealed",
                    sealed_seq=end.seq,
                    floor_segment=cut.floor_segment,
                    floor_seq=cut.floor_seq,
                )
                scan = journal.scan(sealed, cut.seq)
                assert [row.seq async for row in scan.rows()] == [row.seq for row in rows if row.seq > cut.seq]
                assert not scan.end.damage
            journal.release()

        world.run(main())

    def test_what_was_checked_is_taken(self, world: LogStorage) -> None:
        async def main() -> None:
            log = await Writer(world).begin()
            random = Random(1)
            refused = 0
            for turn in range(150):
                number, size_bytes = random.randrange(1, 5), random.choice((0, 100, 1000))
                records = [a_record(turn, size_bytes) for _ in range(number)]
                try:
                    log.check_room(sum(map(len, records)))
                except StorageFull:
                    refused += 1
                    await log.wait_room(sum(map(len, records)))
                    continue
                for record in records:
                    log.append(record)
                if not turn % 10:
                    await durable(log)
            assert refused < 140
            await log.close()

        world.run(main())

    def test_segments_follow_each_other_and_go(self, world: LogStorage) -> None:
        async def main() -> None:
            writer = Writer(world)
            log = await writer.begin()
            positions = []
            for number in range(60):
                positions.append(await append(log, number, 1000))
                await durable(log)
            assert log.next_segment >= 3
            assert {position >> 24 & 0xFFFFF for position in positions} == set(range(1, log.next_segment + 1))
            await log.close()
            journal, rows, end = await taken_over(world, writer.entry)
            assert numbers_in(rows) == list(range(60))
            segments = journal.segments
            assert segments.logs() == [9]
            assert [number for number, _ in await segments.segments_of(9)] == list(range(1, end.segment + 1))
            await segments.drop(9, [1])
            assert [number for number, _ in await segments.segments_of(9)] == list(range(2, end.segment + 1))
            assert not await segments.remove_log(9)
            floor = next(row for row in rows if row.segment == 2)
            below = msgspec.structs.replace(
                writer.entry, state="sealed", sealed_seq=end.seq, floor_segment=2, floor_seq=floor.seq
            )
            scan = journal.scan(below, floor.seq - 1)
            assert [row.seq async for row in scan.rows()] == [row.seq for row in rows if row.segment > 1]
            assert not scan.end.damage
            await segments.drop(9, range(2, end.segment + 1))
            assert await segments.remove_log(9)
            assert segments.logs() == []
            journal.release()

        world.run(main())

    def test_what_is_missing_below_the_seal_is_damage(self, world: LogStorage) -> None:
        async def main() -> None:
            writer = Writer(world)
            log = await writer.begin()
            for number in range(60):
                await append(log, number, 1000)
                await durable(log)
            await log.close()
            journal, _, end = await taken_over(world, writer.entry)
            await journal.segments.drop(9, [end.segment])
            sealed = msgspec.structs.replace(writer.entry, state="sealed", sealed_seq=end.seq)
            for _ in range(20):
                scan = journal.scan(sealed, end.seq)
                try:
                    async for _ in scan.rows():
                        pass
                except Unavailable:  # a replica that may have it did not answer
                    continue
                break
            assert scan.end.severe
            journal.release()

        world.run(main())

    def test_pieces(self, world: LogStorage) -> None:
        async def main() -> None:
            writer = Writer(world)
            log = await writer.begin()
            pieces = writer.journal.pieces
            random = Random(2)
            first = await pieces.begin(9)
            contents = [random.randbytes(size) for size in (0, 1, 7, 70_000, 200_000, 65_536, 3)]
            refs = [first.add(content) for content in contents]
            await first.finish()
            second = await pieces.begin(9)
            other = second.add(b"other")
            await second.finish()
            await (await pieces.begin(9)).finish()  # an empty file
            assert await pieces.get_many([other, *reversed(refs)]) == [b"other", *reversed(contents)]
            assert await pieces.get(refs[3]) == contents[3]
            files = {one.file: one.size_bytes for one in await pieces.list_files(9)}
            assert set(files) == {refs[0].file, other.file}
            assert files[refs[0].file] >= sum(map(len, contents))
            with pytest.raises(PieceDamaged):
                await pieces.get(msgspec.structs.replace(refs[3], crc=refs[3].crc ^ 1))
            await pieces.drop_file(9, refs[0].file)
            await pieces.drop_file(9, refs[0].file)
            with pytest.raises(PieceDamaged):
                await pieces.get(refs[4])
            assert await pieces.get(other) == b"other"
            assert [one.file for one in await pieces.list_files(9)] == [other.file]
            await log.close()

        world.run(main())

    def test_a_log_that_was_taken_over_acknowledges_nothing_more(self, world: LogStorage) -> None:
        """Alternatively it cannot be taken over while its writer lives."""

        async def main() -> None:
            writer = Writer(world)
            log = await writer.begin()
            await append(log, 1)
            await durable(log)
            try:
                _, rows, end = await taken_over(world, writer.entry)
            except LogInUse:
                await log.close()
                return
            assert numbers_in(rows) == [1]
            with pytest.raises(Unavailable):
                await appended(log, 2)
            assert [type(error).__name__ for error in writer.failures] == ["LogFenced"]
            with pytest.raises(Unavailable):
                log.append(a_record(3))
            with pytest.raises(Unavailable):
                await durable(log)
            await log.close()
            sealed = msgspec.structs.replace(writer.entry, state="sealed", sealed_seq=end.seq)
            journal = world.journal()
            await journal.find([sealed])
            assert numbers_in([row async for row in journal.scan(sealed, end.seq).rows()]) == [1]

        world.run(main())

    def test_records_come_to_all_replicas(self, world: LogStorage) -> None:
        """Covers records just appended, some that were durable before, and some of an earlier log."""

        async def main() -> None:
            writer = Writer(world)
            log = await writer.begin()
            positions = [await append(log, number) for number in range(3)]
            await everywhere(log, positions[:2])
            assert log.durable_seq >= 1
            await everywhere(log, positions)
            await log.close()
            journal, _, _ = await taken_over(world, writer.entry)
            journal.release()
            later = LogEntry(log_id=10, node="n", incarnation=10)
            await world.set_state(later, "open")
            successor = await journal.create(later, clock_ms=lambda: 78, on_failure=Failures())
            mine = await append(successor, 3)
            await everywhere(successor, [*positions, mine])
            await everywhere(successor, [])
            await successor.close()

        world.run(main())

    def test_what_is_not_durable_is_counted(self, world: LogStorage) -> None:
        async def main() -> None:
            log = await Writer(world).begin()
            assert log.unsynced_bytes == 0
            for number in range(3):
                await append(log, number, 1000)
            assert 3000 <= log.unsynced_bytes <= 4000
            await durable(log)
            assert log.unsynced_bytes == 0
            await log.close()

        world.run(main())

    def test_callers_that_leave_harm_nobody(self, world: LogStorage) -> None:
        async def main() -> None:
            log = await Writer(world).begin()
            await append(log, 1)
            first, second = log.barrier(), log.barrier()
            assert first is not None
            assert second is not None
            first.cancel()
            await second
            await asyncio.sleep(0)
            await log.close()

        world.run(main())

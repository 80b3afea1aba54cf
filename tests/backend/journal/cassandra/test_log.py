"""The log on Cassandra with delayed, lost and reordered writes and reads, and takeovers at any time.

Each removable rule is removed in turn, and the tests have to fail without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from random import Random
from typing import Any
from unittest import mock

import msgspec
import pytest

from backend.api import StorageFull, Unavailable
from backend.journal.cassandra.journal import CassandraJournal
from backend.journal.cassandra.log import WINDOW, CassandraLog, CassandraLogSettings
from backend.journal.cassandra.rows import decode_row
from backend.journal.cassandra.table_interface import ROWS_MAX, LogFenced, StateRead, Unanswered, Written
from backend.journal.rows import SEGMENT_MAX, RecordView
from backend.journal.types import DamagedRecord, LogEnd, Row
from metadata_service.models import LogEntry
from tests.backend.journal.support import a_record, append_durably, number_of, numbers_in, virtual, virtually
from tests.servers.waiting import until
from tests.simulator.world.quorum import Machines, QuorumTables

SETTINGS = CassandraLogSettings(
    segment_bytes=6000, row_bytes=1024, pending_bytes=32768, stall_seconds=30, close_seconds=60
)


ENTRY = LogEntry(log_id=9, node="n", incarnation=1)
HELD = SETTINGS._replace(segment_bytes=1 << 20)


def journal_on(machines: Machines, settings: CassandraLogSettings = HELD) -> CassandraJournal:
    return CassandraJournal(QuorumTables(machines), settings)


async def begin_log(machines: Machines, settings: CassandraLogSettings = HELD) -> CassandraLog:
    machines.set_state(9, "open", 1)
    return await journal_on(machines, settings).create(ENTRY, clock_ms=lambda: 1, on_failure=lambda _: None)


async def read(journal: CassandraJournal, entry: LogEntry, known_seq: int) -> tuple[list[Row], LogEnd]:
    scan = journal.scan(entry, known_seq)
    return [row async for row in scan.rows()], scan.end


def sealed_at(seq: int) -> LogEntry:
    return msgspec.structs.replace(ENTRY, state="sealed", sealed_seq=seq)


class _Run:
    """A writer, and a successor that takes its log over while it writes without knowing."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.machines = Machines(
            random,
            lost=random.choice((0, 0.02, 0.1)),
            late=random.choice((0, 0.05, 0.2)),
            repairs=random.random() < 0.5,
        )
        self.machines.slow_seconds = random.choice((0.005, 0.05))
        self.acknowledged: dict[int, int] = {}
        """Position of each acknowledged record, by number."""
        self.failures: list[BaseException] = []
        self.numbers = 0
        self.taken = False
        self.everywhere = 0
        """Number of answers that waited for all replicas."""
        self.careful_ones: list[asyncio.Task[None]] = []

    async def writer(self, log: CassandraLog) -> None:
        random, loop = self.random, asyncio.get_running_loop()
        try:
            while True:
                record = a_record(self.numbers, random.choice((50, 200, 900)))
                try:
                    position = log.append(record)
                except StorageFull:
                    await log.wait_for_space(len(record))
                    continue
                number = self.numbers
                self.numbers += 1
                if random.random() < 0.1:
                    self.careful_ones.append(loop.create_task(self.careful(log, number, position)))
                elif random.random() < 0.3:
                    loop.create_task(self.caller(log, number, position))
                else:
                    await self.caller(log, number, position)
                await asyncio.sleep(random.choice((0, 0, 0, 0.01, 0.1)))
        except Unavailable:
            return

    async def caller(self, log: CassandraLog, number: int, position: int) -> None:
        try:
            await log.barrier()
        except Unavailable:
            return
        self.acknowledged[number] = position

    async def careful(self, log: CassandraLog, number: int, position: int) -> None:
        """Append as a caller that waits for all replicas; it retries while one is unavailable."""
        for _ in range(3):
            try:
                await log.on_all_replicas([position])
            except Unavailable:
                await asyncio.sleep(self.random.random())
                continue
            partition, row = ("journal", position >> 44, position >> 24 & SEGMENT_MAX), position >> 11 & ROWS_MAX - 1
            assert self.machines.everywhere(partition, (row,)), "some machine does not have it"
            self.acknowledged[number] = position
            self.everywhere += 1
            return

    async def asker(self, log: CassandraLog) -> None:
        """Make calls that write nothing: none may be answered once the log is taken over."""
        while True:
            began_after = self.taken
            try:
                await log.barrier()
            except Unavailable:
                if log._error is not None:
                    return
            else:
                assert not began_after, "an answer was computed and given after somebody else had taken over"
            await asyncio.sleep(0.02 * self.random.random())

    async def main(self) -> None:
        random, machines = self.random, self.machines
        machines.set_state(9, "open", 1)
        tables = QuorumTables(machines)
        journal = CassandraJournal(tables, SETTINGS)
        try:
            log = await journal.create(ENTRY, clock_ms=lambda: 1, on_failure=self.failures.append)
        except Unavailable:
            return  # it never started
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self.writer(log)) for _ in range(random.choice((0, 1, 4, 40)))]
        tasks += [loop.create_task(self.asker(log)) for _ in range(3)]
        await asyncio.sleep(random.random() * 2)
        if random.random() < 0.5:
            held = random.choice((0.2, 2))
            tables.waits_until, tables.held_until = loop.time() + held * 0.9, loop.time() + held
            await asyncio.sleep(random.random() * 0.02)
        machines.set_state(9, "recovering", 2)
        self.taken = True
        rows, end = await self.scanned(msgspec.structs.replace(ENTRY, state="recovering"), 0)
        machines.set_state(9, "sealed", 3)
        await asyncio.sleep(5)  # delayed requests arrive, and the writer detects the takeover
        tasks += self.careful_ones
        await asyncio.wait(tasks, timeout=30)
        for task in tasks:
            assert task.done(), "somebody waits for ever"
            task.result()
        assert [type(error) for error in self.failures] == [LogFenced]
        there = {number_of(record): position for row in rows for position, record in row.records}
        lost = {number for number in self.acknowledged if there.get(number) != self.acknowledged[number]}
        assert not lost, f"acknowledged and lost: {sorted(lost)}"
        again, _ = await self.scanned(sealed_at(end.seq), end.seq)
        assert [row.seq for row in again] == [row.seq for row in rows], "what was read is not what is there"
        assert plain(again) == plain(rows)
        await log.close()

    async def scanned(self, entry: LogEntry, known_seq: int) -> tuple[list[Row], LogEnd]:
        while True:
            journal = CassandraJournal(QuorumTables(self.machines), SETTINGS)
            scan = journal.scan(entry, known_seq)
            try:
                rows = [row async for row in scan.rows()]
                assert not scan.end.severe, f"{scan.end.damage}"
                if entry.state != "sealed":
                    await journal.finalize(entry, scan.end)
                return rows, scan.end
            except Unavailable:
                await asyncio.sleep(0.1)


def plain(rows: list[Row]) -> list[Any]:
    return [
        (row.seq, position, record.head)
        for row in rows
        for position, record in row.records
        if isinstance(record, RecordView)
    ]


def run(seeds: range) -> int:
    """Run all seeds; returns the number of answers that had to wait for all replicas."""
    everywhere = 0
    for seed in seeds:
        one = _Run(seed)
        try:
            virtual(one.main())
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        everywhere += one.everywhere
    return everywhere


@pytest.mark.parametrize("first", range(0, 120, 40))
def test_nothing_that_was_acknowledged_is_lost(first: int) -> None:
    assert run(range(first, first + 40)) > 100


# --- without each rule in turn ----------------------------------------------------------------------------


def no_fence() -> AbstractContextManager[Any]:
    """Answer rows when a quorum has them, whatever the entry says, until the log detects the takeover otherwise."""
    real = CassandraLog._answer

    def written(self: CassandraLog, row: Any, error: BaseException | None) -> None:
        real_written(self, row, error)
        if self._error is None:
            real(self, self._fence.complete_seq)

    real_written = CassandraLog._written
    return mock.patch.object(CassandraLog, "_written", written)


def answered_out_of_order() -> AbstractContextManager[Any]:
    """Answer a row although an earlier one is not complete."""

    def written(self: CassandraLog, row: Any, error: BaseException | None) -> None:
        real(self, row, error)
        if error is None and self._error is None:
            for future in row.futures:
                if not future.done():
                    future.set_result(None)

    real = CassandraLog._written
    return mock.patch.object(CassandraLog, "_written", written)


def not_everywhere() -> AbstractContextManager[Any]:
    """Answer calls that wait for all replicas when a quorum has the row."""
    return mock.patch.object(QuorumTables, "put_row_at_all", QuorumTables.put_row)


@pytest.mark.parametrize("rule", [no_fence, answered_out_of_order, not_everywhere])
def test_each_rule_is_missed(rule: Callable[[], AbstractContextManager[Any]]) -> None:
    with rule(), pytest.raises(AssertionError):
        run(range(100))


# --- step by step -----------------------------------------------------------------------------------------


class HeldTables(QuorumTables):
    def __init__(self) -> None:
        super().__init__(Machines(Random(1)))
        self.writes: list[tuple[bytes, Written]] = []
        self.everywhere: list[Written] = []
        self.reads: list[StateRead] = []

    def put_row(self, log_id: int, segment: int, row: int, data: bytes, done: Written) -> None:
        self.writes.append((data, done))

    def put_row_at_all(self, log_id: int, segment: int, row: int, data: bytes, done: Written) -> None:
        self.everywhere.append(done)

    def read_state(self, log_id: int, done: StateRead) -> None:
        self.reads.append(done)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class _SteppedLog:
    tables: HeldTables
    log: CassandraLog
    failures: list[BaseException]

    @classmethod
    async def begin(cls) -> _SteppedLog:
        self = cls()
        self.tables = HeldTables()
        self.failures = []
        self.log = await CassandraJournal(self.tables, HELD).create(
            ENTRY, clock_ms=lambda: 1, on_failure=self.failures.append
        )
        return self

    async def row(self, number: int, size_bytes: int = 100) -> asyncio.Future[None]:
        self.log.append(a_record(number, size_bytes))
        barrier = self.log.barrier()
        await turns()
        return barrier

    async def written(self, place: int, error: Unanswered | None = None) -> None:
        self.tables.writes[place][1](error)
        await turns()

    async def answer_all(self) -> None:
        while self.tables.writes:
            self.tables.writes.pop(0)[1](None)
        await turns()
        while self.tables.reads:
            self.tables.reads.pop(0)("open")


@virtually
async def test_a_read_answers_for_the_rows_that_were_complete_when_it_was_sent() -> None:
    held = await _SteppedLog.begin()
    first, second = await held.row(1), await held.row(2)
    await held.written(0)
    await held.written(1)
    assert len(held.tables.reads) == 2, "reads overlap"
    held.tables.reads[0]("open")
    assert first.done()
    assert not second.done()
    assert held.log.durable_seq == 1
    held.tables.reads[1]("recovering")
    with pytest.raises(Unavailable):
        second.result()
    assert [type(error) for error in held.failures] == [LogFenced]
    await held.log.close()


@virtually
async def test_answers_without_a_record_wait_for_a_read_that_begins_after() -> None:
    held = await _SteppedLog.begin()
    first = held.log.barrier()
    await turns()
    second = held.log.barrier()
    await turns()
    held.tables.reads[0]("open")
    assert first.done()
    assert not second.done()
    held.tables.reads[1]("sealed")
    with pytest.raises(Unavailable):
        second.result()
    await held.log.close()


@virtually
async def test_answers_without_a_record_wait_for_the_rows_they_rest_on() -> None:
    held = await _SteppedLog.begin()
    await held.row(1)
    twin = held.log.barrier()
    await turns()
    assert not held.tables.reads
    await held.written(0)
    assert not twin.done()
    held.tables.reads[0]("open")
    assert twin.done()


@virtually
async def test_rows_are_answered_in_order_and_sent_again_as_they_were() -> None:
    held = await _SteppedLog.begin()
    first, second = await held.row(1), await held.row(2)
    held.tables.writes[1][1](None)
    held.tables.writes[0][1](Unanswered("who knows"))
    await asyncio.sleep(2)
    assert not held.tables.reads
    assert len(held.tables.writes) == 3
    assert held.tables.writes[2][0] == held.tables.writes[0][0]
    await held.written(2)
    held.tables.reads[0]("open")
    assert first.done()
    assert second.done()


@virtually
async def test_no_row_is_sent_a_window_before_one_that_is_not_complete() -> None:
    held = await _SteppedLog.begin()
    for number in range(20):
        await held.row(number, 900)
    assert len(held.tables.writes) == WINDOW
    for _, done in held.tables.writes[1:]:
        done(None)
    await turns()
    assert len(held.tables.writes) == WINDOW
    await held.written(0)
    assert len(held.tables.writes) == 20


@virtually
async def test_rows_fill_while_some_are_under_way() -> None:
    held = await _SteppedLog.begin()
    for number in range(20):
        await held.row(number, 0)
    assert len(held.tables.writes) == SETTINGS.rows_at_once
    await held.written(0)
    assert len(held.tables.writes) == SETTINGS.rows_at_once + 1
    row = decode_row(held.tables.writes[-1][0], 9, 1, SETTINGS.rows_at_once)
    assert row is not None
    assert len(row.records) == 20 - SETTINGS.rows_at_once, "the others in one row"


@virtually
async def test_too_much_that_waits_is_met_before_anything_is_applied() -> None:
    held = await _SteppedLog.begin()
    for number in range(33):
        held.log.append(a_record(number, 900))
    with pytest.raises(StorageFull):
        held.log.append(a_record(33, 900))
    with pytest.raises(StorageFull):
        held.log.check_space(900)
    held.log.append(a_record(100, 900), reserve=True)
    waiting = asyncio.ensure_future(held.log.wait_for_space(900))
    await turns()
    assert not waiting.done()
    while held.tables.writes:
        await held.answer_all()
    await waiting
    assert held.log.has_space()
    held.log.append(a_record(101, 900))


@virtually
async def test_without_a_quorum_calls_are_refused_and_it_continues_by_itself() -> None:
    held = await _SteppedLog.begin()
    first = await held.row(1)
    while not first.done():
        _, done = held.tables.writes.pop()
        done(Unanswered("no quorum"))
        await asyncio.sleep(1.5)
    with pytest.raises(Unavailable, match="not known"):
        first.result()
    with pytest.raises(Unavailable, match="no quorum"):
        held.log.append(a_record(2))
    with pytest.raises(Unavailable, match="no quorum"):
        await held.log.barrier()
    assert not held.log.has_space()
    assert not held.failures
    await until(lambda: held.tables.writes)
    held.tables.writes.pop()[1](None)
    await turns()
    assert held.log.has_space()
    second = await held.row(2)
    await held.answer_all()
    assert second.done()
    assert held.log.durable_seq == 2


@virtually
async def test_without_an_answer_to_the_fence_calls_are_refused_too() -> None:
    held = await _SteppedLog.begin()
    first = await held.row(1)
    held.tables.writes[0][1](None)
    while not first.done():
        await asyncio.sleep(1.5)
        held.tables.reads.pop()(Unanswered("no quorum"))
    with pytest.raises(Unavailable, match="not known"):
        first.result()
    assert not held.log.has_space()
    await until(lambda: held.tables.reads)
    held.tables.reads.pop()("open")
    assert held.log.has_space()
    assert held.log.durable_seq == 1


@virtually
async def test_an_entry_that_is_gone_is_no_open_one() -> None:
    held = await _SteppedLog.begin()
    first = await held.row(1)
    await held.written(0)
    held.tables.reads[0](None)
    with pytest.raises(Unavailable):
        first.result()
    assert len(held.failures) == 1


@virtually
async def test_a_close_that_gets_no_answer_ends() -> None:
    held = await _SteppedLog.begin()
    first = await held.row(1)
    await held.log.close()
    with pytest.raises(Unavailable):
        first.result()
    assert not held.failures


@virtually
async def test_a_missing_machine_affects_only_calls_that_wait_for_all(caplog: pytest.LogCaptureFixture) -> None:
    machines = Machines(Random(1), repairs=False)
    log = await begin_log(machines, HELD._replace(stall_seconds=2))

    def logged() -> list[str]:
        return [one.levelname for one in caplog.records if one.name == "backend.journal.cassandra.replicas"]

    machines.down(2)
    first = log.append(a_record(1))
    answer = asyncio.ensure_future(log.on_all_replicas([first]))
    await asyncio.wait_for(append_durably(log, a_record(2)), 1)
    assert not answer.done()
    with pytest.raises(Unavailable, match="not known"):
        await answer
    with pytest.raises(Unavailable, match="a replica of the journal does not answer now"):
        log.check_replicas()
    with pytest.raises(Unavailable, match="not known"):
        await log.on_all_replicas([first])
    await asyncio.wait_for(append_durably(log, a_record(3)), 1)
    assert log.durable_seq >= 3
    assert logged() == ["ERROR"]
    machines.down()
    await asyncio.sleep(4)
    log.check_replicas()
    assert logged() == ["ERROR", "WARNING"]
    await log.on_all_replicas([first])
    assert machines.everywhere(("journal", 9, 1), (0,))
    statements = machines.statements
    await asyncio.sleep(30)
    assert machines.statements - statements <= 2, "it does not go on looking"
    await log.close()


@virtually
async def test_waits_for_all_replicas_are_bounded_and_end_with_the_log() -> None:
    held = await _SteppedLog.begin()
    answers = []
    for number in range(40):
        position = held.log.append(a_record(number, 900))
        answers.append(asyncio.ensure_future(held.log.on_all_replicas([position])))
        await turns()
        await held.answer_all()
    with pytest.raises(Unavailable, match="does not answer now"):
        held.log.check_replicas()
    held.tables.everywhere.pop(0)(None)
    await turns()
    assert answers[0].done()
    assert not answers[1].done()
    await held.log.close()
    for done in held.tables.everywhere:
        done(Unanswered("gone"))
    await asyncio.wait(answers)
    assert all(isinstance(one.exception(), Unavailable) for one in answers[1:])


@virtually
async def test_rows_on_a_single_replica_are_made_durable_before_use() -> None:
    machines = Machines(Random(1), repairs=False)
    log = await begin_log(machines)
    await append_durably(log, a_record(1))
    machines.down(1, 2)
    log.append(a_record(2))
    await asyncio.sleep(0.3)
    machines.down(2)
    machines.set_state(9, "recovering", 2)
    journal = journal_on(machines)
    rows, end = await read(journal, ENTRY, 0)
    assert numbers_in(rows) == [1, 2]
    await journal.finalize(ENTRY, end)
    machines.down(0)
    again, end = await read(journal_on(machines), sealed_at(end.seq), end.seq)
    assert numbers_in(again) == [1, 2]
    assert not end.damage
    machines.down()
    await asyncio.sleep(5)
    await log.close()


@pytest.mark.parametrize(("missing", "severe"), [(3, True), (18, True), (20, False)])
@virtually
async def test_a_row_that_is_missing_before_what_was_answered_is_damage(missing: int, severe: bool) -> None:
    machines = Machines(Random(1))
    log = await begin_log(machines)
    for number in range(20):
        await append_durably(log, a_record(number))
    for machine in machines.machines:
        del machine.cells["journal", 9, 1][missing - 1,]
    rows, end = await read(journal_on(machines), ENTRY, 0)
    known, known_end = await read(journal_on(machines), ENTRY, missing)
    assert end.severe == severe
    assert [row.seq for row in rows] == [row.seq for row in known] == [seq for seq in range(1, 21) if seq != missing]
    assert known_end.severe, "a checkpoint says that it was there"
    if severe:
        assert "missing" in str(end.damage[0])
    else:
        assert end.seq == missing - 1
    await log.close()


@pytest.mark.parametrize("missing", [1, 2, 19, 20])
@virtually
async def test_a_row_that_one_machine_alone_has_is_not_lost(missing: int) -> None:
    """Two replicas were replaced without it, so a quorum does not find it; all are asked before it counts as lost."""
    machines = Machines(Random(1), repairs=False)
    log = await begin_log(machines)
    for number in range(20):
        await append_durably(log, a_record(number))
    for machine in machines.machines[:2]:
        del machine.cells["journal", 9, 1][missing - 1,]
    machines.down(2)

    with pytest.raises(Unavailable, match=f"row {missing} of log 9 is missing, and not all machines"):
        await read(journal_on(machines), ENTRY, 20)
    rows, end = await read(journal_on(machines), msgspec.structs.replace(ENTRY, accepted=True), 20)
    assert end.severe, "an operator has accepted that it is lost, so nobody waits for the machine"
    assert missing not in [row.seq for row in rows]
    machines.down()
    for entry, last in ((ENTRY, 21), (sealed_at(20), 20)):
        rows, end = await read(journal_on(machines), entry, 20)
        assert [row.seq for row in rows] == list(range(1, last + 1)), "the last is the mark of a log at rest"
        assert (end.seq, end.severe, end.damage) == (last, False, [])
    await log.close()


@virtually
async def test_all_nodes_are_asked_for_the_needs_of_a_queue_before_it_is_declared_lost() -> None:
    """Covers bodies, and checkpoint chunks."""
    machines = Machines(Random(1), repairs=False)
    log = await begin_log(machines)
    journal = journal_on(machines)
    position = await append_durably(log, a_record(5))
    writer = await journal.chunks.create_file(9)
    ref = writer.add(b"piece" * 100)
    await writer.finish()
    await asyncio.sleep(1)
    for machine in machines.machines[:2]:
        del machine.cells["journal", 9, 1], machine.cells["pieces", 9, 1]
    machines.down(2)
    with pytest.raises(Unavailable):
        await journal.read_many([position])
    with pytest.raises(Unavailable):
        await journal.chunks.get(ref)
    machines.down()
    assert number_of((await journal.read_many([position]))[0]) == 5
    assert await journal.chunks.get(ref) == b"piece" * 100
    await log.close()


@virtually
async def test_a_row_that_is_rotten_costs_what_is_rotten() -> None:
    machines = Machines(Random(1))
    log = await begin_log(machines)
    journal = journal_on(machines)
    positions = [log.append(a_record(number)) for number in range(3)]
    await log.barrier()
    await log.close()
    for machine in machines.machines:
        timestamp, data = machine.cells["journal", 9, 1][0,]
        at = data.index(a_record(1)[-100:-8])
        machine.cells["journal", 9, 1][0,] = timestamp, data[:at] + b"x" + data[at + 1 :]
    rows, end = await read(journal_on(machines), ENTRY, 0)
    found = rows[0].records
    assert [position for position, _ in found] == positions
    assert isinstance(found[1][1], DamagedRecord)
    assert found[1][1].part == "body"
    assert (number_of(found[0][1]), number_of(found[2][1])) == (0, 2)
    assert [damage.seq for damage in end.damage] == [1]
    assert not end.severe, "it is known whose it is"
    views = await journal.read_many([*positions, positions[0] + 3, positions[0] + 2048])
    assert (number_of(views[0]), number_of(views[2])) == (0, 2)
    assert [view.part for view in views if isinstance(view, DamagedRecord)] == ["body", "header", "header"]
    missing = await journal.read_many([positions[0] + (5 << 24)])
    assert isinstance(missing[0], DamagedRecord)
    assert missing[0].part == "file"

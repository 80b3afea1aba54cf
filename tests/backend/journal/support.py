"""Shared parts of the journal's tests: virtual time, logs on a simulated disk, and reading them."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from random import Random
from typing import Any, ParamSpec, TypeVar

from backend.journal.interface import Log
from backend.journal.local.disk import Disk
from backend.journal.local.log import LocalLog, LogSettings
from backend.journal.local.scan import LocalScan
from backend.journal.local.segments import SegmentFiles
from backend.journal.rows import RecordView, encode_record
from backend.journal.types import LogEnd, Row
from tests.simulator.world.disk import SimDisk

P = ParamSpec("P")
T = TypeVar("T")

ROOT = "/journal"
NONCE = 0x1234_5678_9ABC_DEF1
SMALL = LogSettings(segment_bytes=8192, low_water_bytes=16384, row_bytes=2048)


class _JumpingSelector(selectors.SelectSelector):
    """Selector that advances the virtual time instead of waiting."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everything waits, and nothing will ever happen"
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.selector = _JumpingSelector()
        super().__init__(self.selector)

    def time(self) -> float:
        return self.selector.now


def virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def virtually(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Decorate a test that runs in virtual time."""

    @wraps(test)
    def run(*arguments: P.args, **options: P.kwargs) -> None:
        virtual(test(*arguments, **options))

    return run


def sim_disk(seed: int = 1, **options: Any) -> SimDisk:
    disk = SimDisk(Random(seed), **options)
    disk.mkdir(ROOT)
    return disk


def a_record(number: int, size_bytes: int = 100) -> bytes:
    body = Random(number).randbytes(size_bytes)
    return encode_record(1, number % 7, 1000 + number, 3, 5000 + number, b"head %d" % number, body)


def number_of(view: object) -> int:
    assert isinstance(view, RecordView), view
    number = int(view.head.removeprefix(b"head "))
    assert view.body == Random(number).randbytes(view.body_bytes)
    assert (view.shard, view.partition) == (number % 7, 1000 + number)
    return number


class Failures(list[BaseException]):
    def __call__(self, error: BaseException) -> None:
        self.append(error)


async def a_log(
    disk: Disk, root: str = ROOT, *, log_id: int = 9, settings: LogSettings = SMALL, failures: Failures | None = None
) -> LocalLog:
    return await LocalLog.create(
        disk,
        SegmentFiles(disk, root),
        f"n-{log_id}",
        log_id,
        nonce=NONCE + log_id,
        clock_ms=lambda: 77,
        on_failure=failures if failures is not None else Failures(),
        settings=settings,
    )


async def a_new_log(seed: int = 1, **options: Any) -> tuple[SimDisk, LocalLog]:
    """Begin a log on a simulated disk of its own."""
    disk = sim_disk(seed, **options)
    return disk, await a_log(disk)


def files_of(disk: Disk) -> SegmentFiles:
    """Return the files of the log 9, as a process that opens them anew has them."""
    files = SegmentFiles(disk, ROOT)
    files.register(9, "n-9")
    return files


async def durable(log: Log) -> None:
    if (barrier := log.barrier()) is not None:
        await barrier


async def append_durably(log: Log, record: bytes, *, reserve: bool = False) -> int:
    position = log.append(record, reserve=reserve)
    await durable(log)
    return position


def pending(log: LocalLog) -> asyncio.Future[None]:
    """Return the barrier of a log that has something not durable."""
    barrier = log.barrier()
    assert barrier is not None
    return barrier


async def scanned(
    disk: Disk, directory: str = f"{ROOT}/n-9", log_id: int = 9, **options: Any
) -> tuple[list[Row], LogEnd]:
    scan = LocalScan(disk, directory, log_id, **options)
    rows = [row async for row in scan.rows()]
    return rows, scan.end


def plain(rows: list[Row]) -> list[object]:
    """Convert rows to values without the buffers that they were read from."""

    def plain_record(record: object) -> object:
        return record._replace(buffer=record.body) if isinstance(record, RecordView) else record

    return [(row[:6], [(position, plain_record(record)) for position, record in row.records]) for row in rows]


def numbers_in(rows: list[Row]) -> list[int]:
    return [number_of(record) for row in rows for _, record in row.records]


async def all_made(log: LocalLog) -> None:
    """Wait until the log has preallocated all segments."""
    await log._allocator.drain()

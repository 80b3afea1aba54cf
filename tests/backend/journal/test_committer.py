"""Who waits for a commit: the loop where the disk is quick, the thread where it is not."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.journal.committer import INLINE_BYTES, INLINE_SECONDS, PACE_COMMITS, THREAD_SECONDS, Committer


class Disk:
    """The real calls, and a clock that moves by what each of them is said to take."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.sync_seconds = 0.0001
        self.threads: list[bool] = []
        """Of each sync: whether a thread made it."""
        self._sync = os.fdatasync
        monkeypatch.setattr(os, "fdatasync", self.fdatasync)

    def fdatasync(self, fd: int) -> None:
        self.now += self.sync_seconds
        self.threads.append(threading.current_thread() is not threading.main_thread())
        self._sync(fd)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def commits(disk: Disk) -> Iterator[Committer]:
    made = Committer(clock=lambda: disk.now)
    yield made
    made.stop()


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


async def commit(commits: Committer, fd: int, data: bytes = b"row", offset: int = 0) -> BaseException | None:
    done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    commits.commit(fd, data, offset, done.set_result)
    assert not done.done(), "told before the caller could write down what is under way"
    return await done


async def test_the_loop_waits_for_a_quick_disk(commits: Committer, disk: Disk, fd: int) -> None:
    for place in range(50):
        assert await commit(commits, fd, b"%02d" % place, 2 * place) is None
    assert disk.threads == [False] * 50
    assert os.pread(fd, 1000, 0) == b"".join(b"%02d" % place for place in range(50))


async def test_it_does_not_wait_for_a_slow_one(commits: Committer, disk: Disk, fd: int) -> None:
    disk.sync_seconds = 2 * INLINE_SECONDS
    for _ in range(2 * PACE_COMMITS):
        await commit(commits, fd)
    assert disk.threads[-1]
    disk.sync_seconds = 0.0001
    disk.now += THREAD_SECONDS
    await commit(commits, fd)
    assert not disk.threads[-1], "a disk that is quick again is waited for again"


async def test_one_slow_sync_changes_nothing(commits: Committer, disk: Disk, fd: int) -> None:
    for took in (0.0001, 0.01, 0.0001, 0.0001):
        disk.sync_seconds = took
        await commit(commits, fd)
    assert disk.threads == [False] * 4


async def test_large_rows_go_to_the_thread(commits: Committer, disk: Disk, fd: int) -> None:
    data = bytes(range(256)) * (INLINE_BYTES // 256) + b"!"
    assert await commit(commits, fd, data) is None
    assert disk.threads == [True]
    assert os.pread(fd, len(data), 0) == data


@pytest.mark.parametrize("size", [100, INLINE_BYTES + 1])
async def test_an_error_is_told_not_raised(
    commits: Committer, disk: Disk, fd: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", broken)
    error = await commit(commits, fd, b"x" * size)
    assert isinstance(error, OSError)
    assert error.errno == errno.EIO


async def test_a_write_in_pieces_is_finished(commits: Committer, fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, bytes(data[:3]), offset))
    assert await commit(commits, fd, b"0123456789") is None
    assert os.pread(fd, 100, 0) == b"0123456789"

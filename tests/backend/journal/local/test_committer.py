"""Commits: each write is atomic, errors are reported, and callbacks run only after the caller is ready for them."""

import asyncio
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.journal.local.committer import Committer


@pytest.fixture
def commits() -> Iterator[Committer]:
    made = Committer()
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


async def test_one_after_another(commits: Committer, fd: int) -> None:
    for place in range(50):
        assert await commit(commits, fd, b"%02d" % place, 2 * place) is None
    assert os.pread(fd, 1000, 0) == b"".join(b"%02d" % place for place in range(50))


async def test_an_error_is_reported_not_raised(commits: Committer, fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", broken)
    error = await commit(commits, fd)
    assert isinstance(error, OSError)
    assert error.errno == errno.EIO
    monkeypatch.undo()
    assert await commit(commits, fd) is None, "the thread has not ended by it"


async def test_a_write_in_pieces_is_finished(commits: Committer, fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, bytes(data[:3]), offset))
    assert await commit(commits, fd, b"0123456789") is None
    assert os.pread(fd, 100, 0) == b"0123456789"

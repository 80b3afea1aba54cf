"""A disk in memory and in virtual time that fails like a disk.

Everything random comes from the generator that it is given, all waiting from the running loop, so that a run repeats
itself.  What it does that a kind disk would not:

* a power cut (:meth:`SimDisk.crash`) keeps of every write that was not synced a random choice of its 512-byte sectors,
  and of every name that was made or removed since its folder was synced either the old or the new state (so a file that
  was renamed may have both names, or none);
* a failed sync leaves pages clean that never reached the disk, and the next sync succeeds;
* it fills up, flips bits, and loses power in the middle of a chain of operations.
"""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from random import Random
from typing import ParamSpec, TypeVar

from backend.journal.local.disk import Pauses

P = ParamSpec("P")
T = TypeVar("T")

SECTOR_BYTES = 512
BLOCK_BYTES = 4096


class PowerCut(BaseException):
    """The machine has stopped in the middle of an operation.  The running process must not continue."""


class _File:
    def __init__(self) -> None:
        self.seen = bytearray()
        """Content for readers (page cache)."""
        self.synced = bytearray()
        """Durable content."""
        self.dirty: list[tuple[int, bytes]] = []
        """Writes since the last sync, in order."""
        self.resized = False
        self.locked_by: int | None = None

    def sync(self) -> None:
        self.synced[:] = self.seen
        self.dirty.clear()
        self.resized = False

    def after_power_loss(self, random: Random) -> bytearray:
        """Content after a loss of power now."""
        size = len(self.seen) if self.resized and random.random() < 0.5 else len(self.synced)
        found = self.synced[:size].ljust(size, b"\0")
        for offset, data in self.dirty:
            kept = random.choice((0.0, 0.5, 0.9, 1.0))
            at = 0
            while at < len(data):
                end = min(len(data), at + SECTOR_BYTES - (offset + at) % SECTOR_BYTES)
                if random.random() < kept and offset + end <= size:
                    found[offset + at : offset + end] = data[at:end]
                at = end
        return found


class SimDisk:
    """Implements :class:`backend.journal.local.disk.Disk`."""

    def __init__(
        self,
        random: Random,
        *,
        capacity_bytes: int = 1 << 40,
        latency_seconds: tuple[float, float] = (0.0001, 0.002),
        cold: float = 0.0,
    ) -> None:
        self.random = random
        self.capacity_bytes = capacity_bytes
        self.latency_seconds = latency_seconds
        self.cold = cold
        """Probability that a read finds nothing in the page cache."""
        self.failing_syncs = 0
        """Number of following syncs that fail with EIO."""
        self.unreadable: set[str] = set()
        """Reads of these files fail with EIO."""
        self.bad_blocks: set[tuple[str, int]] = set()
        """So do reads that touch these blocks of a file, of 4096 bytes each, until they are written again."""
        self.passing = 0.0
        """Share of the times that a file cannot be opened, or read, for a reason that passes."""
        self._passing_random = Random(repr(random.getstate()[1][:4]))
        self.on_power_cut: Callable[[], None] | None = None
        self.operations = 0
        """Changing operations so far."""
        self._cut_at: int | None = None
        self.is_cut = False
        """True once an operation has failed because the power was cut, until the process has ended."""
        self._life = 0
        self._names: dict[str, _File | None] = {"/": None}
        """Path to file; None for a folder."""
        self._durable: dict[str, _File | None] = dict(self._names)
        self._fds: dict[int, tuple[str, _File]] = {}
        self._next_fd = 1000

    # --- what tests do to it ---

    def crash(self) -> None:
        """Cut the power and restore it.  The process is lost, with its descriptors, locks and unfinished work."""
        for path in sorted(set(self._names) | set(self._durable)):
            now, then = self._names.get(path), self._durable.get(path)
            if (path in self._names, now) != (path in self._durable, then) and self.random.random() < 0.5:
                if path in self._names:
                    self._durable[path] = now
                else:
                    self._durable.pop(path, None)
        self._names.clear()  # in place: processes of one machine share it
        self._names.update(self._durable)
        for file in self._files():
            file.seen = file.after_power_loss(self.random)
            file.sync()
        self._process_ends()

    def kill(self) -> None:
        """Kill the process, not the machine: written data stay in the page cache."""
        self._process_ends()

    def cut_power_at(self, operations: int) -> None:
        """Lose power before the changing operation with this number (see :attr:`operations`)."""
        self._cut_at = operations

    def flip_bit(self, path: str, offset: int, bit: int | None = None) -> None:
        file = self._file(path)
        mask = 1 << (self.random.randrange(8) if bit is None else bit)
        file.seen[offset] ^= mask
        if offset < len(file.synced):
            file.synced[offset] ^= mask

    def contents(self, path: str) -> bytes:
        return bytes(self._file(path).seen)

    def overwrite(self, path: str, data: bytes) -> None:
        """Replace a file's bytes, or make it, behind everyone's back."""
        file = self._names.get(path) or _File()
        file.seen[:] = data
        file.sync()
        self._names[path] = self._durable[path] = file

    def paths(self) -> list[str]:
        return sorted(path for path, file in self._names.items() if file is not None)

    def _files(self) -> list[_File]:
        return list({id(f): f for f in (*self._names.values(), *self._durable.values()) if f is not None}.values())

    def _process_ends(self) -> None:
        self._life += 1
        self._fds.clear()
        self._cut_at = None
        self.is_cut = False
        for file in self._files():
            file.locked_by = None

    # --- the primitives ---

    def _file(self, path: str) -> _File:
        file = self._names.get(path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return file

    def _fd(self, fd: int) -> tuple[str, _File]:
        if fd not in self._fds:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._fds[fd]

    def _changes(self) -> None:
        if self._cut_at is not None and self.operations >= self._cut_at:
            self.is_cut = True
            if self.on_power_cut is not None:
                asyncio.get_running_loop().call_soon(self.on_power_cut)
            raise PowerCut
        self.operations += 1

    def _passes(self, *numbers: int) -> None:
        if self.passing and self._passing_random.random() < self.passing:
            number = self._passing_random.choice(numbers)
            raise OSError(number, os.strerror(number))

    def open(self, path: str) -> int:
        file = self._file(path)
        self._passes(errno.EMFILE, errno.ENFILE)
        return self._opened(path, file)

    def _opened(self, path: str, file: _File) -> int:
        self._next_fd += 1
        self._fds[self._next_fd] = (path, file)
        return self._next_fd

    def create(self, path: str) -> int:
        self._changes()
        if path in self._names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if os.path.dirname(path) not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self._passes(errno.EMFILE, errno.ENFILE)
        self._names[path] = _File()
        return self._opened(path, self._file(path))

    def close(self, fd: int) -> None:
        _, file = self._fd(fd)
        del self._fds[fd]
        if file.locked_by == fd:
            file.locked_by = None

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        self._changes()
        path, file = self._fd(fd)
        for block in range(offset // BLOCK_BYTES, -(-(offset + len(data)) // BLOCK_BYTES)):
            self.bad_blocks.discard((path, block))  # the device has put another one in its place
        growth = offset + len(data) - len(file.seen)
        if growth > 0:
            if growth > self.free_bytes("/"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            file.seen.extend(bytes(growth))
            file.resized = True
        file.seen[offset : offset + len(data)] = data
        file.dirty.append((offset, bytes(data)))

    def pread(self, fd: int, size_bytes: int, offset: int) -> bytes:
        path, file = self._fd(fd)
        self._passes(errno.ENOMEM, errno.EINTR)
        if path in self.unreadable or self._is_bad(path, offset, min(offset + size_bytes, len(file.seen))):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return bytes(file.seen[offset : offset + size_bytes])

    def _is_bad(self, path: str, start: int, end: int) -> bool:
        blocks = range(start // BLOCK_BYTES, -(-end // BLOCK_BYTES))
        return bool(self.bad_blocks) and any((path, block) in self.bad_blocks for block in blocks)

    def pread_now(self, fd: int, size_bytes: int, offset: int) -> bytes | None:
        return None if self.random.random() < self.cold else self.pread(fd, size_bytes, offset)

    def fdatasync(self, fd: int) -> None:
        self._changes()
        _, file = self._fd(fd)
        if self.failing_syncs:
            self.failing_syncs -= 1
            # The kernel has tried, and calls the pages clean.  Some are on the disk, some only look as if they were.
            on_disk = file.after_power_loss(self.random)
            if self.random.random() < 0.5:
                file.seen = bytearray(on_disk)
            file.synced = on_disk
            file.dirty.clear()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if file.dirty or file.resized:
            # Only what was written since: pages that an earlier, failed sync called clean stay off the disk.
            if len(file.synced) != len(file.seen):
                file.synced = file.synced[: len(file.seen)].ljust(len(file.seen), b"\0")
            for offset, data in file.dirty:
                end = min(len(file.synced), offset + len(data))
                file.synced[offset:end] = data[: end - offset]
            file.dirty.clear()
            file.resized = False

    def preallocate(self, fd: int, size_bytes: int, pauses: Pauses | None = None) -> None:
        self.pwrite(fd, bytes(size_bytes), 0)
        self.fdatasync(fd)

    def truncate(self, fd: int, size_bytes: int) -> None:
        self._changes()
        _, file = self._fd(fd)
        file.seen = file.seen[:size_bytes].ljust(size_bytes, b"\0")
        file.resized = True

    def size(self, path: str) -> int:
        return len(self._file(path).seen)

    def rename(self, path: str, new_path: str) -> None:
        self._changes()
        file = self._names[new_path] = self._file(path)
        del self._names[path]
        for fd, (_, opened) in self._fds.items():
            if opened is file:
                self._fds[fd] = (new_path, file)
        if path in self.unreadable:
            self.unreadable.remove(path)
            self.unreadable.add(new_path)
        self.bad_blocks = {(new_path if name == path else name, block) for name, block in self.bad_blocks}

    def unlink(self, path: str) -> None:
        self._changes()
        self._file(path)
        del self._names[path]

    def mkdir(self, path: str) -> None:
        self._changes()
        while path not in self._names:
            self._names[path] = self._durable[path] = None
            path = os.path.dirname(path)

    def rmdir(self, path: str) -> None:
        self._changes()
        if self.listdir(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        del self._names[path]

    def listdir(self, path: str) -> list[str]:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return sorted(os.path.basename(name) for name in self._names if os.path.dirname(name) == path and name != "/")

    def fsync_dir(self, path: str) -> None:
        self._changes()
        for name in set(self._names) | set(self._durable):
            if os.path.dirname(name) == path and name != "/":
                if name in self._names:
                    self._durable[name] = self._names[name]
                else:
                    del self._durable[name]

    def free_bytes(self, path: str) -> int:
        return max(0, self.capacity_bytes - sum(len(file.seen) for file in self._names.values() if file is not None))

    def lock(self, path: str) -> int:
        if path not in self._names:
            self.close(self.create(path))
        file = self._file(path)
        if file.locked_by is not None:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
        file.locked_by = self.open(path)
        return file.locked_by

    # --- in virtual time ---

    def _delay(self) -> float:
        return self.random.uniform(*self.latency_seconds)

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        life = self._life

        def work() -> None:
            if life != self._life or future.cancelled():
                return
            try:
                result = function(*args, **kwargs)
            except PowerCut:
                return  # no process is left to be notified
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        loop.call_later(self._delay(), work)
        return future

    def commit(self, fd: int, data: bytes, offset: int, done: Callable[[BaseException | None], None]) -> None:
        loop = asyncio.get_running_loop()
        life = self._life

        def write() -> None:
            step(lambda: self.pwrite(fd, data, offset), lambda: loop.call_later(self._delay(), sync))

        def sync() -> None:
            step(lambda: self.fdatasync(fd), lambda: done(None))

        def step(action: Callable[[], None], following: Callable[[], object]) -> None:
            if life != self._life:
                return
            try:
                action()
            except PowerCut:
                return
            except OSError as error:
                done(error)
                return
            following()

        loop.call_later(self._delay(), write)

"""Faults at named steps of a server's disk operations, without a change to the server.

:func:`install` intercepts the operating system's file calls (``os.pwrite``, ``os.fdatasync``, ...) and maps each call
to a step of an operation::

    commit.write  commit.sync                    a group commit
    segment.create  preallocate.write  .sync     a new segment
    piece.create  piece.write  piece.sync        a file of checkpoint pieces
    folder.sync                                  of any folder of the journal
    segment.rename  spare.rename                 a segment that is kept to be used again, and its use
    segment.unlink  piece.unlink                 deletion of files that are no longer needed
    tail.write  tail.sync                        recovery rewrites the end of a log
    trim.truncate  trim.sync                     recovery frees the unused space of a log
    shards.update  log.update  incarnation.new   metadata, around the call
    metadata.commit                              metadata, around SQLite's COMMIT

Each step has the moments ``before`` and ``after``, and a write has ``half``: half of its bytes are in the file.  At the
``nth`` occurrence of a step's moment, its fault is injected:

- ``kill``: SIGKILL.  Written data are in the page cache and stay.
- ``power``: data written and never synced are lost, sector by sector as determined by a seed; created or removed files
  disappear or return if their folder was not synced; then SIGKILL.
- ``eio``, ``enospc``: the call fails with that error (at ``before`` only), ``times`` times.
- ``eio_lost``: like ``eio``, and the kernel has dropped the pages.

With ``flag`` a fault is injected only while that file exists.  SIGUSR1 causes ``power`` at once.
"""

import errno
import fnmatch
import functools
import os
import signal
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, NoReturn, ParamSpec, TypeVar

import msgspec

from backend.journal.local import committer
from metadata_service.sqlite.entries import SQLiteEntries

P = ParamSpec("P")
T = TypeVar("T")

VARIABLE = "FAULTS"
"""Environment variable with a :class:`FaultPlan` as JSON."""
SECTOR_BYTES = 512

_committing = threading.local()
"""Thread-local ``now``: true while this thread is in a commit."""

_os_open, _os_close, _os_pwrite, _os_pread = os.open, os.close, os.pwrite, os.pread
_os_fdatasync, _os_fsync, _os_ftruncate = os.fdatasync, os.fsync, os.ftruncate
_os_unlink, _os_rename = os.unlink, os.rename


class PlannedFault(msgspec.Struct, forbid_unknown_fields=True):
    step: str
    """Step such as ``commit.sync.before``; may be a pattern such as ``*.sync.before``."""
    action: str = "kill"
    nth: int = 1
    times: int = 1
    """Number of calls that fail, from the ``nth`` on (errors only)."""
    flag: str = ""


class FaultPlan(msgspec.Struct, forbid_unknown_fields=True):
    faults: list[PlannedFault] = []
    folder: str = ""
    """Folder of the journal; files outside get no faults."""
    seed: int = 0

    def environment(self) -> dict[str, str]:
        return {VARIABLE: msgspec.json.encode(self).decode()}


class Hooks:
    """Intercepted file calls of this process."""

    def __init__(self, plan: FaultPlan) -> None:
        self._plan = plan
        self._counts = [0] * len(plan.faults)
        self._random = Random(plan.seed)
        self._lock = threading.RLock()
        self._paths: dict[int, str] = {}
        self._last: dict[int, str] = {}
        """Operation that a segment file was last written for."""
        self._unsynced: dict[str, list[tuple[int, bytes, int]]] = {}
        """Writes to a file that a power loss would destroy: (offset, bytes that were there before, length)."""
        self._made: dict[str, bool] = {}
        """Files whose entry in the folder may not be durable."""
        self._graves = f"{plan.folder}.graves"
        self._removed: dict[str, str] = {}
        """Removed files whose removal may not be durable, and their present paths."""

    # --- what happens at a step ---------------------------------------------------------------------------

    def at(self, step: str, path: str = "") -> None:
        """Handle the moment of a step.  Raises :class:`OSError`, or ends the process, if that is planned."""
        for index, fault in enumerate(self._plan.faults):
            if not fnmatch.fnmatchcase(step, fault.step) or (fault.flag and not os.path.exists(fault.flag)):
                continue
            with self._lock:
                self._counts[index] += 1
                count = self._counts[index]
            if fault.nth <= count < fault.nth + fault.times:
                self._do(fault.action, step, path)

    def _do(self, action: str, step: str, path: str) -> None:
        if action == "kill":
            self._say(f"killed at {step}")
            _end()
        elif action == "power":
            self._say(f"lost power at {step}")
            self.lose_power()
        elif action == "enospc":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        else:
            assert action in ("eio", "eio_lost"), action
            if action == "eio_lost":
                with self._lock:
                    self._forget_writes(path, all_of_them=True)
            if step.startswith("metadata"):
                raise sqlite3.OperationalError("disk I/O error")
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _say(self, text: str) -> None:
        os.write(2, f"faults: {text}\n".encode())

    def lose_power(self) -> NoReturn:
        """Lose data that may not be on the disk, and end."""
        self._lock.acquire()  # never released: nothing is written any more
        try:
            self._lose(self._random.choice(("all", "none", "some", "some")))
        finally:
            _end()

    def _lose(self, fate: str) -> None:
        if fate == "none":
            return
        for path in list(self._unsynced):
            self._forget_writes(path, all_of_them=fate == "all")
        for path in self._made:
            if (fate == "all" or self._random.random() < 0.5) and os.path.exists(path):
                _os_unlink(path)
        for path, grave in self._removed.items():
            known = os.path.isdir(os.path.dirname(path)) and not os.path.exists(path)
            if known and (fate == "all" or self._random.random() < 0.5):
                os.link(grave, path)

    def _forget_writes(self, path: str, *, all_of_them: bool) -> None:
        unsynced = self._unsynced.pop(path, ())
        if not unsynced or not os.path.exists(path):
            return
        fd = _os_open(path, os.O_RDWR)
        for offset, old, length in reversed(unsynced):
            for start in range(0, length, SECTOR_BYTES):
                if all_of_them or self._random.random() < 0.5:
                    _os_pwrite(
                        fd,
                        old[start : start + SECTOR_BYTES].ljust(min(SECTOR_BYTES, length - start), b"\0"),
                        offset + start,
                    )
        _os_close(fd)

    # --- the calls ----------------------------------------------------------------------------------------

    def _ours(self, path: str) -> bool:
        return path.startswith(self._plan.folder)

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        name = os.fspath(path) if dir_fd is None else ""
        if not isinstance(name, str) or not self._ours(name):
            return _os_open(path, flags, mode, dir_fd=dir_fd)
        creates = bool(flags & os.O_EXCL)
        if creates:
            self.at(f"{_kind(name)}.create.before", name)
        fd = _os_open(name, flags, mode)
        with self._lock:
            self._paths[fd] = name
            if creates:
                self._made[name] = True
        if creates:
            self.at(f"{_kind(name)}.create.after", name)
        return fd

    def close(self, fd: int) -> None:
        with self._lock:
            self._paths.pop(fd, None)
            self._last.pop(fd, None)
            _os_close(fd)

    def pwrite(self, fd: int, data: Any, offset: int) -> int:
        path = self._paths.get(fd)
        if path is None:
            return _os_pwrite(fd, data, offset)
        step = self._purpose(fd, path, data)
        self.at(f"{step}.write.before", path)
        view = memoryview(data)
        with self._lock:
            self._unsynced.setdefault(path, []).append((offset, _os_pread(fd, len(view), offset), len(view)))
            half = _os_pwrite(fd, view[: len(view) // 2], offset)
        self.at(f"{step}.write.half", path)
        with self._lock:
            written = half + _os_pwrite(fd, view[half:], offset + half)
        self.at(f"{step}.write.after", path)
        return written

    def _purpose(self, fd: int, path: str, data: Any) -> str:
        kind = _kind(path)
        if kind in ("segment", "spare"):
            if getattr(_committing, "now", False):
                return "commit"
            kind = "tail" if any(data) else "preallocate"
        self._last[fd] = kind
        return kind

    def fdatasync(self, fd: int) -> None:
        self._sync(fd, _os_fdatasync)

    def fsync(self, fd: int) -> None:
        self._sync(fd, _os_fsync)

    def _sync(self, fd: int, call: Callable[[int], None]) -> None:
        path = self._paths.get(fd)
        if path is None:
            return call(fd)
        step = "commit" if getattr(_committing, "now", False) else self._last.get(fd, "folder")
        with self._lock:
            count = len(self._unsynced.get(path, ()))
            names = [name for name in (*self._made, *self._removed) if os.path.dirname(name) == path]
        self.at(f"{step}.sync.before", path)
        call(fd)
        with self._lock:
            del self._unsynced.get(path, [])[:count]
            for name in names:
                self._made.pop(name, None)
                grave = self._removed.pop(name, None)
                if grave is not None:
                    _os_unlink(grave)
        self.at(f"{step}.sync.after", path)
        return None

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        name = os.fspath(path) if dir_fd is None else ""
        if not isinstance(name, str) or not self._ours(name):
            return _os_unlink(path, dir_fd=dir_fd)
        self.at(f"{_kind(name)}.unlink.before", name)
        with self._lock:
            if name not in self._made and name not in self._removed and os.path.exists(name):
                self._removed[name] = self._grave_of(name)
            self._made.pop(name, None)
            self._unsynced.pop(name, None)
            _os_unlink(name)
        self.at(f"{_kind(name)}.unlink.after", name)
        return None

    def rename(self, path: Any, new_path: Any, **options: Any) -> None:
        name, new_name = os.fspath(path), os.fspath(new_path)
        if options or not isinstance(name, str) or not self._ours(name):
            return _os_rename(path, new_path, **options)
        self.at(f"{_kind(name)}.rename.before", name)
        with self._lock:
            if name not in self._made and name not in self._removed:
                self._removed[name] = self._grave_of(name)
            self._made.pop(name, None)
            self._made[new_name] = True
            if name in self._unsynced:
                self._unsynced[new_name] = self._unsynced.pop(name)
            for fd, opened in self._paths.items():
                if opened == name:
                    self._paths[fd] = new_name
            _os_rename(name, new_name)
        self.at(f"{_kind(name)}.rename.after", name)
        return None

    def _grave_of(self, name: str) -> str:
        os.makedirs(self._graves, exist_ok=True)
        grave = f"{self._graves}/{self._random.getrandbits(64):x}"
        os.link(name, grave)
        return grave

    def ftruncate(self, fd: int, length: int) -> None:
        path = self._paths.get(fd)
        if path is None:
            return _os_ftruncate(fd, length)
        self.at("trim.truncate.before", path)
        with self._lock:
            self._last[fd] = "trim"
            self._unsynced.pop(path, None)
            _os_ftruncate(fd, length)
        self.at("trim.truncate.after", path)
        return None


def _kind(path: str) -> str:
    name = os.path.basename(path)
    if name.startswith("ckpt-"):
        return "piece"
    return {".log": "segment", ".spare": "spare"}.get(os.path.splitext(name)[1], "file")


def _end() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("nothing comes after SIGKILL")


def install(plan: FaultPlan) -> None:
    """Intercept this process's file calls from now on.  To be called before any thread is started."""
    hooks = Hooks(plan)
    for name in ("open", "close", "pwrite", "fdatasync", "fsync", "unlink", "rename", "ftruncate"):
        setattr(os, name, getattr(hooks, name))
    _around(hooks, "update_shards", "shards.update")
    _around(hooks, "update_log", "log.update")
    _around(hooks, "new_incarnation", "incarnation.new")
    _watch_commits()
    _watch_metadata(hooks)
    # Blocked here and thereby in all threads, so that the waiting thread gets it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    threading.Thread(target=_wait_for_power_loss, args=(hooks,), name="power", daemon=True).start()


def _wait_for_power_loss(hooks: Hooks) -> None:
    signal.sigwait({signal.SIGUSR1})
    hooks.lose_power()


def _around(hooks: Hooks, method: str, step: str) -> None:
    original: Callable[..., Awaitable[Any]] = getattr(SQLiteEntries, method)

    @functools.wraps(original)
    async def watched(*args: Any, **kwargs: Any) -> Any:
        hooks.at(f"{step}.before")
        result = await original(*args, **kwargs)
        hooks.at(f"{step}.after")
        return result

    setattr(SQLiteEntries, method, watched)


def _watch_commits() -> None:
    original = committer.write_durably

    def watched(fd: int, data: bytes, offset: int) -> BaseException | None:
        _committing.now = True
        try:
            return original(fd, data, offset)
        finally:
            _committing.now = False

    committer.write_durably = watched


def _watch_metadata(hooks: Hooks) -> None:
    class Connection(sqlite3.Connection):
        def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
            if sql != "COMMIT":
                return super().execute(sql, *args)
            hooks.at("metadata.commit.before")
            cursor = super().execute(sql, *args)
            hooks.at("metadata.commit.after")
            return cursor

    connect = sqlite3.connect

    def connect_watched(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        kwargs.setdefault("factory", Connection)
        connection: sqlite3.Connection = connect(*args, **kwargs)
        return connection

    sqlite3.connect = connect_watched  # type: ignore[assignment]

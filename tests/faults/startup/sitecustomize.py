"""Start-up code of Python processes under test, which injects faults into their clock and disk while they run.

Only a process whose ``PYTHONPATH`` names this folder loads it.  With ``FAULTS_SEALING``, ``python -m
billing.lake.upload`` ends at planned steps (``sealing_faults``).  With ``FAULTS_AT_START``: a folder in which

* ``NAME.clock`` has the offset in seconds of the clock of the process ``NAME`` (not of its monotonic clock),
* ``NAME.disk`` has the seconds by which each of its syncs is delayed,
* ``NAME.bad`` names a file and a number: this block of 4 KiB of the file cannot be read (EIO).

``NAME`` is ``FAULTS_NAME``, or else the last word of its command line, as the children of ``holdfast serve`` have it.
The files are read at most every tenth of a second, and a missing file means no fault.
"""

import errno
import os
import sys
import time
from typing import Any

POLL_SECONDS = 0.1
BLOCK_BYTES = 4096


class _Text:
    """Content of a file; empty if it does not exist."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._at = -POLL_SECONDS
        self._value = ""

    def __call__(self) -> str:
        now = time.monotonic()
        if now - self._at >= POLL_SECONDS:
            self._at = now
            try:
                with open(self._path) as file:
                    self._value = file.read()
            except FileNotFoundError:
                self._value = ""
            except OSError:
                pass  # the process has no free descriptor: keep the former content
        return self._value


def _install(folder: str, name: str) -> None:
    clock, disk, bad = (_Text(f"{folder}/{name}.{kind}") for kind in ("clock", "disk", "bad"))
    right_time, right_time_ns = time.time, time.time_ns
    right_fsync, right_fdatasync = os.fsync, os.fdatasync

    right_pread, right_preadv = os.pread, os.preadv

    def off() -> float:
        return float(clock() or 0)

    def slow() -> float:
        return float(disk() or 0)

    def is_bad(file: int, size_bytes: int, offset: int) -> bool:
        if not bad():
            return False
        path, _, block = bad().rpartition(" ")
        start = int(block) * BLOCK_BYTES
        return offset < start + BLOCK_BYTES and start < offset + size_bytes and same(file, path)

    def same(file: int, path: str) -> bool:
        return os.readlink(f"/proc/self/fd/{file}") == path

    def pread(file: int, size_bytes: int, offset: int) -> bytes:
        if is_bad(file, size_bytes, offset):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return right_pread(file, size_bytes, offset)

    def preadv(file: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if is_bad(file, sum(map(len, buffers)), offset):
            raise BlockingIOError(errno.EAGAIN, "not in memory: it has to be read")
        return right_preadv(file, buffers, offset, flags)

    def fsync(file: int) -> None:
        time.sleep(slow())
        right_fsync(file)

    def fdatasync(file: int) -> None:
        time.sleep(slow())
        right_fdatasync(file)

    time.time = lambda: right_time() + off()
    time.time_ns = lambda: right_time_ns() + int(off() * 1e9)
    os.fsync, os.fdatasync = fsync, fdatasync  # type: ignore[assignment]
    os.pread, os.preadv = pread, preadv


if "FAULTS_AT_START" in os.environ:
    _install(os.environ["FAULTS_AT_START"], os.environ.get("FAULTS_NAME", sys.orig_argv[-1]))

if "FAULTS_SEALING" in os.environ and "billing.lake.upload" in sys.orig_argv:
    import sealing_faults  # type: ignore[import-not-found]

    sealing_faults.install(os.environ["FAULTS_SEALING"])

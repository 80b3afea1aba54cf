"""What Python runs first in a process under test: its clock and its disk can be made wrong while it runs.

Only a process whose ``PYTHONPATH`` names this folder sees it.  With ``FAULTS_SEALING``, ``python -m billing.seal`` ends
at planned steps (``sealing_faults``).  With ``FAULTS_AT_START``: a folder in which

* ``NAME.clock`` says by how many seconds the clock of the process ``NAME`` is off (the monotonic clock is not),
* ``NAME.disk`` says how many seconds each of its syncs takes longer.

``NAME`` is ``FAULTS_NAME``, or else the last word of its command line, as the children of ``holdfast serve`` have it.
The files are looked at every tenth of a second at most, and no file is no fault.
"""

import os
import sys
import time

LOOKED_SECONDS = 0.1


class _Number:
    """The number in a file; 0 without it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._at = -LOOKED_SECONDS
        self._value = 0.0

    def __call__(self) -> float:
        now = time.monotonic()
        if now - self._at >= LOOKED_SECONDS:
            self._at = now
            try:
                with open(self._path) as file:
                    self._value = float(file.read() or 0)
            except FileNotFoundError:
                self._value = 0.0
        return self._value


def _install(folder: str, name: str) -> None:
    off, slow = _Number(f"{folder}/{name}.clock"), _Number(f"{folder}/{name}.disk")
    right_time, right_time_ns = time.time, time.time_ns
    right_fsync, right_fdatasync = os.fsync, os.fdatasync

    def fsync(file: int) -> None:
        time.sleep(slow())
        right_fsync(file)

    def fdatasync(file: int) -> None:
        time.sleep(slow())
        right_fdatasync(file)

    time.time = lambda: right_time() + off()
    time.time_ns = lambda: right_time_ns() + int(off() * 1e9)
    os.fsync, os.fdatasync = fsync, fdatasync  # type: ignore[assignment]


if "FAULTS_AT_START" in os.environ:
    _install(os.environ["FAULTS_AT_START"], os.environ.get("FAULTS_NAME", sys.orig_argv[-1]))

if "FAULTS_SEALING" in os.environ and "billing.seal" in sys.orig_argv:
    import sealing_faults  # type: ignore[import-not-found]

    sealing_faults.install(os.environ["FAULTS_SEALING"])

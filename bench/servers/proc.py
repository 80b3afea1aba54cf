"""Resource usage of a server, and facts of the machine, from the kernel.  Linux only (``/proc``)."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_UTIME = 11
"""Index of utime among the fields of /proc/PID/stat that follow the command's closing bracket (proc(5): field 14)."""
_STOP_SECONDS = 30.0


def tree(pid: int) -> list[int]:
    """Return the ids of the process and its descendants."""
    found = [pid]
    for each in found:
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            with suppress(OSError):  # it has just ended
                found.extend(int(child) for child in task.read_text().split())
    return found


def cpu_seconds(pid: int) -> float:
    """Return user and system time of the process tree, all threads, to 10 ms.  Source: /proc/PID/stat."""
    return sum(cpu_seconds_of(each) for each in tree(pid))


def cpu_seconds_of(pid: int) -> float:
    """Return user and system time of this process alone, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[_UTIME]) + int(fields[_UTIME + 1])) / TICKS_PER_SECOND


def rss_mib(pid: int) -> float:
    """Return resident memory of the process tree in MiB, mapped files included.  Source: VmRSS of /proc/PID/status."""
    total_kib = 0
    for each in tree(pid):
        for line in Path(f"/proc/{each}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                total_kib += int(line.split()[1])
    return total_kib / 1024


def pause(pid: int) -> None:
    """Send SIGSTOP, and return once every thread has stopped: on a busy machine, some go on for a while.

    Raises TimeoutError.
    """
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + _STOP_SECONDS
    while running := [task for task in Path(f"/proc/{pid}/task").iterdir() if _state(task) not in ("T", "Z", "X")]:
        if time.monotonic() > end:
            raise TimeoutError(f"{len(running)} threads of process {pid} run {_STOP_SECONDS:g} s after SIGSTOP")
        time.sleep(0.001)


def _state(task: Path) -> str:
    """State of a thread, from its ``stat``; X: it has ended."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def child_name(pid: int) -> str:
    """Return a supervisor's name for this child process; empty: it is no such process, or has ended."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return (
        arguments[arguments.index(b"holdfast.process.child") + 1].decode()
        if b"holdfast.process.child" in arguments
        else ""
    )


class MachineInfo(msgspec.Struct):
    """Machine and time of a run."""

    date: str
    commit: str
    uncommitted: bool
    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    java: str
    load_average: float
    """Load average of the last minute before the run: the machine's other work."""
    fdatasync_ms: float
    """Median time of an fdatasync after a write of 4 KiB, on the disk of the servers' data."""


def machine(folder: Path) -> MachineInfo:
    """Return the facts of this machine; ``folder`` is the folder of servers' data."""
    cpu = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return MachineInfo(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=_said("git", "rev-parse", "HEAD"),
        uncommitted=bool(_said("git", "status", "--porcelain", "--untracked-files=no")),
        cpu=cpu,
        cores=os.cpu_count() or 0,
        memory_gib=round(pages / 2**30, 1),
        kernel=platform.release(),
        python=platform.python_version(),
        java=_said("java", "-version").partition("\n")[0],
        load_average=round(os.getloadavg()[0], 2),
        fdatasync_ms=_fdatasync_ms(folder),
    )


def _said(*command: str) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _fdatasync_ms(folder: Path) -> float:
    path = folder / "probe"
    took = []
    with path.open("wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
        os.fsync(file.fileno())
        for n in range(100):
            os.pwrite(file.fileno(), b"p" * 4096, n * 4096)
            started_at = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - started_at)
    path.unlink()
    return round(sorted(took)[len(took) // 2] * 1000, 3)

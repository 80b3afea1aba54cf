"""Resource usage and state of processes, from the kernel.  Linux only (``/proc``)."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

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


def cpu_nanoseconds(pid: int) -> int:
    """Return the time on a CPU of this process alone, all living threads.  Source: /proc/PID/task/*/schedstat."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it has just ended
            total += int((task / "schedstat").read_text().split()[0])
    return total


def rss_mib(pid: int) -> float:
    """Return resident memory of the process tree in MiB, mapped files included.  Source: VmRSS of /proc/PID/status."""
    total_kib = 0
    for each in tree(pid):
        for line in Path(f"/proc/{each}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                total_kib += int(line.split()[1])
    return total_kib / 1024


def pause(pid: int) -> None:
    """Send SIGSTOP, and return once every thread has stopped: on a busy machine, some continue for a while.

    Raises TimeoutError.
    """
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + _STOP_SECONDS
    while running := [task for task in Path(f"/proc/{pid}/task").iterdir() if _state(task) not in ("T", "Z", "X")]:
        if time.monotonic() > end:
            raise TimeoutError(f"{len(running)} threads of process {pid} run {_STOP_SECONDS:g} s after SIGSTOP")
        time.sleep(0.001)


def is_running(pid: int) -> bool:
    """Return whether the process has not ended; one that was only not reaped yet has."""
    return _state(Path(f"/proc/{pid}")) not in ("Z", "X")


def _state(task: Path) -> str:
    """State of a process or a thread, from its ``stat``; X: it has ended."""
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

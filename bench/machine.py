"""Facts of the machine and the time of a run of the bench.  Linux only (``/proc``)."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from telemetry.build import is_compiled


class MachineInfo(msgspec.Struct):
    """Machine and time of a run."""

    date: str
    commit: str
    uncommitted: bool
    build: str
    """Measured build of Holdfast: ``sources``, or ``compiled`` (``make compiled``)."""
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
        commit=_output("git", "rev-parse", "HEAD"),
        uncommitted=bool(_output("git", "status", "--porcelain", "--untracked-files=no")),
        build="compiled" if is_compiled() else "sources",
        cpu=cpu,
        cores=os.cpu_count() or 0,
        memory_gib=round(pages / 2**30, 1),
        kernel=platform.release(),
        python=platform.python_version(),
        java=_output("java", "-version").partition("\n")[0],
        load_average=round(os.getloadavg()[0], 2),
        fdatasync_ms=_fdatasync_ms(folder),
    )


def _output(*command: str) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=Path(__file__).parent,
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


FILES_BESIDE_CONNECTIONS = 512
"""Open files of a process that are no connections, and some to spare."""


def allow_many_files() -> None:
    """Raise the limit on descriptors for thousands of connections, here and in the servers, which inherit it."""
    files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))


def connections_max() -> int:
    """Return the number of connections for which one process here may open files."""
    files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return sys.maxsize if files_max == resource.RLIM_INFINITY else files_max - FILES_BESIDE_CONNECTIONS

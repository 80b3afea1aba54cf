"""Metrics of every process: CPU, memory, open files, and lag of the event loop."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import threading
import time
from typing import Final

from telemetry.metrics import Histogram, Readings, Registry

SAMPLE_SECONDS: Final = 0.5
LAG: Final = Histogram(
    "holdfast_loop_lag_seconds",
    "Delay of an event-loop timer that fires twice a second: the time for which calls wait for the loop.",
    bounds=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0),
)


def register(registry: Registry, version: str, role: str) -> None:
    """Register the metrics of this process and its role."""
    started_at = time.time()
    about: Readings = {(version, platform.python_version(), role): 1.0}
    registry.declare(
        "holdfast_build_info",
        "Always 1: versions of Holdfast and Python, and the role of the process.",
        lambda: about,
        labels=("version", "python", "role"),
    )
    registry.declare("holdfast_process_start_time_seconds", "Start time of the process, Unix time.", lambda: started_at)
    registry.declare("holdfast_process_cpu_seconds_total", "CPU time used.", time.process_time)
    registry.declare("holdfast_process_resident_bytes", "Resident memory.", _resident_bytes)
    registry.declare("holdfast_process_open_files", "Open files and connections.", _open_files)
    registry.declare(
        "holdfast_process_open_files_limit",
        "Maximum number of open files that the system permits.",
        lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )
    registry.declare("holdfast_process_threads", "Number of threads.", threading.active_count)
    registry.add(LAG)


async def watch_lag() -> None:
    """Observe the loop's lag, until cancelled."""
    while True:
        due = time.monotonic() + SAMPLE_SECONDS
        await asyncio.sleep(SAMPLE_SECONDS)
        LAG.observe(max(0.0, time.monotonic() - due))


def _resident_bytes() -> float | None:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except FileNotFoundError:  # not Linux
        return None


def _open_files() -> float | None:
    try:
        return len(os.listdir("/proc/self/fd")) - 1
    except FileNotFoundError:
        return None

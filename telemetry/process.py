"""What every process tells of itself: processor, memory, open files, and how late its event loop is."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import threading
import time
from typing import Final

from telemetry.metrics import Histogram, Readings, Registry

LOOK_SECONDS: Final = 0.5
LAG: Final = Histogram(
    "holdfast_loop_lag_seconds",
    "How late the event loop was with a timer that rings twice a second: so long calls waited for their turn.",
    bounds=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0),
)


def tell(registry: Registry, version: str, role: str) -> None:
    """Show what this process, of this role, uses."""
    began = time.time()
    about: Readings = {(version, platform.python_version(), role): 1.0}
    registry.tell(
        "holdfast_build_info",
        "Always 1: the version of Holdfast and of Python, and what the process is.",
        lambda: about,
        labels=("version", "python", "role"),
    )
    registry.tell("holdfast_process_start_time_seconds", "When the process began, Unix time.", lambda: began)
    registry.tell("holdfast_process_cpu_seconds_total", "Processor time that was used.", time.process_time)
    registry.tell("holdfast_process_resident_bytes", "Memory that is in use.", _resident_bytes)
    registry.tell("holdfast_process_open_files", "Open files and connections.", _open_files)
    registry.tell(
        "holdfast_process_open_files_limit",
        "The most of them that the system lets the process have.",
        lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )
    registry.tell("holdfast_process_threads", "Threads.", threading.active_count)
    registry.add(LAG)


async def watch_lag() -> None:
    """Observe how late the loop is, until cancelled."""
    while True:
        due = time.monotonic() + LOOK_SECONDS
        await asyncio.sleep(LOOK_SECONDS)
        LAG.observe(max(0.0, time.monotonic() - due))


def _resident_bytes() -> float | None:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except FileNotFoundError:  # no Linux
        return None


def _open_files() -> float | None:
    try:
        return len(os.listdir("/proc/self/fd")) - 1
    except FileNotFoundError:
        return None

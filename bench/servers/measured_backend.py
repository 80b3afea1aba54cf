"""``python -m bench.servers.measured_backend backend``: ``holdfast`` with the CPU time of Cassandra's driver among its
metrics.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any, Final
from unittest import mock

from backend import instruments
from holdfast.commands.main import main
from metadata_service.cassandra.driver.connection import CassandraConnection
from telemetry.metrics import Registry

DRIVER: Final = "holdfast_bench_driver_cpu_seconds_total"
THREADS: Final = frozenset({"event_loop", "Task Scheduler", "Connection heartbeat"})
"""Names of the driver's threads."""


class DriverMeter:
    """CPU seconds of the driver: in its own threads, and in the event loop's thread, which sends statements."""

    def __init__(self) -> None:
        self._sending_s = 0.0
        self._send = CassandraConnection.send
        self._register = instruments.register

    def send(self, connection: CassandraConnection, *arguments: Any, **options: Any) -> None:
        """Send a statement like the method that this replaces."""
        started_at = time.thread_time()
        self._send(connection, *arguments, **options)
        self._sending_s += time.thread_time() - started_at

    def register(self, registry: Registry) -> None:
        """Register a backend's instruments, and this one."""
        self._register(registry)
        registry.declare(DRIVER, "CPU time of Cassandra's driver.", self._read, labels=("where",), series_max=2)

    def _read(self) -> dict[tuple[str, ...], float]:
        clocks = [
            time.pthread_getcpuclockid(thread.ident)
            for thread in threading.enumerate()
            if thread.name in THREADS and thread.ident is not None
        ]
        return {("sending",): self._sending_s, ("threads",): sum(map(time.clock_gettime, clocks))}


if __name__ == "__main__":
    meter = DriverMeter()
    with (
        mock.patch.object(CassandraConnection, "send", lambda *given, **options: meter.send(*given, **options)),
        mock.patch.object(instruments, "register", meter.register),
    ):
        sys.exit(main())

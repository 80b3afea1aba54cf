"""The price of a message on Cassandra: CPU by role, the driver's part of the backends, and rows of the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from bench.jobs import Sqs
from bench.load import Jobs, LoadGenerator
from bench.report import LoadMeasurement
from bench.run import CONNECTIONS, BenchRun, again
from bench.servers.cluster_server import HoldfastCluster
from bench.servers.measured_backend import DRIVER
from bench.servers.servers import HOST, ServerProcess
from tests.servers.scraping import samples, scrape, total

COUNTS = (1, 8, 32)
"""Numbers of connections."""
COLUMNS = (
    *("calls/s", "p50 ms", "p99 ms", "frontends", "backends", "of it the driver", "driver: sending", "driver: threads"),
    *("metadata, Redis", "Cassandra", "all", "messages a row", "fence reads a row"),
)


class JournalCounts(NamedTuple):
    """Totals of all backends at one moment."""

    rows: float
    fences: float
    sending_s: float
    """CPU seconds of the driver in the event loops' threads."""
    threads_s: float
    """CPU seconds of the driver's own threads."""


class _Meter:
    """CPU seconds by role and counts of the journal at both ends of a window."""

    def __init__(self, server: HoldfastCluster) -> None:
        self._server = server
        self._parts: list[dict[str, float]] = []
        self._pages: list[list[str]] = []

    def mark(self) -> None:
        """Read everything; the work of serving the metrics is outside the window."""
        steps = [self._read_parts, self._read_pages]
        for step in steps if self._parts else reversed(steps):
            step()

    def _read_parts(self) -> None:
        self._parts.append(self._server.parts())

    def _read_pages(self) -> None:
        self._pages.append([scrape(port) for port in self._server.metrics_ports])

    def prices(self, row: LoadMeasurement) -> dict[str, float]:
        """Return the figures of a window's load, by name; CPU in µs a message."""
        messages = max(row.messages, 1)
        began, ended = self._parts
        cpu = {part: (seconds - began.get(part, 0.0)) / messages * 1e6 for part, seconds in ended.items()}
        first, last = map(_counted, self._pages)
        counts = JournalCounts(*(late - early for early, late in zip(first, last, strict=True)))
        sending, threads = counts.sending_s / messages * 1e6, counts.threads_s / messages * 1e6
        return {
            "calls/s": row.calls_per_s,
            "p50 ms": row.p50_ms,
            "p99 ms": row.p99_ms,
            "frontends": cpu["frontend"],
            "backends": cpu["backend"],
            "of it the driver": sending + threads,
            "driver: sending": sending,
            "driver: threads": threads,
            "metadata, Redis": cpu["metadata"] + cpu["redis"],
            "Cassandra": cpu["cassandra"],
            "all": sum(cpu.values()),
            "messages a row": messages / max(counts.rows, 1),
            "fence reads a row": counts.fences / max(counts.rows, 1),
        }


def _counted(pages: Sequence[str]) -> JournalCounts:
    found = [samples(page) for page in pages]

    def count(name: str, **labels: str) -> float:
        return sum(total(one, name, **labels) for one in found)

    return JournalCounts(
        count("holdfast_journal_write_seconds_count"),
        count("holdfast_journal_fence_seconds_count"),
        count(DRIVER, where="sending"),
        count(DRIVER, where="threads"),
    )


async def price(run: BenchRun, server: ServerProcess) -> None:
    """Measure SendMessage, SendMessageBatch of 10 and ReceiveMessage of 10 with its deletes, on few and on many
    connections.
    """
    assert isinstance(server, HoldfastCluster)
    sqs = Sqs(server.signer)
    await _warm_up(run, server, sqs)
    nodes = len(server.cluster.cassandra.nodes)
    lines = [f"| nodes | work | connections | {' | '.join(COLUMNS)} |", f"|---:|---|{'---:|' * (len(COLUMNS) + 1)}"]
    for connections in COUNTS:
        url = server.create_queue(f"price-{connections}")
        works: tuple[tuple[str, Jobs], ...] = (
            ("send", sqs.send(again(url))),
            ("send batch", sqs.send_batch(again(url))),
            # A batch is sent in one call and received in two, so the queue does not run empty.
            ("receive", sqs.receive_and_delete(url)),
        )
        for work, jobs in works:
            prices = await _load(run, server, f"cluster-price {work}, {connections}", jobs, connections)
            cells = " | ".join(_cell(prices[column]) for column in COLUMNS)
            lines.append(f"| {nodes} | {work} | {connections} | {cells} |")
    run.book.notes.append("CPU in µs a message\n\n" + "\n".join(lines))


def _cell(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


async def _load(run: BenchRun, server: HoldfastCluster, name: str, jobs: Jobs, connections: int) -> dict[str, float]:
    meter = _Meter(server)
    row = await run.closed(name, server, jobs, connections=connections, on_mark=meter.mark)
    prices = meter.prices(row)
    for column, value in prices.items():
        if not column.startswith(("calls", "p50", "p99")):
            run.figure(name, server, column, value, "" if "row" in column else "µs a message")
    return prices


async def _warm_up(run: BenchRun, server: HoldfastCluster, sqs: Sqs) -> None:
    """Load the server until Cassandra's code is compiled."""
    # The first answer takes longest: it loads the library.
    for port in server.metrics_ports:
        await asyncio.to_thread(scrape, port)
    url = server.create_queue("price-warm-up")
    async with LoadGenerator(HOST, server.ports, CONNECTIONS) as load:
        for jobs in (sqs.send_batch(again(url)), sqs.receive_and_delete(url)):
            await load.closed(jobs, 0, run.plan.java_warm_up_s / 2, lambda: None)

"""The cost of observability: counted calls, measured writes, scrapes, and traces at their usual ratio."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.request
from collections.abc import AsyncIterator, Mapping

from bench.jobs import Sqs
from bench.run import BenchRun, again
from bench.servers.servers import HOST, Holdfast, Nothing, ServerProcess
from bench.sides import Side, in_turn
from tests.servers.cassandra_server import free_ports

SCRAPE_SECONDS = 5.0
"""Interval of scrapes; Prometheus uses 15 or 30 seconds."""


class Silent(Holdfast):
    """A server without counters and histograms."""

    name = "silent"

    def command(self) -> list[str]:
        python, option, _, *rest = super().command()
        return [python, option, "bench.servers.silent_server", *rest]


async def send(run: BenchRun, _: ServerProcess) -> None:
    """Measure SendMessage of a monitored server, in turn with SendMessage of one without counters."""
    with Silent() as silent:
        async with watched({}) as observed:
            sides = [
                Side("send-silent", silent, Sqs(silent.signer).send(again(silent.create_queue("send-silent")))),
                Side("send-observed", observed, Sqs(observed.signer).send(again(observed.create_queue("send-seen")))),
            ]
            silent_row, observed_row = await in_turn(run, sides)
            added = observed_row.cpu_us_per_call / silent_row.cpu_us_per_call - 1
            run.figure("send-observed", observed, "added to a SendMessage", 100 * added, "%")


@contextlib.asynccontextmanager
async def watched(settings: Mapping[str, str]) -> AsyncIterator[Holdfast]:
    """Start a server with these settings that is scraped, and sends its traces to a collector."""
    (port,) = free_ports([HOST], 1)
    with Nothing() as collector:
        watching = {
            "HOLDFAST_HEALTH_LISTEN": f"{HOST}:{port}",
            "HOLDFAST_TRACE_ENDPOINT": f"http://{HOST}:{collector.port}",
        }
        with Holdfast({**settings, **watching}) as server:
            # The first answer takes longest: it loads the library.
            await asyncio.to_thread(_ask, port)
            scraping = asyncio.create_task(_scrape(port))
            try:
                yield server
            finally:
                scraping.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await scraping


async def _scrape(port: int) -> None:
    while True:
        await asyncio.sleep(SCRAPE_SECONDS)
        await asyncio.to_thread(_ask, port)


def _ask(port: int) -> None:
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=10) as answer:
        answer.read()

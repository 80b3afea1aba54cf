"""The cost of idle load, which should be near zero: connections, waiting callers, and empty queues."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

from bench.idle_callers import IdleCallers
from bench.jobs import Sqs
from bench.load import LoadGenerator, Window
from bench.machine import connections_max
from bench.run import CONNECTIONS, BenchRun, again
from bench.servers.servers import HOST, CpuMeter, Holdfast, ServerProcess
from tests.servers import proc

WAIT_SECONDS = 20
POLLED_QUEUES = 100
MANY_CONNECTIONS = {
    "HOLDFAST_CONNECTIONS_LIMIT": "100000",
    "HOLDFAST_IDLE_SECONDS": "3600",
    "HOLDFAST_REQUEST_READ_SECONDS": "600",  # all connections are opened before the first call
}
"""Settings of a server for more connections than by default, none of which it closes."""
PAGE = 1_000
PAGE_TRIES = 25
"""Number of tries, of which the fastest counts: it excludes the machine's other work."""


async def connections(run: BenchRun, server: ServerProcess) -> None:
    """Measure keep-alive connections between two calls: the RSS of each, the CPU of all, and calls beside them."""
    name = "idle-connections"
    count = _possible(run, run.plan.idle_connections)
    url = server.create_queue("called")
    await run.closed(f"{name} send, without them", server, Sqs(server.signer).send(again(url)))
    rss_mib = server.rss_mib()
    started_at = time.perf_counter()
    with IdleCallers(server.port, count):
        run.figure(name, server, "connections", count, "")
        run.figure(name, server, "opened, with a call each", count / (time.perf_counter() - started_at), "/s")
        run.figure(name, server, "RSS a connection", (server.rss_mib() - rss_mib) * 1024 / count, "KiB")
        meter = CpuMeter(server)
        meter.mark()
        started_at = time.perf_counter()
        await asyncio.sleep(run.plan.idle_s)
        seconds = time.perf_counter() - started_at
        meter.mark()
        run.figure(name, server, "CPU while all are idle", 100 * meter.cpu_s / seconds, "% of a core")
        await run.closed(f"{name} send", server, Sqs(server.signer).send(again(url)))


def _possible(run: BenchRun, wanted: int) -> int:
    """Return this number of connections, or as many as a process may have here."""
    count = min(wanted, connections_max() - CONNECTIONS)
    if count < wanted:
        run.book.notes.append(f"{count:,} connections instead of {wanted:,}: so many files may a process open here")
    return count


async def long_polls(run: BenchRun, server: ServerProcess) -> None:
    """Measure the CPU of many ReceiveMessage calls that wait 20 s each: first while all wait, then over whole cycles.

    In a cycle each poll is answered, empty, and sent again.
    """
    plan = run.plan
    urls = [server.create_queue(f"polled-{n}") for n in range(POLLED_QUEUES)]
    jobs = Sqs(server.signer).long_poll(itertools.cycle(urls), WAIT_SECONDS)
    polls = _possible(run, plan.long_polls if server.name == "holdfast" else plan.rival_long_polls)
    meter = CpuMeter(server)
    async with LoadGenerator(HOST, server.port, polls) as load:
        load.start(jobs)
        await load.measure(plan.long_poll_start_s, meter.mark)
        waiting = await load.measure(plan.long_poll_waiting_s, meter.mark)
        _busy(run, server, "CPU while all wait", meter.cpu_s, waiting)
        renewing = await load.measure(WAIT_SECONDS * plan.long_poll_cycles, meter.mark)
        _busy(run, server, "CPU with renewals", meter.cpu_s, renewing)
        run.figure("long-polls", server, "polls", polls, "")
        run.figure("long-polls", server, "renewals", renewing.calls / renewing.seconds, "/s")
        run.figure("long-polls", server, "RSS", proc.rss_mib(server.pid), "MiB")
    if renewing.errors:
        raise RuntimeError(f"long polls failed {renewing.errors} times: {renewing.first_error}")


def _busy(run: BenchRun, server: ServerProcess, name: str, cpu_s: float, window: Window) -> None:
    run.figure("long-polls", server, name, 100 * cpu_s / window.seconds, "% of a core")


async def empty_queues(run: BenchRun, server: ServerProcess) -> None:
    """Measure the RSS of many queues without a message, and the time of ListQueues pages at the start, middle and
    end.
    """
    plan = run.plan
    count = plan.empty_queues if server.name == "holdfast" else plan.rival_empty_queues
    names = (f"empty-{n:07d}" for n in range(count))
    async with LoadGenerator(HOST, server.port, CONNECTIONS) as load:
        created = await load.drain(Sqs(server.signer).create_queues(names))
    if created.errors:
        raise RuntimeError(f"creating queues failed {created.errors} times: {created.first_error}")
    run.figure("empty-queues", server, "queues", count, "")
    run.figure("empty-queues", server, "CreateQueue", count / created.seconds, "/s")
    run.figure("empty-queues", server, "RSS", proc.rss_mib(server.pid), "MiB")
    _pages(run, server, count)
    if isinstance(server, Holdfast):
        server.kill()
        run.figure("empty-queues", server, "restart after kill -9", server.start(), "s")
        run.figure("empty-queues", server, "RSS after a restart", proc.rss_mib(server.pid), "MiB")


def _pages(run: BenchRun, server: ServerProcess, count: int) -> None:
    page = min(PAGE, count // 3)
    tokens: list[str | None] = [None]
    seen = 0
    while True:
        answer = _page(server, page, tokens[-1])
        seen += len(answer.get("QueueUrls", ()))
        if "NextToken" not in answer:
            break
        tokens.append(answer["NextToken"])
    run.figure("empty-queues", server, "queues listed", seen, "")
    full = seen // page  # the last page may hold less
    if full < 3 or len(tokens) < full:
        run.say(f"  {server.name} does not list in pages of {page}: no page times")
        return
    times = []
    for name, number in (("first", 0), ("middle", full // 2), ("last", full - 1)):
        took = []
        for _ in range(PAGE_TRIES):
            started_at = time.perf_counter()
            _page(server, page, tokens[number])
            took.append(time.perf_counter() - started_at)
        times.append(min(took))
        run.figure("empty-queues", server, f"ListQueues, {name} page of {page}", times[-1] * 1000, "ms")
    run.figure("empty-queues", server, "slowest page over fastest", max(times) / min(times), "times")


def _page(server: ServerProcess, page: int, token: str | None) -> dict[str, Any]:
    members: dict[str, Any] = {"MaxResults": page, "QueueNamePrefix": "empty-"}
    if token is not None:
        members["NextToken"] = token
    return server.call("ListQueues", members)

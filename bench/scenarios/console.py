"""The cost of the web console: its first view, pages that are open, and lists of many queues.

The console is a client of the REST interface, so open pages are connections that follow ``GET /v1/events``.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final

import httpx

from auth.signatures.signer import sign
from bench.jobs import Sqs
from bench.load import LoadGenerator
from bench.run import CONNECTIONS, BenchRun
from bench.servers.servers import CREDENTIALS, HOST, CpuMeter, ServerProcess
from tests.browser import LOOPBACK_ONLY, ask, started_browser
from tests.servers import proc
from tests.servers.waiting import wait_until

LISTED: Final = 50
"""Queues on a page of the list."""
FEW: Final = 100
"""Queues of the list with which the long one is compared."""
KEYS: Final = 20
_PAINTED: Final = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
SENDS_PER_SECOND: Final = 4
OPENED_SECONDS: Final = 12.0
"""Time after which the first values of many pages no longer delay the next ones."""
VIEWS: Final = 5
LISTS: Final = 20
"""Number of tries, of which the fastest counts: it excludes the machine's other work."""


class OpenPages:
    """Connections that follow live numbers, as pages of the console do."""

    def __init__(self, server: ServerProcess, keys: Sequence[str]) -> None:
        self._server = server
        self._keys = itertools.cycle(keys)
        self._tasks: list[asyncio.Task[None]] = []
        self._shown = 0

    async def open(self, queries: Iterable[str]) -> None:
        """Open a page for each query, and wait until all show numbers."""
        self._tasks = [asyncio.create_task(self._follow(query, next(self._keys))) for query in queries]
        while self._shown < len(self._tasks):
            for task in self._tasks:
                if task.done():
                    task.result()
                    raise RuntimeError("the service has closed a page")
            await asyncio.sleep(0.1)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, query: str, key: str) -> None:
        reader, writer = await asyncio.open_connection(HOST, self._server.port)
        try:
            head = f"GET /v1/events?{query} HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer {key}\r\n\r\n"
            writer.write(head.encode())
            answer = await reader.readuntil(b"\r\n\r\n")
            if b" 200 " not in answer.partition(b"\r\n")[0]:
                raise RuntimeError(f"a page is refused: {answer[:200]!r}")
            await reader.readuntil(b"event: queue")
            self._shown += 1
            while await reader.read(1 << 16):
                pass
        finally:
            writer.close()


async def console(run: BenchRun, server: ServerProcess) -> None:
    """Measure the first view, open pages that follow one list or a queue each, and lists of few and of many queues."""
    _first_view(run, server)
    with httpx.Client(base_url=f"http://{HOST}:{server.port}", trust_env=False, timeout=60) as client:
        await _lists_and_pages(run, server, client)
    run.figure("console", server, "RSS", proc.rss_mib(server.pid), "MiB")


async def _lists_and_pages(run: BenchRun, server: ServerProcess, client: httpx.Client) -> None:
    plan = run.plan
    keys = [
        _rest(client, "POST", "/v1/keys", {"name": f"page-{number}", "kind": "api"})["secret"] for number in range(KEYS)
    ]
    client.headers["authorization"] = f"Bearer {keys[0]}"
    await _create(server, range(FEW))
    few = _lists(run, server, client, FEW)
    without = await _used(run, server, keys, [])
    run.figure("console", server, f"no page, {SENDS_PER_SECOND} messages a second", without, "% of a core")
    used = await _used(run, server, keys, [f"limit={LISTED}"] * plan.console_pages)
    run.figure("console", server, f"{plan.console_pages:,} pages, one list", used - without, "% of a core")
    await _create(server, range(FEW, plan.console_pages))
    used = await _used(run, server, keys, [f"queue={_name(number)}" for number in range(plan.console_pages)])
    run.figure("console", server, f"{plan.console_pages:,} pages, a queue each", used - without, "% of a core")
    await _create(server, range(plan.console_pages, plan.empty_queues))
    many = _lists(run, server, client, plan.empty_queues)
    for name, seconds in many.items():
        run.figure("console", server, f"list {name}, many queues over {FEW}", seconds / few[name], "times")


def _name(number: int) -> str:
    return f"console-{number:07d}"


async def _create(server: ServerProcess, numbers: Iterable[int]) -> None:
    async with LoadGenerator(HOST, server.port, CONNECTIONS) as load:
        created = await load.drain(Sqs(server.signer).create_queues(map(_name, numbers)))
    if created.errors:
        raise RuntimeError(f"creating queues failed {created.errors} times: {created.first_error}")


def _rest(client: httpx.Client, method: str, path: str, body: object) -> Any:
    """Make a call that is signed with the access key."""
    content = json.dumps(body).encode()
    headers = {"host": client.base_url.netloc.decode(), "content-type": "application/json"}
    headers |= sign(
        method,
        path.encode(),
        b"",
        headers,
        content,
        access_key_id=CREDENTIALS.access_key_id,
        secret=CREDENTIALS.secret,
        region=CREDENTIALS.region,
        now=time.time(),
    )
    return client.request(method, path, content=content, headers=headers).raise_for_status().json()


def _lists(run: BenchRun, server: ServerProcess, client: httpx.Client, queues: int) -> dict[str, float]:
    """Measure the first page of a list of all queues; return its seconds by name, and sorted, at first and later."""
    found = {}
    for name, sort in (("by name", ""), ("by depth", "&sort=depth")):
        took = []
        for _ in range(LISTS):
            started_at = time.perf_counter()
            client.get(f"/v1/queues?counters=true&limit={LISTED}{sort}").raise_for_status()
            took.append(time.perf_counter() - started_at)
        if sort:
            run.figure("console", server, f"list {name}, {queues:,} queues, for the first time", took[0] * 1000, "ms")
        found[name] = min(took)
        run.figure("console", server, f"list {name}, {queues:,} queues", found[name] * 1000, "ms")
    return found


async def _used(run: BenchRun, server: ServerProcess, keys: Sequence[str], queries: Sequence[str]) -> float:
    """Measure the CPU, in percent of a core, while messages arrive and pages are open that follow these queries."""
    pages = OpenPages(server, keys)
    meter = CpuMeter(server)
    try:
        await pages.open(queries)
        url = server.create_queue(_name(0))
        if len(queries) > LISTED:
            await asyncio.sleep(OPENED_SECONDS)
        meter.mark()
        started_at = time.perf_counter()
        while time.perf_counter() < started_at + run.plan.long_poll_waiting_s:
            server.call("SendMessage", {"QueueUrl": url, "MessageBody": "b"})
            await asyncio.sleep(1 / SENDS_PER_SECOND)
        meter.mark()
        return 100 * meter.cpu_s / (time.perf_counter() - started_at)
    finally:
        await pages.close()


def _first_view(run: BenchRun, server: ServerProcess) -> None:
    """Measure the first view in Chromium, without anything in its cache."""
    milliseconds, size_bytes = [], 0
    with started_browser(LOOPBACK_ONLY) as browser:
        browser.execute_cdp_cmd("Network.enable", {})
        browser.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": True})
        for _ in range(VIEWS):
            browser.get(f"http://{HOST}:{server.port}/console")
            painted = wait_until(partial(ask, browser, _PAINTED), "the console is painted")
            milliseconds.append(float(painted))
            entries = "[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]"
            size_bytes = int(ask(browser, f"{entries}.reduce((sum, one) => sum + one.transferSize, 0)"))
    run.figure("console", server, "first view", min(milliseconds), "ms")
    run.figure("console", server, "first view, received", size_bytes / 1000, "KB")

"""Waiting time of clients when the owner of their queue leaves, and when it is killed, with many messages waiting."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import Any

from backend.api import shard_of
from bench.jobs import Sqs
from bench.load import Job, Jobs, LoadAnswer, LoadGenerator, parse_answer
from bench.run import CONNECTIONS, BenchRun, again
from bench.servers.cluster_server import HoldfastCluster
from bench.servers.servers import HOST, Holdfast, ServerProcess
from holdfast.runtime.stores import Stores
from holdfast.settings import load as load_settings
from tests.servers import proc
from tests.servers.server import ACCOUNT

QUEUE = "waiting"
CALL_SECONDS = 30.0
STEADY_SECONDS = 2.0
STEADY_GAP_SECONDS = 0.5
SECONDS_MAX = 120.0
PAUSE_SECONDS = 0.02


async def local(run: BenchRun, server: ServerProcess) -> None:
    """Measure the backends of ``holdfast serve``, on local journals."""
    assert isinstance(server, Holdfast)
    stores = Stores(load_settings({"data": str(server.data)}, {}))
    try:
        url = await _filled(run, server, "takeover-backends")
        probe = Probe(server, url)

        async def restart() -> None:
            """Restart all backends, one after the other."""
            before = _children(server.pid, "backend")
            os.kill(server.pid, signal.SIGUSR1)
            while True:
                now = _children(server.pid, "backend")
                if all(now.get(name, pid) != pid for name, pid in before.items()):
                    return
                await asyncio.sleep(PAUSE_SECONDS)

        async with probe.running():
            backends = len(_children(server.pid, "backend"))
            gap, seconds = await probe.during(restart)
            run.figure("takeover-backends", server, "longest wait at a hand-over", gap, "s")
            run.figure("takeover-backends", server, "a node leaves, and is back", seconds / max(backends, 1), "s")
            owner = await _owner(stores, ACCOUNT)

            async def kill() -> None:
                os.kill(_children(server.pid, "backend")[owner], signal.SIGKILL)

            gap, _ = await probe.during(kill)
            run.figure("takeover-backends", server, "served again after kill -9 of the owner", gap, "s")
    finally:
        await stores.close()


async def cassandra(run: BenchRun, server: ServerProcess) -> None:
    """Measure separate backends, on Cassandra.  The killed one is not restarted: nothing more is measured here."""
    assert isinstance(server, HoldfastCluster)
    cluster = server.cluster
    stores = Stores(cluster.settings())
    try:
        url = await _filled(run, server, "takeover-cluster")
        probe = Probe(server, url)
        async with probe.running():
            owner = await _owner(stores, ACCOUNT)
            left = 0.0

            async def leave() -> None:
                nonlocal left
                started_at = time.perf_counter()
                await asyncio.to_thread(cluster[owner].stop)
                left = time.perf_counter() - started_at

            gap, _ = await probe.during(leave)
            run.figure("takeover-cluster", server, "longest wait at a hand-over", gap, "s")
            run.figure("takeover-cluster", server, "a node leaves", left, "s")
            await asyncio.to_thread(cluster[owner].start)
            await _in_place(stores, len(cluster.of("backend")))
            owner = await _owner(stores, ACCOUNT)

            async def kill() -> None:
                await asyncio.to_thread(cluster[owner].kill)

            gap, _ = await probe.during(kill)
            run.figure("takeover-cluster", server, "served again after kill -9 of the owner", gap, "s")
    finally:
        await stores.close()


async def _filled(run: BenchRun, server: ServerProcess, scenario: str) -> str:
    """Return a queue with as many messages as planned, or as could be sent in the time limit."""
    url = server.create_queue(QUEUE)
    end = time.perf_counter() + run.plan.takeover_fill_s
    async with LoadGenerator(HOST, server.ports, CONNECTIONS) as load:
        sent = await load.drain(_until(end, Sqs(server.signer).send_batch(again(url), run.plan.takeover_depth)))
    if sent.errors:
        run.say(f"  {scenario}: {sent.errors} calls failed while it was filled: {sent.first_error}")
    run.figure(scenario, server, "messages waiting", sent.messages, "")
    run.figure(scenario, server, "filled", sent.messages / sent.seconds, "messages/s")
    return url


def _until(end: float, jobs: Jobs) -> Jobs:
    def timed() -> Job | None:
        return jobs() if time.perf_counter() < end else None

    return timed


async def _owner(stores: Stores, account: str) -> str:
    """Return the name of the backend that owns the queue's shard."""
    metadata, entries = await stores.metadata(), await stores.entries()
    shard = shard_of((await metadata.queues.get_queue(account, QUEUE)).partitions[0].id)
    names = {entry.log_id: entry.node for entry in await entries.logs()}
    return next(names[entry.owner_log] for entry in await entries.shards() if entry.shard == shard)


async def _in_place(stores: Stores, backends: int) -> None:
    """Wait until ``backends`` backends own shards, and none moves."""
    end = time.perf_counter() + SECONDS_MAX
    while time.perf_counter() < end:
        entries = await stores.entries()
        names = {entry.log_id: entry.node for entry in await entries.logs()}
        reports = await (await stores.metadata()).clusters.cluster_reports()
        owners = {names[entry.owner_log] for entry in await entries.shards()}
        if len(owners) == backends and reports and not reports[0].moving and not reports[0].unassigned:
            return
        await asyncio.sleep(0.2)
    raise TimeoutError("the shards keep moving")


def _children(pid: int, role: str) -> dict[str, int]:
    """Return the processes of a role that a supervisor has started, by name."""
    found = ((proc.child_name(each), each) for each in proc.tree(pid))
    return {name: each for name, each in found if name.partition("-")[0] == role}


class Probe:
    """A client that receives a message repeatedly, on one connection, and records the time of each."""

    def __init__(self, server: ServerProcess, url: str) -> None:
        self._address = (HOST, server.ports[-1])
        self._request = server.signer
        self._url = url
        self._served: list[float] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._run())
        try:
            await self._steady(time.perf_counter())
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def during(self, act: Callable[[], Awaitable[None]]) -> tuple[float, float]:
        """Return the longest time without a message during ``act`` and until service is steady, and the duration of
        ``act``.
        """
        started_at = time.perf_counter()
        await act()
        done = time.perf_counter()
        await self._steady(done)
        served = [at for at in self._served if at >= started_at]
        return max(later - at for at, later in pairwise([started_at, *served])), done - started_at

    async def _steady(self, since: float) -> None:
        """Wait until it has been served without a long wait for a while."""
        while True:
            now = time.perf_counter()
            if now - since > SECONDS_MAX:
                raise TimeoutError(f"clients were not served for {SECONDS_MAX:.0f} s")
            recent = [now - STEADY_SECONDS, *(at for at in self._served if at > now - STEADY_SECONDS), now]
            if now - since > STEADY_SECONDS and max(b - a for a, b in pairwise(recent)) < STEADY_GAP_SECONDS:
                return
            await asyncio.sleep(0.05)

    async def _run(self) -> None:
        members: dict[str, Any] = {"QueueUrl": self._url, "MaxNumberOfMessages": 1, "VisibilityTimeout": 0}
        body = json.dumps(members).encode()
        while True:
            with suppress(OSError, TimeoutError, EOFError):  # a new connection is opened then
                reader, writer = await asyncio.open_connection(*self._address)
                try:
                    while True:
                        async with asyncio.timeout(CALL_SECONDS):
                            answer = await self._call(reader, writer, body)
                        if answer.status == 200 and b'"ReceiptHandle"' in answer.body:
                            self._served.append(time.perf_counter())
                        await asyncio.sleep(PAUSE_SECONDS)
                finally:
                    writer.transport.abort()
            await asyncio.sleep(PAUSE_SECONDS)

    async def _call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> LoadAnswer:
        writer.write(self._request.request("ReceiveMessage", body))
        data = b""
        while (answer := parse_answer(data)) is None:
            more = await reader.read(1 << 16)
            if not more:
                raise EOFError
            data += more
        return answer

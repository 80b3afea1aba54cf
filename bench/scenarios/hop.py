"""The additional cost of a call when the backend is another process: over the wire protocol, and over asyncio
streams.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from backend.api import NewMessage, Send, SendResult, Target
from backend.rpc.address import Address
from backend.rpc.client import RemoteBackend
from bench.run import BenchRun, quiet_memory
from bench.servers.hop_server import SECRET, WAYS
from bench.servers.servers import ServerProcess
from tests.servers import proc

CALLERS = (1, 32)
_TARGET = Target(1 << 40, 1 << 60, 3)
_MESSAGES = [NewMessage(b"x" * 300, retry=b"r" * 32)]
"""An encrypted message of about 200 bytes."""
_START_SECONDS = 30

Call = Callable[[], Awaitable[Any]]


class CallCost(NamedTuple):
    """CPU time of one call, in microseconds."""

    client: float
    server: float


async def hop(run: BenchRun, server: ServerProcess) -> None:
    """Measure the cost of a hop; the bench's server is not used."""
    for callers in CALLERS:
        costs = {}
        for way in WAYS:
            cost = costs[way] = await _cost(run, way, callers)
            name = f"{way}, {callers} at a time"
            run.figure("hop", server, f"{name}: the frontend's side", cost.client, "µs")
            run.figure("hop", server, f"{name}: the backend's side", cost.server, "µs")
        ratio = sum(costs["wire"]) / sum(costs["streams"])
        run.figure("hop", server, f"the wire against streams, {callers} at a time", ratio, "times")


async def _cost(run: BenchRun, way: str, callers: int) -> CallCost:
    folder = Path(tempfile.mkdtemp(prefix="hop-"))
    path = str(folder / "socket")
    process = _start(way, path)
    try:
        async with _by_wire(path) if way == "wire" else _by_streams(path) as call:
            await _load(call, callers, run.plan.warm_up_s)
            with quiet_memory():
                there, here = proc.cpu_seconds(process.pid), time.process_time()
                calls = await _load(call, callers, run.plan.measure_s)
                here, there = time.process_time() - here, proc.cpu_seconds(process.pid) - there
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)
    return CallCost(here / calls * 1e6, there / calls * 1e6)


def _start(way: str, path: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "bench.servers.hop_server", way, path])


async def _load(call: Call, callers: int, seconds: float) -> int:
    """Call in a row from ``callers`` callers, each waiting for its answers; return the number of calls, whose own cost
    is included.
    """
    end, calls = time.monotonic() + seconds, 0

    async def caller() -> None:
        nonlocal calls
        while time.monotonic() < end:
            await call()
            calls += 1

    await asyncio.gather(*(caller() for _ in range(callers)))
    return calls


@asynccontextmanager
async def _by_wire(path: str) -> Any:
    backend = await RemoteBackend.connect(Address(path=path), secret=SECRET)
    await backend.ready(_START_SECONDS)
    yield lambda: backend.call(Send(_TARGET, _MESSAGES))
    await backend.close()


@asynccontextmanager
async def _by_streams(path: str) -> Any:
    """Connect by a straightforward implementation: also multiplexed, with a read and a write for each frame."""
    decode: Callable[[bytes], tuple[int, list[SendResult]]] = msgspec.msgpack.Decoder(
        tuple[int, list[SendResult]]
    ).decode
    encode = msgspec.msgpack.Encoder().encode
    end = time.monotonic() + _START_SECONDS
    while True:
        try:
            reader, writer = await asyncio.open_unix_connection(path)
            break
        except OSError:
            if time.monotonic() > end:
                raise
            await asyncio.sleep(0.02)
    waiting: dict[int, asyncio.Future[list[SendResult]]] = {}
    last = 0

    async def listen() -> None:
        while True:
            size = int.from_bytes(await reader.readexactly(4), "little")
            number, answer = decode(await reader.readexactly(size))
            waiting.pop(number).set_result(answer)

    async def call() -> list[SendResult]:
        nonlocal last
        last += 1
        data = encode((last, _TARGET, _MESSAGES))
        future: asyncio.Future[list[SendResult]] = asyncio.get_running_loop().create_future()
        waiting[last] = future
        writer.write(len(data).to_bytes(4, "little") + data)
        return await future

    listener = asyncio.create_task(listen())
    yield call
    listener.cancel()
    await asyncio.wait([listener])
    writer.close()

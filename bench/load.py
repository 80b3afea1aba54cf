"""The load generator: jobs on a fixed number of connections, and windows that count the answers.

A *job* is a generator: it yields calls, is sent their answers, and returns the number of messages it moved, so that
"receive, then delete" reads as it runs.  Jobs run in one of two ways:

- *closed*: each connection starts its next job as soon as the last one ended, which measures the maximum throughput;
- *paced*: jobs start at a given rate whatever the server does, and their latency counts from the moment they were due.
  A server that stalls is charged for all the calls that it delayed, not only for 32 of them.

Answers are parsed as little as correctness allows: the status, the length, and the parts that the job needs.  A call
costs the generator about 25 µs of CPU (:attr:`Window.generator_cpu_s` has its usage), so on two cores a server of 50 µs
a call is the bottleneck, and not the generator.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from array import array
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self, cast

Call = tuple[str, bytes]
"""The action, for the statistics, and the request's bytes."""

Job = Generator[Call, "LoadAnswer", int]
"""Yields calls, is sent answers, returns the number of messages moved."""

Jobs = Callable[[], Job | None]
"""Returns the next job; None when there is nothing more to do."""

Mark = Callable[[], None]

TICK_SECONDS = 0.001
"""Resolution of the event loop's timers, and so of paced arrivals."""


class LoadAnswer(NamedTuple):
    """One HTTP answer."""

    status: int
    body: bytes


class LoadError(Exception):
    """The server closed a connection, violated HTTP, or gave an answer that the scenario does not allow."""


class BenchJobFailed(Exception):
    """Raised by a job whose answer has status 200 but reports a failure."""


class Samples:
    """Latencies in seconds, and the end of each call (seconds since the window began)."""

    __slots__ = ("ended", "latency")

    def __init__(self) -> None:
        self.latency = array("d")
        self.ended = array("d")


class Window:
    """Answers between two moments."""

    def __init__(self) -> None:
        self.started_at = time.perf_counter()
        self.seconds = 0.0
        self.calls = 0
        self.messages = 0
        self.errors = 0
        self.first_error = ""
        self.generator_cpu_s = 0.0
        self.samples: dict[str, Samples] = {}
        self._cpu_started = time.process_time()

    def record(self, action: str, since: float, now: float, answer: LoadAnswer) -> None:
        self.calls += 1
        samples = self.samples.get(action)
        if samples is None:
            samples = self.samples[action] = Samples()
        samples.latency.append(now - since)
        samples.ended.append(now - self.started_at)
        if answer.status != 200:
            self.fail(f"{action}: {answer.status} {answer.body[:300]!r}")

    def fail(self, text: str) -> None:
        self.errors += 1
        self.first_error = self.first_error or text

    def close(self) -> None:
        self.seconds = time.perf_counter() - self.started_at
        self.generator_cpu_s = time.process_time() - self._cpu_started

    def latencies(self) -> array[float]:
        """Return all latencies, sorted."""
        together = array("d")
        for samples in self.samples.values():
            together.extend(samples.latency)
        return array("d", sorted(together))


def quantile(ordered: array[float], q: float) -> float:
    """Return the nearest-rank quantile of sorted values: the smallest one that at least ``q`` of all do not exceed."""
    if not ordered:
        return 0.0
    rank = -(-len(ordered) * q // 1)
    return ordered[max(0, int(rank) - 1)]


def parse_answer(data: bytes) -> LoadAnswer | None:
    """Return one complete HTTP/1.1 answer, or None when more bytes are needed."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = data[:end].lower()
    status = int(head[9:12])
    at = head.find(b"\r\ncontent-length:")
    if at >= 0:
        stop = head.find(b"\r\n", at + 2)
        length = int(head[at + 17 : stop if stop >= 0 else end])
        body = data[end + 4 :]
        if len(body) < length:
            return None
        if len(body) > length:
            raise LoadError("more bytes than Content-Length in an answer")
        return LoadAnswer(status, body)
    if b"\r\ntransfer-encoding: chunked" in head:
        chunked = _chunks(data[end + 4 :])
        return None if chunked is None else LoadAnswer(status, chunked)
    raise LoadError(f"an answer without a length: {head[:200]!r}")


def _chunks(data: bytes) -> bytes | None:
    parts: list[bytes] = []
    at = 0
    while True:
        eol = data.find(b"\r\n", at)
        if eol < 0:
            return None
        size = int(data[at:eol].split(b";")[0], 16)
        stop = eol + 2 + size + 2
        if len(data) < stop:
            return None
        if size == 0:
            return b"".join(parts)
        parts.append(data[eol + 2 : stop - 2])
        at = stop


class LoadConnection(asyncio.Protocol):
    """One keep-alive connection with at most one call in progress."""

    def __init__(self, load: LoadGenerator) -> None:
        self._load = load
        self._transport: asyncio.WriteTransport | None = None
        self._partial = b""
        self._job: Job | None = None
        self._action = ""
        self._since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def run(self, job: Job, since: float | None = None) -> None:
        """Start a job; ``since`` is the time at which it was due."""
        self._job = job
        self._write(next(job), since)

    def data_received(self, data: bytes) -> None:
        if self._partial:
            data = self._partial + data
        try:
            answer = parse_answer(data)
        except (LoadError, ValueError) as error:
            self._load.broken(LoadError(str(error)))
            return
        if answer is None:
            self._partial = data
            return
        self._partial = b""
        self.answered(answer)

    def answered(self, answer: LoadAnswer) -> None:
        """Record the answer of the call in progress, and continue its job."""
        job = self._job
        if job is None:
            self._load.broken(LoadError(f"an answer without a call: {answer.body[:200]!r}"))
            return
        window = self._load.window
        window.record(self._action, self._since, time.perf_counter(), answer)
        try:
            call = job.send(answer)
        except StopIteration as end:
            window.messages += end.value
        except BenchJobFailed as error:
            window.fail(f"{self._action}: {error}")
        else:
            self._write(call, None)
            return
        self._job = None
        self._load.idle(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._load.broken(LoadError(f"a connection was closed: {error}"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _write(self, call: Call, since: float | None) -> None:
        assert self._transport is not None
        if self._transport.is_closing():
            self._load.broken(LoadError("the server has closed a connection"))
            return
        self._action, request = call
        self._since = time.perf_counter() if since is None else since
        self.say(request)

    def say(self, data: bytes) -> None:
        """Write bytes to the socket."""
        assert self._transport is not None
        self._transport.write(data)


def _nothing() -> None:
    """Return no job."""


Connect = Callable[["LoadGenerator"], Coroutine[Any, Any, LoadConnection]]
"""Opens one connection of a load."""


class LoadGenerator:
    """A set of connections to one server, used as ``async with LoadGenerator(...) as load``."""

    def __init__(
        self, host: str, ports: int | Sequence[int], connections: int = 32, connect: Connect | None = None
    ) -> None:
        """``ports``: to be connected to in turn.  ``connect``: for servers with a protocol other than HTTP."""
        self._host = host
        self._ports = itertools.cycle([ports] if isinstance(ports, int) else ports)
        self._connect = connect or LoadGenerator._by_http
        self._count = connections
        self._all: list[LoadConnection] = []
        self._free: deque[LoadConnection] = deque()
        """Used in turn: a server closes a connection that makes no call for long."""
        self._due: deque[float] = deque()
        self._jobs: Jobs = _nothing
        self._paced = False
        self._quiet = asyncio.Event()
        self._failure: LoadError | None = None
        self._closing = False
        self.window = Window()

    async def __aenter__(self) -> Self:
        for start in range(0, self._count, 100):
            some = min(100, self._count - start)
            self._all += await asyncio.gather(*(self._connect(self) for _ in range(some)))
        self._free = deque(self._all)
        return self

    async def _by_http(self) -> LoadConnection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: LoadConnection(self), self._host, next(self._ports))
        return connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        for connection in self._all:
            connection.close()

    async def drain(self, jobs: Jobs) -> Window:
        """Run jobs until there are none left; the window covers all of it."""
        window = self.window = Window()
        self.start(jobs)
        await self._until_quiet()
        window.close()
        return window

    async def closed(self, jobs: Jobs, warm_up_s: float, measure_s: float, mark: Mark) -> Window:
        """Run jobs on every connection as fast as they are answered."""
        self.start(jobs)
        await self._for(warm_up_s)
        window = await self.measure(measure_s, mark)
        await self._end()
        return window

    async def window_of(self, jobs: Jobs, warm_up_s: float, measure_s: float, mark: Mark) -> Window:
        """Run jobs like :meth:`closed`, if the last answers may never arrive: closing the connections ends them."""
        self.start(jobs)
        await self._for(warm_up_s)
        return await self.measure(measure_s, mark)

    async def paced(
        self, jobs: Jobs, rate: float, warm_up_s: float, measure_s: float, mark: Mark, seed: int = 1
    ) -> Window:
        """Start ``rate`` jobs a second, at exponentially distributed intervals, like many independent callers."""
        self._jobs = jobs
        self._paced = True
        pacing = asyncio.ensure_future(self._pace(rate, random.Random(seed)))
        try:
            await self._for(warm_up_s)
            window = await self.measure(measure_s, mark)
            await self._end()
        finally:
            pacing.cancel()
            self._paced = False
        return window

    def start(self, jobs: Jobs) -> None:
        """Run jobs on every free connection from now on, until there are none."""
        self._jobs = jobs
        waiting, self._free = self._free, deque()
        for connection in waiting:
            self.idle(connection)

    async def measure(self, seconds: float, mark: Mark) -> Window:
        """Return a window over the given time.  ``mark`` is called at both ends, to read the server's counters."""
        window = self.window = Window()
        mark()
        await self._for(seconds)
        window.close()
        mark()
        self.window = Window()
        return window

    def idle(self, connection: LoadConnection) -> None:
        """Handle that a connection has finished its job."""
        if self._paced:
            if self._due and self._run_next(connection, self._due.popleft()):
                return
        elif self._run_next(connection, None):
            return
        self._free.append(connection)
        if len(self._free) == len(self._all):
            self._quiet.set()

    def broken(self, error: LoadError) -> None:
        """End the load, because a connection is no longer usable."""
        if not self._closing:
            self._failure = self._failure or error
            self._quiet.set()

    def _run_next(self, connection: LoadConnection, since: float | None) -> bool:
        job = self._jobs()
        if job is None:
            return False
        connection.run(job, since)
        return True

    async def _pace(self, rate: float, chance: random.Random) -> None:
        next_at = time.perf_counter()
        while True:
            now = time.perf_counter()
            while next_at <= now:
                self._due.append(next_at)
                next_at += chance.expovariate(rate)
            while self._due and self._free:
                connection = self._free.popleft()
                if not self._run_next(connection, self._due.popleft()):
                    self._free.append(connection)
                    break
            await asyncio.sleep(TICK_SECONDS)

    async def _end(self) -> None:
        self._jobs = _nothing
        self._due.clear()
        await self._until_quiet()

    async def _for(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if self._failure is not None:
            raise self._failure

    async def _until_quiet(self) -> None:
        while len(self._free) < len(self._all) and self._failure is None:
            self._quiet.clear()
            await self._quiet.wait()
        if self._failure is not None:
            raise self._failure

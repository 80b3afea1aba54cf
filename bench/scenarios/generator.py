"""The same calls to servers that only answer: the load generator's maximum, and the cost of HTTP."""

from __future__ import annotations

from bench.jobs import Sqs
from bench.run import BenchRun, again
from bench.servers.servers import ServerProcess


async def ceiling(run: BenchRun, server: ServerProcess) -> None:
    await run.closed("generator", server, Sqs(server.signer).send(again("http://nobody/0/nothing")))


async def trivial(run: BenchRun, server: ServerProcess) -> None:
    await run.closed("trivial", server, Sqs(server.signer).send(again("http://nobody/0/nothing")))


async def trivial_half_load(run: BenchRun, server: ServerProcess) -> None:
    """Measure the raw ASGI call at half of its throughput, for comparison with ``half-load``."""
    closed = await run.measured("trivial", server, trivial)
    jobs = Sqs(server.signer).send(again("http://nobody/0/nothing"))
    await run.half_load("trivial-half-load", server, jobs, closed.calls_per_s)

"""Many backends: the cost of a message in all processes together, on local journals and on Cassandra."""

from __future__ import annotations

import itertools

from bench.jobs import Sqs
from bench.load import LoadGenerator
from bench.run import CONNECTIONS, BenchRun, again
from bench.servers.servers import HOST, Holdfast, ServerProcess
from tests.servers.redis_server import RedisServer

BACKENDS = 2
FRONTENDS = 2
SEVERAL = {
    "HOLDFAST_BACKENDS": str(BACKENDS),
    "HOLDFAST_FRONTENDS": str(FRONTENDS),
    "HOLDFAST_PARTITION_RATE": "0",  # the single measured queue keeps one partition
}
LIMIT_FRONTENDS = 3
CREATE_CONNECTIONS = 4
CREATE_TRIES = 3
RATE = 400
BURST = 200


async def backends(run: BenchRun, server: ServerProcess) -> None:
    """Measure ``holdfast serve --backends``: SendMessage to one queue, and to many; ReceiveMessage with its deletes."""
    await _traffic(run, server, "backends")


async def cassandra(run: BenchRun, server: ServerProcess) -> None:
    """Measure the same with separate roles, and the journal on three nodes of Cassandra."""
    await _traffic(run, server, "cluster")


async def _traffic(run: BenchRun, server: ServerProcess, name: str) -> None:
    url = server.create_queue(f"{name}-one")
    await run.closed(f"{name} send", server, Sqs(server.signer).send(again(url)), by_part=True)
    many = await _queues(run, server, url, f"{name}-many-")
    await _warm_up(server, many)
    # One queue belongs to one backend.  So each backend gets as many callers as that one had, and its commits are as
    # full.
    await run.closed(
        f"{name} send, many queues",
        server,
        Sqs(server.signer).send(itertools.cycle(many)),
        by_part=True,
        connections=CONNECTIONS * BACKENDS,
    )
    size = run.plan.receive_round // 4
    drained = server.create_queue(f"{name}-receive")
    await run.receive_rounds(f"{name} receive", server, Sqs(server.signer), drained, 0, size + size // 4, size, 2)


async def _queues(run: BenchRun, server: ServerProcess, url: str, prefix: str) -> list[str]:
    """Create many queues.  On Cassandra each takes several transactions, and those of one account wait for each
    other.
    """
    names = [f"{prefix}{number}" for number in range(run.plan.cluster_queues)]
    for _ in range(CREATE_TRIES):
        async with LoadGenerator(HOST, server.ports, CREATE_CONNECTIONS) as load:
            made = await load.drain(Sqs(server.signer).create_queues(iter(names)))
        if not made.errors:
            return [f"{url.rpartition('/')[0]}/{name}" for name in names]
    raise RuntimeError(f"{made.errors} queues could not be created: {made.first_error}")


async def _warm_up(server: ServerProcess, urls: list[str]) -> None:
    """Call each queue through each frontend, so that queues in use are measured, not their first lookup."""
    for port in server.ports:
        async with LoadGenerator(HOST, [port], CONNECTIONS) as load:
            sent = await load.drain(Sqs(server.signer).send(iter(urls)))
        if sent.errors:
            raise RuntimeError(f"{sent.errors} queues could not be called: {sent.first_error}")


async def limit(run: BenchRun, server: ServerProcess) -> None:
    """Measure one rate of a tenant, over three real frontends that share it through a Redis; ``server`` is not used."""
    with RedisServer() as redis:
        settings = {
            "HOLDFAST_FRONTENDS": str(LIMIT_FRONTENDS),
            "HOLDFAST_RATE_LIMIT_STORAGE": redis.url,
            "HOLDFAST_DEFAULT_LIMITS": f"send={RATE}:{BURST}",
        }
        with Holdfast(settings) as limited:
            url = limited.create_queue("limited")
            async with LoadGenerator(HOST, limited.ports, CONNECTIONS) as load:
                jobs = Sqs(limited.signer).send(again(url))
                window = await load.closed(jobs, run.plan.warm_up_s, run.plan.limit_s, lambda: None)
            off = abs(window.messages / window.seconds / RATE - 1) * 100
            passed = window.messages / max(window.calls, 1) * 100
            run.figure("limit-frontends", limited, "let through, of all calls", passed, "%")
            run.figure("limit-frontends", limited, "three frontends on one Redis, off the rate", off, "%")

"""The hot path: send, receive, delete, on standard and FIFO queues, at full and at half load."""

from __future__ import annotations

import itertools

from bench.jobs import Groups, Sqs
from bench.load import LoadGenerator
from bench.run import CONNECTIONS, BenchRun, again
from bench.servers.servers import HOST, ServerProcess

GROUPS = 1_000
QUEUES = 1_000


async def warm_up_java(run: BenchRun, server: ServerProcess) -> None:
    """Load the whole hot path, so that the JVM has compiled it."""
    url, fifo = server.create_queue("warm-up"), server.create_queue("warm-up.fifo")
    standard, grouped = Sqs(server.signer), Sqs(server.signer, Groups(GROUPS))
    each = run.plan.java_warm_up_s / 5
    run.say(f"warming up {server.name} for {run.plan.java_warm_up_s:.0f} s")
    async with LoadGenerator(HOST, server.port, CONNECTIONS) as load:
        for jobs in (
            standard.send(again(url)),
            standard.send_batch(again(url)),
            standard.receive_and_delete(url),
            grouped.send(again(fifo)),
            grouped.receive_and_delete(fifo),
        ):
            await load.closed(jobs, 0, each, lambda: None)
    server.delete_queue(url)
    server.delete_queue(fifo)


async def send(run: BenchRun, server: ServerProcess) -> None:
    url = server.create_queue("send")
    await run.closed("send", server, Sqs(server.signer).send(again(url)))
    server.delete_queue(url)


async def half_load(run: BenchRun, server: ServerProcess) -> None:
    """Measure SendMessage at half of the server's throughput in ``send``."""
    closed = await run.measured("send", server, send)
    url = server.create_queue("half-load")
    jobs = Sqs(server.signer).send(again(url))
    await run.half_load("half-load", server, jobs, closed.calls_per_s)
    server.delete_queue(url)


async def send_batch(run: BenchRun, server: ServerProcess) -> None:
    url = server.create_queue("send-batch")
    await run.closed("send-batch", server, Sqs(server.signer).send_batch(again(url)))
    server.delete_queue(url)


async def receive(run: BenchRun, server: ServerProcess) -> None:
    await _receive(run, server, "receive", server.create_queue("receive"), Sqs(server.signer))


async def mixed(run: BenchRun, server: ServerProcess) -> None:
    url = server.create_queue("mixed")
    await run.closed("mixed", server, Sqs(server.signer).mixed(url))
    server.delete_queue(url)


async def fifo_send(run: BenchRun, server: ServerProcess) -> None:
    url = server.create_queue("send.fifo")
    await run.closed("fifo-send", server, Sqs(server.signer, Groups(GROUPS)).send(again(url)))
    server.delete_queue(url)


async def fifo_receive(run: BenchRun, server: ServerProcess) -> None:
    sqs = Sqs(server.signer, Groups(GROUPS))
    await _receive(run, server, "fifo-receive", server.create_queue("receive.fifo"), sqs)


async def send_many_queues(run: BenchRun, server: ServerProcess) -> None:
    urls = [server.create_queue(f"one-of-many-{n}") for n in range(QUEUES)]
    await run.closed("send-1000-queues", server, Sqs(server.signer).send(itertools.cycle(urls)))
    for url in urls:
        server.delete_queue(url)


async def _receive(run: BenchRun, server: ServerProcess, scenario: str, url: str, sqs: Sqs) -> None:
    size = run.plan.receive_round
    depth = size + size // 4  # no receive of a round must find an empty queue
    await run.receive_rounds(scenario, server, sqs, url, 0, depth, size, run.plan.receive_rounds)
    server.delete_queue(url)

"""Brokers that confirm messages on their disk: publishing one message at a time on each connection, and consuming.

The counterpart of Holdfast's ``send`` and ``receive``, over the brokers' own protocols.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.jobs import BATCH, counted
from bench.load import Jobs, LoadGenerator
from bench.peers.amqp import PREFETCH, Amqp
from bench.peers.load import connect_by
from bench.peers.nats import Nats
from bench.peers.peers import RabbitMq
from bench.report import row_of
from bench.run import CONNECTIONS, BenchRun, quiet_memory
from bench.servers.servers import HOST, CpuMeter, ServerProcess
from tests.servers import proc

FILL_AT_ONCE = 50


async def publish(run: BenchRun, server: ServerProcess) -> None:
    """Publish a message at a time on each connection, each confirmed when it is durable."""
    broker = _broker(server, "publish")
    await _window(run, "peer-publish", server, broker.publish(), _greeting(broker, "publisher"))


async def consume(run: BenchRun, server: ServerProcess) -> None:
    """Receive waiting messages ten at a time and acknowledge them."""
    broker = _broker(server, "consume")
    connect = connect_by(_greeting(broker, "publisher"))
    async with LoadGenerator(HOST, server.port, CONNECTIONS, connect) as load:
        await load.drain(broker.publish(FILL_AT_ONCE, run.plan.peer_backlog))
    meter = CpuMeter(server)
    # Messages that other connections have prefetched are not available to the rest.
    jobs = counted(broker.consume(), (run.plan.peer_backlog - CONNECTIONS * PREFETCH) // BATCH)
    async with LoadGenerator(HOST, server.port, CONNECTIONS, connect_by(_greeting(broker, "consumer"))) as load:
        with quiet_memory():
            meter.mark()
            # Brokers differ twentyfold in speed: no fixed time would suit all.
            window = await load.drain(jobs)
            meter.mark()
    run.add(row_of("peer-consume", server.name, CONNECTIONS, [window], meter.cpu_s, proc.rss_mib(server.pid)))


def _broker(server: ServerProcess, queue: str) -> Amqp | Nats:
    return Amqp(HOST, server.port, queue) if isinstance(server, RabbitMq) else Nats(HOST, server.port, queue)


def _greeting(broker: Amqp | Nats, role: str) -> Callable[[], Any]:
    if isinstance(broker, Nats):
        return broker.client
    return broker.publisher if role == "publisher" else broker.consumer


async def _window(run: BenchRun, scenario: str, server: ServerProcess, jobs: Jobs, greet: Callable[[], Any]) -> None:
    meter = CpuMeter(server)
    async with LoadGenerator(HOST, server.port, CONNECTIONS, connect_by(greet)) as load:
        with quiet_memory():
            window = await load.window_of(jobs, run.plan.warm_up_s, run.plan.peer_measure_s, meter.mark)
    run.add(row_of(scenario, server.name, CONNECTIONS, [window], meter.cpu_s, proc.rss_mib(server.pid)))

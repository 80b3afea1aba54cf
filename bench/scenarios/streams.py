"""Streams by Kafka's protocol: producing batches that are durable when they are answered, and fetching.

Kafka gets the same batches by the same connections, one process each, signatures and encryption of Holdfast included.
"""

from __future__ import annotations

from typing import Final

from bench.load import LoadGenerator, Window
from bench.peers.kafka import VALUE_BYTES, KafkaLoad
from bench.peers.kafka_servers import HoldfastStreams
from bench.peers.load import connect_by
from bench.report import row_of
from bench.run import BenchRun, quiet_memory
from bench.servers.servers import CREDENTIALS, HOST, CpuMeter, ServerProcess
from tests.servers import proc

CONNECTIONS: Final = 8
"""Connections, and partitions of a topic."""
SIZES: Final = (1, 100, 1_000)
"""Records of a batch."""
SIZE_OF_FETCHES: Final = 100
HEAD_RECORDS: Final = 8_000
"""Records of each partition that the fetches at the head read: about 2 MiB."""
ROUNDS: Final = 3


async def produce(run: BenchRun, server: ServerProcess) -> None:
    """Append batches of 1, 100 and 1,000 records, a request at a time on each connection."""
    load = _topic(server, "produce")
    await _warm_up(run, server)
    for size in SIZES:
        meter = CpuMeter(server)
        async with LoadGenerator(HOST, server.port, CONNECTIONS, connect_by(load.client)) as generator:
            with quiet_memory():
                jobs = load.produce(size)
                window = await generator.window_of(jobs, run.plan.warm_up_s, run.plan.peer_measure_s, meter.mark)
        _add(run, f"produce {size}", server, window, meter.cpu_s)


async def fetch(run: BenchRun, server: ServerProcess) -> None:
    """Fetch old records in their order, and those of the head, in turn."""
    load = _topic(server, "fetch")
    total = run.plan.stream_records
    async with LoadGenerator(HOST, server.port, CONNECTIONS, connect_by(load.client)) as generator:
        await generator.drain(load.produce(1_000, total - CONNECTIONS * HEAD_RECORDS))
        await generator.drain(load.produce(SIZE_OF_FETCHES, CONNECTIONS * HEAD_RECORDS))
    run.figure("fetch", server, f"memory with {total:,} records", proc.rss_mib(server.pid), "MiB")
    each = total // CONNECTIONS
    starts = {"start": [0] * CONNECTIONS, "head": [each - HEAD_RECORDS // 2] * CONNECTIONS}
    cpu_s = dict.fromkeys(starts, 0.0)
    windows: dict[str, list[Window]] = {name: [] for name in starts}
    for _ in range(ROUNDS):
        for name, offsets in starts.items():
            meter = CpuMeter(server)
            async with LoadGenerator(HOST, server.port, CONNECTIONS, connect_by(load.client)) as generator:
                with quiet_memory():
                    meter.mark()
                    windows[name].append(await generator.drain(load.fetch(offsets, total)))
                    meter.mark()
            cpu_s[name] += meter.cpu_s
    for name, measured in windows.items():
        row = row_of(f"fetch {name}", server.name, CONNECTIONS, measured, cpu_s[name], proc.rss_mib(server.pid))
        run.add(row)


async def _warm_up(run: BenchRun, server: ServerProcess) -> None:
    """Produce and fetch for a while, so that a JVM has compiled both."""
    load = _topic(server, "warm-up")
    seconds = run.plan.warm_up_s if isinstance(server, HoldfastStreams) else run.plan.java_warm_up_s / 3
    async with LoadGenerator(HOST, server.port, CONNECTIONS, connect_by(load.client)) as generator:
        for size in (1, 100):
            await generator.closed(load.produce(size), 0, seconds, lambda: None)
        await generator.closed(load.fetch([0] * CONNECTIONS), 0, seconds, lambda: None)


def _topic(server: ServerProcess, name: str) -> KafkaLoad:
    if isinstance(server, HoldfastStreams):
        load = KafkaLoad(HOST, server.kafka_port, name, CONNECTIONS, CREDENTIALS)
    else:
        load = KafkaLoad(HOST, server.port, name, CONNECTIONS, None)
    load.create()
    return load


def _add(run: BenchRun, scenario: str, server: ServerProcess, window: Window, cpu_s: float) -> None:
    row = run.add(row_of(scenario, server.name, CONNECTIONS, [window], cpu_s, proc.rss_mib(server.pid)))
    mib = row.messages_per_s * VALUE_BYTES / 2**20
    run.figure(scenario, server, "values", mib, "MiB/s")

"""A journal on Cassandra: rows, messages per row, and the fence reads.

One node in this process, its journal on the cluster's three Cassandra nodes, and callers that each send one message at
a time.  The tables in between count and time the log's operations.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from array import array
from collections.abc import Sequence
from typing import Any

from backend.api import SHARDS, Configure, NewMessage, PartitionSettings, Send, Target, Unavailable, shard_of
from backend.journal.cassandra.journal import CassandraJournal
from backend.journal.cassandra.table_interface import StateRead, Written
from backend.journal.cassandra.tables import JOURNAL, CassandraTables
from backend.node import Node, NodeSettings
from bench.jobs import BODY_BYTES
from bench.load import quantile
from bench.run import BenchRun, quiet_memory
from bench.servers.cluster_server import HoldfastCluster
from bench.servers.servers import ServerProcess
from metadata_service.cassandra.driver.connection import CassandraConnection, CassandraSettings
from metadata_service.cassandra.store import CassandraStore

CALLERS = 256
RETRY_SECONDS = 0.05
"""Pause of a caller before it repeats a refused command: the first pause of boto3."""
REFUSED_SECONDS_MAX = 30.0
"""Time for which a call is repeated: after it Cassandra is not slow, but gone."""


class TimedTables:
    """Tables that record the duration of each row's write and of each fence read.  Implements
    :class:`backend.journal.cassandra.journal.CheckedTables`.
    """

    def __init__(self, tables: CassandraTables) -> None:
        self._tables = tables
        self.rows = array("d")
        self.reads = array("d")

    def put_row(self, log_id: int, segment: int, row: int, data: bytes, done: Written) -> None:
        started_at = time.perf_counter()

        def written(error: BaseException | None) -> None:
            self.rows.append(time.perf_counter() - started_at)
            done(error)

        self._tables.put_row(log_id, segment, row, data, written)

    def read_state(self, log_id: int, done: StateRead) -> None:
        started_at = time.perf_counter()

        def read(state: str | BaseException | None) -> None:
            self.reads.append(time.perf_counter() - started_at)
            done(state)

        self._tables.read_state(log_id, read)

    def __getattr__(self, name: str) -> Any:
        """Pass all other operations through."""
        return getattr(self._tables, name)


class _Known:
    """Metadata lookups of the node: knows only the bench's queues."""

    def __init__(self, queues: Sequence[PartitionSettings]) -> None:
        self._queues = {one.partition: one for one in queues}

    async def settings(self, target: Target) -> PartitionSettings | None:
        return self._queues.get(target.partition)

    async def target(self, arn: str, group: str | None = None) -> Target | None:
        return None


async def rows(run: BenchRun, server: ServerProcess) -> None:
    assert isinstance(server, HoldfastCluster)
    cassandra = server.cluster.cassandra
    connection = await CassandraConnection.open(
        CassandraSettings(
            contact_points=tuple(cassandra.contact_points),
            port=cassandra.port,
            replication={"datacenter1": len(cassandra.nodes)},
        )
    )
    keyspace = f"rows_{secrets.token_hex(4)}"
    store = await CassandraStore.open(connection, keyspace)
    await store.bring(JOURNAL)
    tables = TimedTables(await CassandraTables.open(connection, keyspace, store.fence))
    queues = [
        PartitionSettings(number, number, 1, f"arn:aws:sqs:us-east-1:000000000000:q{number}", b"k" * 16)
        for number in range(1, run.plan.cluster_queues + 1)
    ]
    node = await Node.start_on(
        lambda: CassandraJournal(tables), store.entries, _Known(queues), settings=NodeSettings(name="bench")
    )
    try:
        for queue in queues:
            await _persistently(node, Configure(queue))
        one = await _load(run, server, node, tables, "one queue", queues[:1])
        many = await _load(run, server, node, tables, f"{len(queues):,} queues", queues)
        run.figure("rows", server, "shards in use", len({shard_of(one.partition) for one in queues}), f"of {SHARDS}")
        run.figure("rows", server, "CPU a message, many queues over one", many / one, "times")
    finally:
        await node.close()
        await store.close()


async def _persistently(node: Node, command: Configure | Send) -> int:
    """Carry out a command, and repeat it while it is refused, as SDKs do; returns the number of refusals."""
    end, refused = time.perf_counter() + REFUSED_SECONDS_MAX, 0
    while True:
        try:
            await node.call(command)
        except Unavailable:
            if time.perf_counter() > end:
                raise
            refused += 1
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return refused


async def _load(
    run: BenchRun,
    server: ServerProcess,
    node: Node,
    tables: TimedTables,
    name: str,
    queues: Sequence[PartitionSettings],
) -> float:
    """Return the CPU seconds per message of this process: node, driver and callers."""
    body, sent, refused, latencies = b"x" * BODY_BYTES, 0, 0, array("d")
    end = time.perf_counter() + run.plan.warm_up_s + run.plan.rows_measure_s
    targets = [Target(queue.partition, queue.queue_id, queue.version) for queue in queues]

    async def caller(number: int) -> None:
        nonlocal sent, refused
        while (now := time.perf_counter()) < end:
            number += CALLERS
            refused += await _persistently(node, Send(targets[number % len(targets)], [NewMessage(body)]))
            sent += 1
            latencies.append(time.perf_counter() - now)

    callers = [asyncio.create_task(caller(number)) for number in range(CALLERS)]
    await asyncio.sleep(run.plan.warm_up_s)
    with quiet_memory():
        sent = refused = 0
        del latencies[:], tables.rows[:], tables.reads[:]
        started_at, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*callers)
        seconds, cpu = time.perf_counter() - started_at, time.process_time() - cpu
    row, read = (quantile(array("d", sorted(times)), 0.5) for times in (tables.rows, tables.reads))
    ordered = array("d", sorted(latencies))
    for figure, value, unit in (
        ("messages/s", sent / seconds, ""),
        ("sends refused, and repeated", refused, ""),
        ("p50 of a send", quantile(ordered, 0.5) * 1000, "ms"),
        ("p99 of a send", quantile(ordered, 0.99) * 1000, "ms"),
        ("messages in a row", sent / max(len(tables.rows), 1), ""),
        ("reads of the fence, a row", len(tables.reads) / max(len(tables.rows), 1), ""),
        ("p50 of a row's write", row * 1000, "ms"),
        ("p50 of a read of the fence", read * 1000, "ms"),
        ("the read's part of both", read / max(row + read, 1e-9) * 100, "%"),
        ("CPU of node and callers, a message", cpu / max(sent, 1) * 1e6, "µs"),
    ):
        run.figure("rows", server, f"{name}: {figure}", value, unit)
    return cpu / max(sent, 1)

"""``python -m tests.faults.campaign.quorum``: a backend node on three real Cassandra nodes, which are killed and
suspended.

Each fault is a function that takes a :class:`Rig` and returns the observations (:class:`FaultObservations`).  Senders
run before, during and after it; at the end another incarnation of the node takes the log over, and delivers its
messages.  :func:`run` is for campaigns that include these faults.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import NamedTuple

from backend.api import NewMessage, PartitionSettings, Receive, Target, Unavailable
from backend.journal.cassandra.journal import CassandraJournal
from backend.journal.cassandra.log import CassandraLogSettings
from backend.journal.cassandra.tables import JOURNAL, CassandraTables
from backend.node import Node, NodeSettings
from bench.servers.cassandra_server import CassandraCluster, CassandraNode
from metadata_service.cassandra.driver.connection import CassandraConnection, CassandraSettings
from metadata_service.cassandra.store import CassandraStore
from tests.backend.nodes import FakeResolver

SENDERS = 4
SECONDS_MOST = 90.0
"""Timeout for automatic recovery, on a machine that is busy with three JVMs."""
LOG = CassandraLogSettings(segment_bytes=1 << 20, row_bytes=4096)


class FaultObservations(NamedTuple):
    """Observations of a fault."""

    fault: str
    acknowledged: int
    refused: int
    """Number of calls that raised :class:`~backend.api.Unavailable`."""
    stall_seconds: float
    """Longest time without an acknowledgement."""
    lost: int
    """Number of acknowledged messages that are missing afterwards."""
    duplicated: int
    invented: int
    """Number of messages that were never sent."""

    @property
    def kept(self) -> bool:
        """Return whether all promises were kept."""
        return not (self.lost or self.duplicated or self.invented)


class Rig:
    """A node named ``one`` on Cassandra, and senders to a queue of it.  A context manager."""

    def __init__(self, cassandra: CassandraCluster, keyspace: str, partition: int) -> None:
        self.cassandra = cassandra
        self.acknowledged: list[bytes] = []
        self.refused: list[bytes] = []
        self.stall_seconds = 0.0
        self.node: Node
        self.down: list[CassandraNode] = []
        """Nodes that were killed and not restarted."""
        self._keyspace = keyspace
        self._target = Target(partition, partition, 1)
        self._resolver = FakeResolver()
        arn = f"arn:aws:sqs:us-east-1:000000000000:queue-{partition}"
        self._resolver.known[partition] = PartitionSettings(partition, partition, 1, arn, b"k" * 16)
        self._open = AsyncExitStack()
        self._senders: list[asyncio.Task[None]] = []
        self._number = 0

    async def __aenter__(self) -> Rig:
        self.node = await self._start()
        await self.node.configure(self._resolver.known[self._target.partition])
        self._senders = [asyncio.create_task(self._send()) for _ in range(SENDERS)]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()
        await self._open.aclose()

    async def _start(self, name: str = "one") -> Node:
        """Start a node like a process of its own: with its own connection."""
        cassandra = self.cassandra
        connection = await CassandraConnection.open(
            CassandraSettings(
                contact_points=tuple(cassandra.contact_points),
                port=cassandra.port,
                replication={"datacenter1": len(cassandra.nodes)},
                strict=True,
                timeout_seconds=30,
            )
        )
        store = await CassandraStore.open(connection, self._keyspace)
        self._open.push_async_callback(store.close)
        await store.bring(JOURNAL)
        tables = await CassandraTables.open(connection, self._keyspace, store.fence)
        node = await Node.start_on(
            lambda: CassandraJournal(tables, LOG), store, self._resolver, settings=NodeSettings(name)
        )
        self._open.push_async_callback(node.close)
        return node

    async def _stop(self) -> None:
        for sender in self._senders:
            sender.cancel()
        if self._senders:
            await asyncio.wait(self._senders)
        self._senders = []

    async def _send(self) -> None:
        last = time.monotonic()
        while True:
            self._number += 1
            body = b"%d" % self._number * 20
            try:
                await self.node.send(self._target, [NewMessage(body)])
            except Unavailable:
                self.refused.append(body)
                await asyncio.sleep(0.05)  # a client's pause before it retries
            except asyncio.CancelledError:
                self.refused.append(body)
                raise
            else:
                self.acknowledged.append(body)
                now = time.monotonic()
                self.stall_seconds, last = max(self.stall_seconds, now - last), now

    async def more(self, acknowledged: int = 50) -> None:
        """Wait until this many more are acknowledged."""
        wanted = len(self.acknowledged) + acknowledged
        await self.until(lambda: len(self.acknowledged) >= wanted, "messages are acknowledged")

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        started_at = time.monotonic()
        while not condition():
            if time.monotonic() - started_at > SECONDS_MOST:
                raise TimeoutError(f"{SECONDS_MOST:.0f} s have passed, and not yet: {what}")
            for sender in self._senders:
                if sender.done():
                    sender.result()
            await asyncio.sleep(0.01)

    async def kill(self, *nodes: CassandraNode) -> None:
        """kill -9 all of them, at once."""
        self.down += nodes
        await asyncio.gather(*(asyncio.to_thread(node.kill) for node in nodes))

    async def restart(self, *nodes: CassandraNode) -> None:
        """Restart them, and wait until they serve."""
        for node in nodes:
            self.down.remove(node)
            await asyncio.to_thread(node.start, wait=False)
        for node in nodes:
            await asyncio.to_thread(node.wait_until_ready)

    async def seen(self, fault: str) -> FaultObservations:
        """Let another node take over, without waiting for this one, and compare.

        It has another name: the first one lives on, and would seal the logs of its name when it restarts.
        """
        await self._stop()
        successor = await self._start("two")
        found: Counter[bytes] = Counter()
        while messages := await successor.receive(self._target, Receive(10, 600, 0)):
            found.update(message.payload for message in messages)
        sent = {*self.acknowledged, *self.refused}
        return FaultObservations(
            fault,
            len(self.acknowledged),
            len(self.refused) - SENDERS,  # the last send of each was interrupted here
            self.stall_seconds,
            lost=len(set(self.acknowledged) - found.keys()),
            duplicated=sum(found.values()) - len(found),
            invented=len(found.keys() - sent),
        )


# --- the faults -------------------------------------------------------------------------------------------


async def one_is_killed(rig: Rig) -> FaultObservations:
    """Kill one node.  Nothing fails: two are a quorum."""
    *_, last = rig.cassandra.nodes
    await rig.more()
    await rig.kill(last)
    await rig.more(200)
    await rig.restart(last)
    await rig.more()
    return await rig.seen("one Cassandra node killed")


async def one_hangs(rig: Rig) -> FaultObservations:
    """Suspend one node: it keeps its connections and does not answer.  Nothing fails."""
    first, *_ = rig.cassandra.nodes
    await rig.more()
    first.pause()
    try:
        await rig.more(200)
    finally:
        first.resume()
    await rig.more()
    return await rig.seen("one Cassandra node paused")


async def two_are_killed(rig: Rig) -> FaultObservations:
    """Kill two nodes.  Sends fail with a retriable error, and succeed by themselves when one of them is back."""
    _, one, other = rig.cassandra.nodes
    await rig.more()
    await rig.kill(one)
    await rig.more()
    await rig.kill(other)
    await rig.until(lambda: not rig.node.room, "sends are refused")
    acknowledged, refused = len(rig.acknowledged), len(rig.refused)
    await rig.until(lambda: len(rig.refused) >= refused + 20, "more are refused")
    assert len(rig.acknowledged) == acknowledged, "nothing is acknowledged without a quorum"
    await rig.restart(one)
    await rig.more(100)
    return await rig.seen("two Cassandra nodes killed, one after the other")


async def all_are_killed(rig: Rig) -> FaultObservations:
    """Kill all nodes at once, during writes: acknowledged messages are on their disks."""
    await rig.more(300)
    await rig.kill(*rig.cassandra.nodes)
    await rig.until(lambda: not rig.node.room, "sends are refused")
    await rig.restart(*rig.cassandra.nodes)
    await rig.more()
    return await rig.seen("all Cassandra nodes killed at once")


FAULTS: tuple[Callable[[Rig], Awaitable[FaultObservations]], ...] = (
    one_is_killed,
    one_hangs,
    two_are_killed,
    all_are_killed,
)


async def run(cassandra: CassandraCluster, keyspace: str, number: int) -> FaultObservations:
    """Run the fault of this number, with a queue of its own; afterwards all Cassandra nodes serve again."""
    async with Rig(cassandra, keyspace, number + 1) as rig:
        seen = await FAULTS[number](rig)
        await rig.restart(*rig.down)
        return seen


def main() -> int:
    print("| fault | acknowledged | refused | longest stall | lost | duplicated |\n|---|---:|---:|---:|---:|---:|")
    kept = True
    with CassandraCluster(3, heap="384m") as cassandra:
        for number in range(len(FAULTS)):
            seen = asyncio.run(run(cassandra, "faults", number))
            kept = kept and seen.kept
            print(
                f"| {seen.fault} | {seen.acknowledged} | {seen.refused} | {seen.stall_seconds:.1f} s | {seen.lost}"
                f" | {seen.duplicated} |",
                flush=True,
            )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())

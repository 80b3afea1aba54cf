"""A cluster that grows from 3 backends to 12 and shrinks again, under load: ``python -m bench.demo``, or ``make demo``.

Clients send to some queues and receive from them all the time, through two frontends, at a modest rate.  The output
shows the distribution of shards, the number that moved and the necessary minimum, delays and errors of clients, and
that everything acknowledged was received, once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from bench.load import LoadAnswer, LoadError, parse_answer
from holdfast.runtime.stores import Stores
from tests.servers.cassandra_server import CassandraFailed, CassandraMissing
from tests.servers.local_cluster import ClusterFailed, LocalCluster
from tests.servers.signing import RequestSigner, SigningCredentials

QUEUES = 24
SENDERS = 6
RECEIVERS = 12
WAVE = 3
"""Backends that are added, or removed, together."""
CALL_SECONDS = 60.0
BALANCED_SECONDS_MAX = 180.0
DRAIN_SECONDS_MAX = 120.0
PAUSE_SECONDS = 0.05
"""Pause before a refused call, or one whose connection was lost, is repeated."""
COLUMNS = ("seconds", "moved", "least", "max/mean", "calls", "held up", "longest")
WIDTHS = (8, 7, 7, 10, 8, 9, 9)
HELD_SECONDS = 1.0
"""Duration, without a long poll's wait, above which a call counts as held up."""
EXPLANATION = f"""
Each line is a step: backends are added or removed while clients send and receive.
  seconds    until every backend has its share of the 256 shards again
  moved      shards that went to another backend
  least      shards that had to move, at least: those of the removed backends, or those for the added ones
  max/mean   shards of the backend with the most, divided by the mean: 1.00 is even
  calls      of the clients in this time
  held up    calls that took longer than {HELD_SECONDS:g} s, long polls' waiting not counted
  longest    the longest of these calls; after it, refusals that clients met and tried again
"""
"""Legend of the table's columns."""


class DemoClient:
    """One connection to a frontend, one call at a time.

    A call is repeated, byte for byte, until it is answered: with the same invocation id, so that a send counts once.
    """

    def __init__(self, address: str, credentials: SigningCredentials, noticed: Callable[[], Noticed]) -> None:
        self._address = address
        self._signer = RequestSigner(address, credentials, invocation_ids=True)
        self._noticed = noticed
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, action: str, wait_seconds: float = 0.0, **members: Any) -> dict[str, Any]:
        """Return the answer.  ``wait_seconds``: time that the call may wait for messages."""
        started_at = time.monotonic()
        request = self._signer.request(action, json.dumps(members).encode())
        while True:
            try:
                async with asyncio.timeout(CALL_SECONDS):
                    answer = await self._once(request)
                if answer.status == 200:
                    break
                self._noticed().errors[str(json.loads(answer.body or b"{}").get("__type", answer.status))] += 1
            except (OSError, LoadError) as error:
                self._noticed().errors[type(error).__name__] += 1
                self.close()
            await asyncio.sleep(PAUSE_SECONDS)
        self._noticed().call(time.monotonic() - started_at - wait_seconds)
        decoded: dict[str, Any] = json.loads(answer.body) if answer.body else {}
        return decoded

    async def _once(self, request: bytes) -> LoadAnswer:
        if self._streams is None:
            host, _, port = self._address.rpartition(":")
            self._streams = await asyncio.open_connection(host, int(port))
        reader, writer = self._streams
        writer.write(request)
        data = b""
        while (answer := parse_answer(data)) is None:
            part = await reader.read(1 << 16)
            if not part:
                raise LoadError("the connection was closed")
            data += part
        return answer

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


class Noticed:
    """Delays and errors of clients in one act."""

    def __init__(self) -> None:
        self.calls = 0
        self.held = 0
        self.longest_seconds = 0.0
        self.errors: Counter[str] = Counter()

    def call(self, seconds: float) -> None:
        self.calls += 1
        self.held += seconds > HELD_SECONDS
        self.longest_seconds = max(self.longest_seconds, seconds)


class DemoClients:
    """Clients that send and receive all the time."""

    def __init__(self, cluster: LocalCluster, rate: float) -> None:
        self.noticed = Noticed()
        self.acknowledged: set[str] = set()
        self.received: Counter[str] = Counter()
        self._rate = rate
        credentials = SigningCredentials(cluster.key.access_key_id, cluster.key.secret)
        frontends = itertools.cycle([process.address for process in cluster.of("frontend")])
        self._clients = [
            DemoClient(next(frontends), credentials, lambda: self.noticed) for _ in range(SENDERS + RECEIVERS)
        ]
        self._urls: list[str] = []
        self._bodies = itertools.count(1)
        self._sending = True
        self._all_received = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        one = self._clients[0]
        self._urls = [
            (await one.call("CreateQueue", QueueName=f"demo-{number}"))["QueueUrl"] for number in range(QUEUES)
        ]
        queues = itertools.cycle(self._urls)
        self._tasks = [asyncio.create_task(self._send(client, queues)) for client in self._clients[:SENDERS]]
        self._tasks += [
            asyncio.create_task(self._receive(client, self._urls[number::RECEIVERS]))
            for number, client in enumerate(self._clients[SENDERS:])
        ]

    async def stop(self) -> float:
        """Stop sending, and receive the remaining messages; return the seconds that took."""
        started_at = time.monotonic()
        self._sending = False
        await asyncio.gather(*self._tasks[:SENDERS])
        self._check_received()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS_MAX):
                await self._all_received.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        for client in self._clients:
            client.close()
        return time.monotonic() - started_at

    def _check_received(self) -> None:
        if not self._sending and self.acknowledged <= self.received.keys():
            self._all_received.set()

    async def _send(self, client: DemoClient, queues: Iterator[str]) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while self._sending:
            body = str(next(self._bodies))
            await client.call("SendMessage", QueueUrl=next(queues), MessageBody=body)
            self.acknowledged.add(body)
            due = max(due + SENDERS / self._rate, loop.time() - 1)
            await asyncio.sleep(due - loop.time())

    async def _receive(self, client: DemoClient, urls: list[str]) -> None:
        while True:
            for url in urls:
                answer = await client.call(
                    "ReceiveMessage", 1.0, QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1
                )
                messages = answer.get("Messages", [])
                if messages:
                    self.received.update(message["Body"] for message in messages)
                    self._check_received()
                    entries = [
                        {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]}
                        for number, message in enumerate(messages)
                    ]
                    await client.call("DeleteMessageBatch", QueueUrl=url, Entries=entries)


class ShardOwners(NamedTuple):
    """Owners of the shards."""

    owners: dict[int, str]

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.owners.values())

    def balance(self, nodes: int) -> float:
        """Return the ratio of the largest number of shards of a node to the mean."""
        return max(self.counts.values()) * nodes / len(self.owners)

    def moved(self, before: ShardOwners) -> int:
        return sum(self.owners[shard] != owner for shard, owner in before.owners.items())


class Demo:
    """The acts of the demonstration."""

    def __init__(self, cluster: LocalCluster, rate: float, report: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._report = report
        self._load = DemoClients(cluster, rate)
        self._stores = Stores(cluster.settings())

    async def run(self) -> bool:
        """Run the demonstration; return whether no message was lost or delivered twice."""
        try:
            return await self._run()
        finally:
            await self._stores.close()

    async def _run(self) -> bool:
        before = await self._balanced(3)
        await self._load.start()
        self._report(EXPLANATION)
        self._report(" " * 22 + "".join(f"{name:>{width}}" for name, width in zip(COLUMNS, WIDTHS, strict=True)))
        await asyncio.sleep(5)
        self._line("3, at rest", 5, before, before, 3)
        for number in range(3 + WAVE, 12 + 1, WAVE):
            before = await self._act(f"{number - WAVE} -> {number}", before, number, self._add_wave)
        for number in range(12 - WAVE, 3 - 1, -WAVE):
            before = await self._act(f"{number + WAVE} -> {number}", before, number, self._go)
        drained = await self._load.stop()
        lost = len(self._load.acknowledged - self._load.received.keys())
        twice = sum(count - 1 for count in self._load.received.values())
        self._report(
            f"\n{result(len(self._load.acknowledged), lost, twice)}  The last came {drained:.1f} s after its send."
        )
        return not lost and not twice

    async def _add_wave(self) -> None:
        for process in [self._cluster.add_backend() for _ in range(WAVE)]:
            process.start(wait=False)

    async def _go(self) -> None:
        leaving = self._cluster.of("backend")[-WAVE:]
        await asyncio.gather(*(asyncio.to_thread(process.stop) for process in leaving))
        for process in leaving:
            self._cluster.forget(process)

    async def _act(self, name: str, before: ShardOwners, nodes: int, act: Callable[[], Any]) -> ShardOwners:
        self._load.noticed = Noticed()
        started_at = time.monotonic()
        await act()
        after = await self._balanced(nodes)
        self._line(name, time.monotonic() - started_at, before, after, nodes)
        return after

    def _line(self, name: str, seconds: float, before: ShardOwners, after: ShardOwners, nodes: int) -> None:
        noticed = self._load.noticed
        # The minimum that can move: the shards of removed nodes, and the shares of added nodes.
        gone = sum(count for node, count in before.counts.items() if node not in after.counts)
        come = sum(count for node, count in after.counts.items() if node not in before.counts)
        errors = ", ".join(f"{count} x {code}" for code, count in noticed.errors.items())
        self._report(
            f"{name:<22}{seconds:>8.1f}{after.moved(before):>7}{max(gone, come):>7}{after.balance(nodes):>10.2f}"
            f"{noticed.calls:>8}{noticed.held:>9}{noticed.longest_seconds:>8.2f}s {errors}"
        )

    async def _balanced(self, nodes: int) -> ShardOwners:
        """Wait until ``nodes`` backends have all shards, each its share."""
        deadline = time.monotonic() + BALANCED_SECONDS_MAX
        while True:
            reports = await (await self._stores.metadata()).clusters.cluster_reports()
            if reports and not reports[0].moving and not reports[0].unassigned:
                spread = await self._spread()
                live = sum(node.live for node in reports[0].nodes)
                if live == len(spread.counts) == nodes and spread.balance(nodes) < 1.25:
                    return spread
            if time.monotonic() > deadline:
                raise ClusterFailed(f"the shards are not balanced after {BALANCED_SECONDS_MAX:.0f} s: {reports}")
            await asyncio.sleep(0.2)

    async def _spread(self) -> ShardOwners:
        entries = await self._stores.entries()
        names = {entry.log_id: entry.node for entry in await entries.logs()}
        return ShardOwners({entry.shard: names[entry.owner_log] for entry in await entries.shards()})


def result(acknowledged: int, lost: int, twice: int) -> str:
    """Return the outcome as a sentence."""
    received = "received all" if not lost else f"{lost} of them were NOT received"
    again = "none a second time" if not twice else f"{twice} a SECOND TIME"
    return f"{acknowledged} messages acknowledged; {received}, {again}."


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.demo", description="From 3 backends to 12 and back.")
    parser.add_argument("--cassandra", type=int, choices=(1, 3), default=3, help="nodes of Cassandra (3)")
    parser.add_argument("--rate", type=float, default=60.0, help="messages a second (60)")
    options = parser.parse_args()

    def report(text: str) -> None:
        print(text, flush=True)

    try:
        cluster = LocalCluster(cassandra=options.cassandra, metadata=1, backends=3, frontends=2, managers=0)
        with contextlib.closing(cluster):
            cluster.start(report)
            return 0 if asyncio.run(Demo(cluster, options.rate, report).run()) else 1
    except (CassandraMissing, CassandraFailed, ClusterFailed) as error:
        print(error, file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

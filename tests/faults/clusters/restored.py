"""Backup under load of a service with two backend clusters, its loss, and its restore: checked by ids.

Each cluster has queues of its own and some of the clients; meanwhile a move task moves messages from a queue in one
cluster to one in the other.  After the backup all processes are killed and all keyspaces dropped.  All messages of the
restored service are received, and compared with the clients' knowledge:

* messages acknowledged before the backup's start, and whose delete had not started at its end, are there;
* messages deleted before its start are not there, nor are messages sent after its end;
* each message is there once, by its id (which a move changes) and by its content, and a FIFO group is in order.
"""

import asyncio
import contextlib
import itertools
import json
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from cassandra.cluster import Cluster

from holdfast.commandline.client import ClientOptions
from holdfast.commandline.client import RestClient as Operator
from holdfast.runtime.stores import cluster_keyspace
from tests.closing import closing
from tests.faults.campaign.distributed import Doors
from tests.faults.tools.bodies import body_of, key_of
from tests.faults.tools.client import CallRefused, Client, InDoubt, Unreachable, arn_of, url_of
from tests.servers.local_cluster import LocalCluster
from tests.servers.server import REGION
from tests.servers.waiting import wait_until

CLUSTERS = ("local", "east")
EACH = 2
"""Number of standard queues in each cluster, and of pairs of queues between which messages are moved."""
PLACE_INTERVAL_SECONDS = 0.5
"""Interval of creating queues until each cluster has the required ones.  A new queue's cluster is the one that was less
used by its latest report, so those of one moment may all be in one cluster.
"""
VISIBILITY_SECONDS = 5
BODY_BYTES = 4_000
MOVED_MESSAGES = 300
MOVES_PER_SECOND = 20
KEPT = 3
"""Share of a standard queue's messages that are received and never deleted: one in this many."""
DELETES_BEFORE = 30
"""Number of messages of each queue that are deleted before the backup starts."""
BACKUPS_MAX = 5
"""Maximum number of backups: one that fails because of a fault reports that, and is repeated."""
PHASE_SECONDS = 180.0
RETRY_SECONDS = 0.1


@dataclass
class KnownMessage:
    """Knowledge of the clients about one message.  Times are of one monotonic clock."""

    queue: str
    group: str = ""
    place: int = 0
    started: float = 0.0
    sent: float = math.inf
    """Time of the send's acknowledgement."""
    id: str = ""
    delete_started: float = math.inf
    deleted: float = math.inf


@dataclass
class Compared:
    calls: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    had_to_be_there: int = 0
    had_to_be_gone: int = 0
    there: int = 0
    lost: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    """Broken promises, including lost messages."""


class TwoClusters:
    """A service with two backend clusters, and its clients.  ``cluster`` has not been started."""

    def __init__(self, cluster: LocalCluster, folder: Path, seed: int) -> None:
        self.cluster = cluster
        self.seen = Compared()
        self._backups = folder / "backups"
        self._random = Random(seed)
        self._known: dict[str, KnownMessage] = {}
        self._names = itertools.count()
        self._queues: list[str] = []
        self._moved: tuple[str, str] = "", ""
        """Source and destination of the move task."""
        ports = [int(process.address.rpartition(":")[2]) for process in cluster.of("frontend")]
        self._doors = Doors(ports, cluster.key.access_key_id, cluster.key.secret)
        self._ports = itertools.cycle(ports)

    async def run(self, meanwhile: Callable[[LocalCluster], object] = lambda cluster: None) -> Compared:
        """Run the round; ``meanwhile`` is called during the backup."""
        await asyncio.to_thread(self.cluster.start)
        await self._place()
        async with self._load():
            await _until(self._enough, "messages were deleted from each queue")
            started_at, ended = await self._back_up(meanwhile)
        await asyncio.to_thread(self._lose_and_restore)
        compare(self._known, await self._drain(), self._moved, started_at, ended, self.seen)
        return self.seen

    # --- the queues -----------------------------------------------------------------------------------------

    async def _place(self) -> None:
        """Create the required queues in each cluster."""
        signing = {
            "AWS_ACCESS_KEY_ID": self.cluster.key.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.cluster.key.secret,
        }
        operator = Operator(
            ClientOptions(self.cluster.endpoints[0], None, None, None, None), {**signing, "AWS_REGION": REGION}
        )

        def reported() -> bool:
            listed = operator.call("GET", "clusters")["clusters"]
            return len(listed) == len(CLUSTERS) and all(one["nodes"] == 1 for one in listed)

        with contextlib.closing(operator):
            await asyncio.to_thread(wait_until, reported, "both clusters report", PHASE_SECONDS, 0.5)
            async with self._client() as client:
                # In each cluster: standard queues, a FIFO queue, and one that exchanges messages with the other
                # cluster's.
                by_cluster: dict[str, list[str]] = {name: [] for name in CLUSTERS}
                fifo: dict[str, list[str]] = {name: [] for name in CLUSTERS}
                deadline = time.monotonic() + PHASE_SECONDS
                for number in itertools.count():
                    ends = ".fifo" if number % 2 else ""
                    name = f"q{number}{ends}"
                    attributes = {"VisibilityTimeout": str(VISIBILITY_SECONDS)}
                    more = {"FifoQueue": "true"} if ends else {}
                    await client.repeated("CreateQueue", QueueName=name, Attributes={**attributes, **more})
                    shown = await asyncio.to_thread(operator.call, "GET", "queues", name, "partitions")
                    (fifo if ends else by_cluster)[shown["partitions"][0]["cluster"]].append(name)
                    if all(len(by_cluster[one]) > EACH and fifo[one] for one in CLUSTERS):
                        break
                    if time.monotonic() > deadline:
                        raise LookupError(f"the clusters have {by_cluster}, {fifo}, and not enough of each kind")
                    await asyncio.sleep(PLACE_INTERVAL_SECONDS)
                self._queues = [name for one in CLUSTERS for name in (*by_cluster[one][:EACH], fifo[one][0])]
                source, target = (by_cluster[one][EACH] for one in CLUSTERS)
                self._moved = source, target
                policy = json.dumps({"deadLetterTargetArn": arn_of(source), "maxReceiveCount": 1000})
                await client.repeated(
                    "SetQueueAttributes", QueueUrl=url_of(target), Attributes={"RedrivePolicy": policy}
                )
                for _ in range(MOVED_MESSAGES):
                    await self._send(client, source)

    # --- clients --------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        async with closing(Client(self._doors, next(self._ports))) as client:
            yield client

    @asynccontextmanager
    async def _load(self) -> AsyncIterator[None]:
        """Run clients at each queue, until the block ends."""
        tasks = [asyncio.create_task(work(queue)) for queue in self._queues for work in (self._produce, self._consume)]
        tasks.append(asyncio.create_task(self._move()))
        try:
            yield
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _call(self, client: Client, action: str, queue: str, **parameters: Any) -> dict[str, Any] | None:
        """Return the answer of a call; None if there was none: its effect is not known."""
        self.seen.calls += 1
        try:
            return await client.call(action, QueueUrl=url_of(queue), **parameters)
        except (InDoubt, Unreachable, CallRefused) as error:
            if isinstance(error, CallRefused) and error.status != 503 and "expired" not in error.message.lower():
                raise
            self.seen.errors[error.code if isinstance(error, CallRefused) else type(error).__name__] += 1
        await asyncio.sleep(RETRY_SECONDS)
        return None

    async def _send(self, client: Client, queue: str) -> None:
        number = next(self._names)
        key, known = f"k{number}", KnownMessage(queue, place=number, started=time.monotonic())
        self._known[key] = known
        parameters = {"MessageBody": body_of(key, self._random.randrange(BODY_BYTES))}
        if queue.endswith(".fifo"):
            known.group = f"{queue} g{self._random.randrange(3)}"
            parameters |= {"MessageGroupId": known.group.partition(" ")[2], "MessageDeduplicationId": key}
        while True:
            answer = await self._call(client, "SendMessage", queue, **parameters)
            if answer is not None:
                known.sent, known.id = time.monotonic(), answer["MessageId"]
                return
            if not known.group:
                return  # a repetition could store it twice

    async def _produce(self, queue: str) -> None:
        async with self._client() as client:
            while True:
                await self._send(client, queue)
                await asyncio.sleep(0.01)

    async def _consume(self, queue: str) -> None:
        async with self._client() as client:
            while True:
                answer = await self._call(client, "ReceiveMessage", queue, MaxNumberOfMessages=3, WaitTimeSeconds=1)
                for message in (answer or {}).get("Messages", ()):
                    known = self._known[key_of(message["Body"]) or ""]
                    if queue.endswith(".fifo") or known.place % KEPT:
                        known.delete_started = min(known.delete_started, time.monotonic())
                        handle = message["ReceiptHandle"]
                        if await self._call(client, "DeleteMessage", queue, ReceiptHandle=handle) is not None:
                            known.deleted = min(known.deleted, time.monotonic())

    async def _move(self) -> None:
        """Run move tasks from one cluster to the other all the time; messages that have arrived stay."""
        source, target = self._moved
        async with self._client() as client:
            while True:
                with contextlib.suppress(CallRefused, InDoubt, Unreachable):  # a task is running, or a process is down
                    await client.call(
                        "StartMessageMoveTask",
                        SourceArn=arn_of(source),
                        DestinationArn=arn_of(target),
                        MaxNumberOfMessagesPerSecond=MOVES_PER_SECOND,
                    )
                await asyncio.sleep(1)

    def _enough(self) -> bool:
        deleted = Counter(known.queue for known in self._known.values() if known.deleted < math.inf)
        return all(deleted[queue] >= DELETES_BEFORE for queue in self._queues)

    # --- the backup, and what comes after it --------------------------------------------------------------------

    async def _back_up(self, meanwhile: Callable[[LocalCluster], object]) -> tuple[float, float]:
        """Make the backup; returns its start and end."""
        disturbing = asyncio.create_task(asyncio.to_thread(meanwhile, self.cluster))
        for _ in range(BACKUPS_MAX):
            started_at, calls = time.monotonic(), self.seen.calls
            done = await asyncio.to_thread(self.cluster.command, "backup", str(self._backups))
            ended = time.monotonic()
            if done.returncode == 0:
                await disturbing
                assert self.seen.calls > calls, "nobody was at work meanwhile"
                return started_at, ended
        raise AssertionError(f"no backup in {BACKUPS_MAX} attempts: {done.stderr[-2000:]}")

    def _lose_and_restore(self) -> None:
        """Kill all processes and drop all data; then restore and start."""
        cluster, settings = self.cluster, self.cluster.settings()
        for process in cluster:
            process.kill()
        driver = Cluster(cluster.cassandra.contact_points, cluster.cassandra.port)
        try:
            session = driver.connect()
            for name in (settings.cassandra_keyspace, *(cluster_keyspace(settings, one) for one in CLUSTERS)):
                session.execute(f"DROP KEYSPACE {name}", timeout=120)
        finally:
            driver.shutdown()
        for command in ("verify", "restore"):
            done = cluster.command(command, str(self._backups))
            assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stdout}{done.stderr}"
        cluster.start_processes()

    async def _drain(self) -> dict[str, list[tuple[str, str]]]:
        """Receive everything; returns (key, id) of all messages of each queue, in the order of receipt."""
        queues = [*self._queues, *self._moved]
        return dict(zip(queues, await asyncio.gather(*map(self._drain_one, queues)), strict=True))

    async def _drain_one(self, queue: str) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        end = time.monotonic() + PHASE_SECONDS
        async with self._client() as client:
            while True:
                received = await client.receive_all(url_of(queue), delete=True, WaitTimeSeconds=1)
                found += [(key, message["MessageId"]) for key, message in received]
                if not (left := await client.stored(url_of(queue))):
                    return found
                assert time.monotonic() < end, f"{queue} is not empty after {PHASE_SECONDS:g} s: {left} are left"


def compare(
    known_of: Mapping[str, KnownMessage],
    there: Mapping[str, list[tuple[str, str]]],
    moved: tuple[str, str],
    started_at: float,
    ended: float,
    seen: Compared,
) -> None:
    """Add to ``seen`` the messages that are wrongly missing or present in the restored queues.

    ``there``: (key, id) by queue, in the order of receipt; ``moved``: source and destination of moves; ``began`` and
    ``ended``: start and end of the backup.
    """
    times = Counter(key for found in there.values() for key, _ in found)
    seen.there = times.total()
    for key, known in known_of.items():
        if known.sent < started_at and known.delete_started > ended:
            seen.had_to_be_there += 1
            if not times[key]:
                seen.lost.append(f"{known.id} ({key}) of {known.queue} was acknowledged before, and is lost")
        if known.deleted < started_at or known.started > ended:
            seen.had_to_be_gone += 1
            if times[key]:
                seen.broken.append(
                    f"{known.id} ({key}) of {known.queue} was deleted before or sent after, and is there"
                )
    seen.broken += [f"{key} is there {count} times" for key, count in times.items() if count > 1]
    for queue, found in there.items():
        places: dict[str, int] = {}
        for key, message_id in found:
            known = known_of[key]
            if queue != known.queue and (known.queue, queue) != moved:
                seen.broken.append(f"{key} of {known.queue} is in {queue}")
            if queue == known.queue and known.id not in ("", message_id):
                seen.broken.append(f"{key} was acknowledged as {known.id}, and is {message_id}")
            if known.group:
                if known.place < places.get(known.group, 0):
                    seen.broken.append(f"{key} of group {known.group} is out of order")
                places[known.group] = known.place
    seen.broken += seen.lost


async def _until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PHASE_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not so after {PHASE_SECONDS:g} s")
        await asyncio.sleep(RETRY_SECONDS)

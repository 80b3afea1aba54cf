"""``holdfast backup``, ``restore`` and ``verify`` of a service in a real Cassandra, whose nodes run here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from auth.credentials import AccessKey, Tenant
from auth.encryption.keyring import Keyring
from auth.encryption.master_keys import LocalMasterKeys, new_master_key
from auth.encryption.named_keys import DataKeyDestroyed
from backend import api
from backend.api import shard_of
from backend.cluster.member import Member
from backend.journal.cassandra import tables as cassandra_tables
from backend.journal.cassandra.journal import CassandraJournal
from backend.journal.cassandra.log import CassandraLog, CassandraLogSettings
from backend.journal.cassandra.tables import JOURNAL, CassandraTables
from backend.journal.cassandra.tail import CassandraTail
from backend.node import Node, NodeSettings
from backend.serving import transfers
from backend.serving.stream_partition import OpenStream
from backend.serving.streams import binder as binder_module
from backend.stream_api import NewBatch, StreamSettings
from backend.stream_commands import AppendBatch, ConfigureStream, FetchBatches
from holdfast.backup import cassandra_moment, cassandra_restore, cassandra_take
from holdfast.backup.cassandra_restore import Keyspaces
from holdfast.backup.kept import names_in, read_manifest
from holdfast.backup.manifest import BackupUnusable, Manifest
from holdfast.backup.restore import CannotRestore
from holdfast.backup.target import LocalTarget
from holdfast.backup.verify import verify
from holdfast.doctor.cluster import check as doctor_of_clusters
from holdfast.runtime import schema_cassandra
from holdfast.runtime.stores import cluster_keyspace, connection_settings
from holdfast.settings import Settings
from metadata_service.cassandra import copy
from metadata_service.cassandra.copy import Filling
from metadata_service.cassandra.driver.connection import CassandraConnection
from metadata_service.cassandra.driver.keyspace import CassandraKeyspace
from metadata_service.cassandra.entries import CassandraEntries
from metadata_service.cassandra.store import CassandraStore
from metadata_service.models import BackupPin, NewQueue, Queue, cluster_of
from metadata_service.opening import CannotOpen
from metadata_service.store import ConditionFailed, StoreUnavailable
from metadata_service.topics import NewSubscription, NewTopic, Topic
from tests.backend.nodes import FakeResolver, incarnation_of
from tests.backend.serving.test_publications import held_back, publication
from tests.closing import closing
from tests.servers.cassandra_server import CassandraCluster
from tests.servers.waiting import until

ACCOUNT = "000000000001"
KEY = AccessKey(access_key_id="AKIAONE", secret="sealed x", account=ACCOUNT, principal_id="AIDAONE")
CLUSTERS = ("local", "east")
"""Backend clusters, by their numbers."""
LOG = CassandraLogSettings(segment_bytes=64 << 10, row_bytes=4096)
"""Small segments, so that there are several."""


class _Process(NamedTuple):
    """A node with everything that its process would have: a connection, and objects opened over it."""

    node: Node
    store: CassandraStore
    tables: CassandraTables
    cluster: int


class OtherTarget:
    """Connection of a node to the others."""

    def __init__(self, service: _Service) -> None:
        self._service = service

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def ask(target: api.Target, *arguments: Any) -> Any:
            return await getattr(self._service.owner(target.partition), name)(target, *arguments)

        return ask


class _Service:
    """A service in the keyspaces of the settings."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.resolver = FakeResolver()
        self.processes: dict[str, _Process] = {}
        self.metadata: CassandraStore
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> _Service:
        self.metadata = await self._opened(self.settings.cassandra_keyspace)
        await self.metadata.clusters.register_cluster("local")
        for queue in await self.queues():
            self.know(queue)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def _opened(self, keyspace: str) -> CassandraStore:
        connection = await CassandraConnection.open(connection_settings(self.settings))
        store = await CassandraStore.open(connection, keyspace)
        self._stack.push_async_callback(store.close)
        return store

    async def start(
        self, name: str, shards: Collection[int] = (), *, joins: bool = False, cluster: str = "local"
    ) -> _Process:
        number = (await self.metadata.clusters.register_cluster(cluster)).number
        store = await self._opened(cluster_keyspace(self.settings, cluster))
        await store.bring(JOURNAL)
        tables = await CassandraTables.open(store.keyspace.connection, store.keyspace.name, store.fence)
        node = await Node.start_on(
            lambda: CassandraJournal(tables, LOG),
            store.entries,
            self.resolver,
            settings=NodeSettings(name, shards=shards, checkpoint_segments=4, cluster=number),
            peers=OtherTarget(self),  # type: ignore[arg-type]  # it passes all on
        )
        self._stack.push_async_callback(node.close)
        if joins:
            member = Member(name, node, store.entries, lambda: time.time_ns() // 1_000_000, f"{name}:1")
            member.start()
            self._stack.push_async_callback(member.stop)
        self.processes[name] = _Process(node, store, tables, number)
        return self.processes[name]

    async def start_successor(self, cluster: str) -> None:
        """Start a node that takes over all shards of a cluster, and open the cluster's queues."""
        successor = await self.start(f"successor_{cluster}", joins=True, cluster=cluster)

        async def served() -> bool:
            return len(successor.node.owned) == api.SHARDS

        await until(served)
        for known in self.resolver.known.values():
            if cluster_of(known.partition) == successor.cluster:
                await successor.node.call(api.Configure(known))

    def owner(self, partition: int) -> Node:
        shard, cluster = shard_of(partition), cluster_of(partition)
        owners = (one for one in self.processes.values() if one.cluster == cluster)
        return next(one.node for one in owners if shard in one.node.owned)

    # --- queues ---

    async def queues(self) -> list[Queue]:
        names = await self.metadata.queues.list_queues(ACCOUNT, limit=1000)
        return [await self.metadata.queues.get_queue(ACCOUNT, name) for name in names]

    async def queue(self, name: str, owner: str = "", cluster: str = "local", **attributes: str) -> api.Target:
        """Create a queue; ``owner``: the node that shall own it."""
        while True:
            queue = await self.metadata.queues.create_queue(
                NewQueue(ACCOUNT, name, attributes, {}, now_ms=1, hold_seconds=0, clusters=(CLUSTERS.index(cluster),))
            )
            (partition,) = (one.id for one in queue.partitions)
            if not owner or shard_of(partition) in self.processes[owner].node.owned:
                break
            await self.metadata.queues.delete_queue(queue.queue_id, now_ms=1)
        settings = self.know(queue)
        await self.owner(partition).call(api.Configure(settings))
        return api.Target(partition, queue.queue_id, queue.version)

    def target(self, name: str) -> api.Target:
        found = next(one for one in self.resolver.known.values() if one.arn.endswith(f":{name}"))
        return api.Target(found.partition, found.queue_id, found.version)

    async def hidden_queue(self, topic: Topic) -> Queue:
        """The queue that stores a topic's publications."""
        found = await self.metadata.queues.get_queue_by_id(topic.topic_id)
        assert found is not None
        return found

    async def open_hidden_queue(self, topic: Topic) -> api.Target:
        settings = self.know(await self.hidden_queue(topic))
        await self.owner(settings.partition).call(api.Configure(settings))
        return api.Target(settings.partition, settings.queue_id, settings.version)

    def know(self, queue: Queue) -> api.PartitionSettings:
        (partition,) = (one.id for one in queue.partitions)
        arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:{queue.name}"
        settings = api.PartitionSettings(partition, queue.queue_id, queue.version, arn, queue.handle_key)
        self.resolver.known[partition] = settings
        return settings

    async def send(self, target: api.Target, *bodies: str) -> list[str]:
        """Send messages; returns their ids."""
        messages = [api.NewMessage(body.encode()) for body in bodies]
        return [one.message_id for one in await self.owner(target.partition).call(api.Send(target, messages))]

    async def emptied(self, target: api.Target) -> list[str]:
        """Bodies of all messages of a queue, each received once."""
        return [body for _, body in await self.drained(target)]

    async def drained(self, target: api.Target) -> list[tuple[str, str]]:
        """Ids and bodies of all messages of a queue, each received once."""
        node, found = self.owner(target.partition), []
        while messages := await node.call(api.Receive(target, api.ReceiveOptions(10, 600))):
            found += [(message.message_id, message.payload.decode()) for message in messages]
            await node.call(api.Delete(target, [message.handle for message in messages]))
        return found


@pytest.fixture
def settings(cassandra: CassandraCluster, keyspace: str) -> Settings:
    return Settings(
        cassandra=",".join(cassandra.contact_points),
        cassandra_port=cassandra.port,
        cassandra_keyspace=keyspace,
        cassandra_replication="datacenter1=1",
    )


@pytest.fixture
def target(tmp_path: Path) -> LocalTarget:
    return LocalTarget(tmp_path / "target")


async def drop(settings: Settings) -> None:
    async with closing(await CassandraConnection.open(connection_settings(settings))) as connection:
        for name in (settings.cassandra_keyspace, *(cluster_keyspace(settings, one) for one in CLUSTERS)):
            await asyncio.to_thread(connection.session.execute, f"DROP KEYSPACE IF EXISTS {name}", timeout=60)


# --- under load -----------------------------------------------------------------------------------------


class _Ids:
    """Ids of the messages of a queue: acknowledged sends, deletes that were at least started, acknowledged deletes."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.started: list[str] = []
        self.deleted: list[str] = []


class _Load:
    """Clients, each with its own work, until they are stopped; and their answers."""

    def __init__(self, service: _Service) -> None:
        self._service = service
        self.sent: dict[str, list[str]] = {"first": [], "second": [], "failing": []}
        self.taken = {cluster: _Ids() for cluster in CLUSTERS}
        """The ids of the queue of each backend cluster whose messages are received and deleted."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        of_clusters = [partial(work, cluster) for work in (self._give, self._take) for cluster in CLUSTERS]
        work: list[Callable[[int], Awaitable[None]]] = [self._in_turn, self._failing, self._fail, *of_clusters]
        self._tasks = [asyncio.create_task(self._loop(one)) for one in work]

    def check(self) -> None:
        """Check that all are still running."""
        for task in self._tasks:
            assert not task.done(), task.exception()

    async def stop(self) -> None:
        self.check()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        for task in self._tasks:
            assert task.cancelled(), task.exception()

    async def _loop(self, work: Callable[[int], Awaitable[None]]) -> None:
        number = 0
        while True:
            await work(number)
            number += 1

    async def _send(self, name: str, body: str) -> None:
        await self._service.send(self._service.target(name), body)
        self.sent[name].append(body)

    async def _in_turn(self, number: int) -> None:
        """Send the second, on another node, after the first was answered: it never exists without the first."""
        await self._send("first", f"{number}")
        await self._send("second", f"{number}")

    async def _failing(self, number: int) -> None:
        await self._send("failing", f"f{number} {'x' * 500}")

    async def _fail(self, number: int) -> None:
        """Let messages received a second time go to the dead-letter queue, which belongs to the other node."""
        target = self._service.target("failing")
        command = api.ReceiveOptions(10, 0, 0, api.DeadLetter(1, self._service.target("dead")))
        await self._service.owner(target.partition).call(api.Receive(target, command))

    async def _give(self, cluster: str, number: int) -> None:
        self.taken[cluster].sent += await self._service.send(self._service.target(f"taken_{cluster}"), "x" * 500)

    async def _take(self, cluster: str, number: int) -> None:
        target, ids = self._service.target(f"taken_{cluster}"), self.taken[cluster]
        node = self._service.owner(target.partition)
        for message in await node.call(api.Receive(target, api.ReceiveOptions(1, 600))):
            ids.started.append(message.message_id)
            await node.call(api.Delete(target, [message.handle]))
            ids.deleted.append(message.message_id)
        await asyncio.sleep(0.001)


def delay_second_log(patched: pytest.MonkeyPatch, service: _Service, load: _Load) -> None:
    """Delay the backup's read of the second node's log until both are held, or much was sent since the first's was
    read.

    So the backup would find messages of the one without their predecessors on the other, if answers were sent
    meanwhile.
    """
    one, two = (service.processes[name] for name in ("one", "two"))
    catch_up = CassandraTail.catch_up

    async def late(tail: CassandraTail) -> None:
        if tail.log_id == two.node.ownership.log_id:
            wanted = len(load.sent["second"]) + 5

            async def ready() -> bool:
                load.check()
                return bool(one.tables._held and two.tables._held) or len(load.sent["second"]) >= wanted

            await until(ready)
        await catch_up(tail)

    patched.setattr(CassandraTail, "catch_up", late)


async def test_acknowledged_messages_are_there_after_all_was_destroyed(
    settings: Settings, target: LocalTarget, keyspace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "RETRY_SECONDS", 0.01)
    masters = LocalMasterKeys([new_master_key()])
    async with _Service(settings) as service:
        await service.metadata.credentials.create_tenant(Tenant(ACCOUNT, "one"))
        await service.metadata.credentials.put_access_key(KEY)
        keyring = Keyring(service.metadata, masters)
        await keyring.ready(ACCOUNT)
        encrypted = [(await keyring.named.ready(ACCOUNT, name)).encrypt(b"m") for name in ("alias/kept", "alias/gone")]
        await keyring.named.destroy(ACCOUNT, "alias/gone")
        await service.start("one", range(0, api.SHARDS, 2))
        await service.start("two", range(1, api.SHARDS, 2))
        await service.start("three", range(api.SHARDS), cluster="east")
        for name, owner in (("first", "one"), ("second", "two"), ("failing", "one"), ("dead", "two")):
            await service.queue(name, owner)
        untouched: dict[str, list[tuple[str, str]]] = {}
        for cluster in CLUSTERS:
            await service.queue(f"taken_{cluster}", cluster=cluster)
            backlog = await service.queue(f"backlog_{cluster}", cluster=cluster)
            bodies = [f"{cluster} {number} {'x' * 700}" for number in range(200)]
            sent_ids = [one for body in bodies for one in await service.send(backlog, body)]
            untouched[f"backlog_{cluster}"] = list(zip(sent_ids, bodies, strict=True))
        load = _Load(service)
        load.start()

        async def enough() -> bool:
            load.check()
            return min(map(len, (*load.sent.values(), *(ids.deleted for ids in load.taken.values())))) > 30

        await until(enough)
        for name in ("one", "three"):  # also checkpoint files, and live segments below a floor
            await service.processes[name].node.checkpoint()
        before = {name: list(sent) for name, sent in load.sent.items()}
        taken_before = {cluster: (set(ids.sent), set(ids.deleted)) for cluster, ids in load.taken.items()}
        monkeypatch.setattr(cassandra_tables, "HELD_SECONDS_MAX", 30)  # the machine may be busy
        with monkeypatch.context() as patched:
            delay_second_log(patched, service, load)
            taken, _ = await cassandra_take.take(settings, target)
        at_its_end = {name: len(sent) for name, sent in load.sent.items()}

        async def goes_on() -> bool:
            load.check()
            return all(len(load.sent[name]) > at_its_end[name] for name in before)

        await until(goes_on)
        await load.stop()
        assert not (await service.processes["one"].store.entries.cluster()).pins
    await drop(settings)

    kinds = {file.path.rpartition(".")[2] for file in taken.manifest.files}
    assert kinds == {"rows", "bin", "json"}
    manifest = read_manifest(target)
    assert (manifest.form, manifest.queues, manifest.master_keys) == ("cassandra", 8, (masters.primary,))
    assert manifest.clusters == CLUSTERS
    for cluster in CLUSTERS:
        assert any(file.path.startswith(f"clusters/{cluster}/journal/") for file in taken.manifest.files)
    found = await verify(target, manifest, tmp_path, masters)
    assert found.wrong == []
    assert found.state is not None
    counts = {one.name: one.messages for one in found.state.queues}
    other = await verify(target, manifest, tmp_path, LocalMasterKeys([new_master_key()]))
    assert masters.primary in str(other.wrong)

    again = msgspec.structs.replace(settings, cassandra_keyspace=f"{keyspace}_b")
    await cassandra_restore.restore(target, manifest, again)
    with pytest.raises(CannotRestore, match="is not empty"):
        await cassandra_restore.restore(target, manifest, again)
    async with _Service(again) as service:
        assert await service.metadata.credentials.list_access_keys(ACCOUNT) == [KEY]
        assert await service.metadata.data_keys.reserve_seals(1, 1, 1 << 40)
        keyring = Keyring(service.metadata, masters)
        assert await keyring.check() == 0
        assert await keyring.decrypt(ACCOUNT, encrypted[0]) == b"m"
        with pytest.raises(DataKeyDestroyed):
            await keyring.decrypt(ACCOUNT, encrypted[1])
        assert [key.name for key in await service.metadata.named_keys.named_keys()] == ["alias/gone", "alias/kept"]
        for cluster in CLUSTERS:
            await service.start_successor(cluster)
        for name, messages in untouched.items():
            assert sorted(await service.drained(service.target(name))) == sorted(messages)
            assert counts[name] == len(messages)
        for cluster, (sent, deleted) in taken_before.items():
            there = [one for one, _ in await service.drained(service.target(f"taken_{cluster}"))]
            assert len(set(there)) == len(there) <= counts[f"taken_{cluster}"]
            assert sent - set(there) <= set(load.taken[cluster].started), "only what was taken may be gone"
            assert not deleted & set(there)
        first = await service.emptied(service.target("first"))
        second = await service.emptied(service.target("second"))
        for name, kept in (("first", first), ("second", second)):
            assert set(kept) >= set(before[name])
            assert len(set(kept)) == len(kept) == counts[name]
        assert {int(one) for one in second} <= {int(one) for one in first}, "it is the state of one moment"
        assert len(first) - len(second) <= 1
        failed: list[str] = []

        async def all_seen() -> bool:
            """Wait until moving messages have arrived."""
            for name in ("failing", "dead"):
                failed.extend(await service.emptied(service.target(name)))
            return set(failed) >= set(before["failing"])

        await until(all_seen)
        assert len(set(failed)) == len(failed), "each is in one of the two queues"
        ids = {one.queue_id for one in service.resolver.known.values()}
        new = await service.queue("new")
        assert new.queue_id > max(ids) + 1000, "ids of the lost time are not given again"
        await service.send(new, "it goes on")
        assert await service.emptied(new) == ["it goes on"]


# --- the hold -------------------------------------------------------------------------------------------


async def test_a_log_that_is_held_answers_nothing_and_ends_a_hold_that_lasts(
    settings: Settings, target: LocalTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cassandra_tables, "HELD_SECONDS_MAX", 60)
    async with _Service(settings) as service:
        process = await service.start("one", range(api.SHARDS))
        queue, log_id = await service.queue("queue"), process.node.ownership.log_id
        store = await service._opened(cluster_keyspace(settings))  # the store of the other process
        assert await store.entries.hold(log_id, "a backup")
        with pytest.raises(ConditionFailed, match="is held by a backup"):
            await store.entries.hold(log_id, "another")
        sent = asyncio.create_task(service.send(queue, "held"))

        log = process.node._incarnation and process.node._incarnation.log
        assert isinstance(log, CassandraLog)

        async def is_noticed() -> bool:
            return log_id in process.tables._held and bool(log._unanswered) and not log._incomplete

        await until(is_noticed)
        assert not sent.done(), "it is on a quorum, and not answered"
        assert await store.entries.release(log_id, "a backup")
        await sent
        assert not await store.entries.release(log_id, "a backup"), "it did not last"

        monkeypatch.setattr(cassandra_tables, "HELD_SECONDS_MAX", 0.05)
        assert await store.entries.hold(log_id, "killed")
        await service.send(queue, "it goes on")
        assert not await store.entries.release(log_id, "killed")
        assert await store.entries.hold(log_id, "changed")
        (entry,) = await store.entries.logs()
        await store.entries.update_log(entry)
        assert not await store.entries.release(log_id, "changed"), "a change of the entry ends it"

        # Backups meanwhile: holds that do not last, and an entry that changes.
        real = CassandraEntries.release
        tries = 0

        async def lost(self: CassandraEntries, log_id: int, name: str) -> bool:
            nonlocal tries
            tries += 1
            return await real(self, log_id, name) and tries > 2

        monkeypatch.setattr(cassandra_moment, "PAUSE_SECONDS", (0, 0))
        monkeypatch.setattr(CassandraEntries, "release", lost)
        await cassandra_take.take(settings, target)
        assert tries == 3
        monkeypatch.undo()
        await cassandra_take.take(settings, target, keep=1)


async def test_copied_segments_stay_until_the_pin_is_void(settings: Settings) -> None:
    async with _Service(settings) as service:
        process = await service.start("one", range(api.SHARDS))
        queue, log_id = await service.queue("queue"), process.node.ownership.log_id

        async def pin(until_ms: int) -> None:
            entry = await process.store.entries.cluster()
            pins = (BackupPin("killed", until_ms, ((log_id, 2, 1),)),)
            await process.store.entries.update_cluster(msgspec.structs.replace(entry, pins=pins))

        async def filled() -> list[int]:
            for _ in range(60):
                await service.send(queue, "x" * 4000)
            await service.emptied(queue)
            await process.node.checkpoint()
            await process.node.checkpoint()
            return await process.tables.segments(log_id)

        await pin(time.time_ns() // 1_000_000 + 600_000)
        segments = await filled()
        assert segments[:2] == [1, 2]
        assert 3 not in segments, "others go"
        await pin(1)
        assert not {1, 2} & set(await filled())


# --- failures -------------------------------------------------------------------------------------------


async def bind_all(node: Node, topic: api.Target) -> None:
    """Move all batches of a topic into extents."""
    binder = incarnation_of(node).binder
    stream = incarnation_of(node).shards.streams[topic.partition]
    assert isinstance(stream, OpenStream)
    while len(stream.fold.tail):
        await binder._bind(stream)


async def test_topics_are_restored_with_their_extents(
    settings: Settings, target: LocalTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binder_module, "CHECK_SECONDS", 3600.0)  # the test binds
    topic = api.Target(7, 7, 1)
    payloads = [b"%d-" % number * 50_000 for number in range(12)]

    async def append(node: Node, payload: bytes) -> None:
        await node.call(AppendBatch(topic, NewBatch(payload, 1, len(payload))))

    async def fetched(node: Node) -> list[bytes | None]:
        found: list[bytes | None] = []
        while (answer := await node.call(FetchBatches(topic, len(found), 1 << 20, 0.0))).batches:
            found += [batch.payload for batch in answer.batches]
        return found

    async with _Service(settings) as service:
        node = (await service.start("one", range(api.SHARDS))).node
        await node.call(ConfigureStream(StreamSettings(7, 7, 1, ACCOUNT, "orders", bytes(16), 0)))
        for payload in payloads[:10]:
            await append(node, payload)
        await bind_all(node, topic)
        await append(node, payloads[10])
        find = cassandra_moment.find

        async def then_more(*arguments: Any) -> Any:
            """Bytes that are bound after the moment are copied, and do not count."""
            found = await find(*arguments)
            await append(node, b"later")
            await bind_all(node, topic)
            return found

        monkeypatch.setattr(cassandra_take, "find", then_more)
        result, _ = await cassandra_take.take(settings, target)
    (extent,) = [file for file in result.manifest.files if "/extents/" in file.path]
    assert extent.path == "clusters/local/extents/0000000000000007-00000001-00000001.ext"
    found = await verify(target, result.manifest, None, None)
    assert found.wrong == []
    assert found.state is not None
    assert [(one.name, one.records) for one in found.state.topics] == []
    again = msgspec.structs.replace(settings, cassandra_keyspace=f"{settings.cassandra_keyspace}_again")
    await drop(again)
    await cassandra_restore.restore(target, result.manifest, again)
    try:
        async with _Service(again) as service:
            node = (await service.start("two", range(api.SHARDS))).node
            assert await fetched(node) == payloads[:11]
            await append(node, payloads[11])
            await bind_all(node, topic)
            assert await fetched(node) == payloads
    finally:
        await drop(again)


async def test_deliveries_of_topics_that_are_pending_are_made_once_after_a_restore(
    settings: Settings, target: LocalTarget
) -> None:
    async with _Service(settings) as service:
        node = (await service.start("one", range(api.SHARDS))).node
        queues, topics = [await service.queue(name) for name in ("a", "b")], service.metadata.topics
        made = await topics.create_topic(NewTopic(ACCOUNT, "news", {"DisplayName": "News"}, {"team": "shop"}, 1, {}))
        subscribing = NewSubscription(made.topic_id, ACCOUNT, "sqs", "arn:a", {"FilterPolicy": "{}"}, 1)
        subscription = await topics.create_subscription(subscribing)
        topic = await topics.get_topic(ACCOUNT, "news")
        source = await service.open_hidden_queue(topic)
        with held_back(node):
            await node.call(api.Publish(source, [publication(b"news", *queues), publication(b"more", *queues)]))
            result, _ = await cassandra_take.take(settings, target)
    assert result.manifest.queues == 2
    found = await verify(target, result.manifest, None, None)
    assert found.wrong == []
    assert found.state is not None
    assert (found.state.messages, found.state.publications) == (0, 2)
    again = msgspec.structs.replace(settings, cassandra_keyspace=f"{settings.cassandra_keyspace}_again")
    await drop(again)
    await cassandra_restore.restore(target, result.manifest, again)
    try:
        async with _Service(again) as service:
            service.know(await service.hidden_queue(topic))
            node = (await service.start("two", range(api.SHARDS))).node
            assert await service.metadata.topics.list_topics(ACCOUNT, limit=10) == [topic]
            assert await service.metadata.topics.topic_subscriptions(topic.topic_id, limit=10) == [subscription]
            page = await service.metadata.topics.owner_subscriptions(ACCOUNT, limit=10)
            assert page.subscriptions == [subscription]
            for known in service.resolver.known.values():
                await node.call(api.Configure(known))

            async def delivered() -> bool:
                return await node.call(api.CountMessages(source)) == api.Counters()

            await until(delivered)
            for queue in queues:
                assert await service.emptied(queue) == ["news", "more"]
    finally:
        await drop(again)


async def test_a_damaged_backup_is_found_out_and_half_a_restore_is_no_service(
    settings: Settings, target: LocalTarget, keyspace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _Service(settings) as service:
        process = await service.start("one", range(api.SHARDS))
        queue = await service.queue("queue")
        for number in range(20):
            await service.send(queue, f"{number} {'x' * 8000}")
        await process.node.checkpoint()
        await cassandra_take.take(settings, target)
    manifest = read_manifest(target)
    found = await verify(target, manifest, tmp_path, None)
    assert found.state is not None
    assert found.state.messages == 20
    kinds = {file.path.rpartition(".")[0].rstrip("0123456789"): file for file in manifest.files}
    assert len(kinds) == 4
    for file in kinds.values():
        place = tmp_path / "target" / file.content
        whole = place.read_bytes()
        for harmed in (whole[:-1], whole + b"x", bytes([whole[0] ^ 1]) + whole[1:], None):
            place.unlink(missing_ok=True)
            if harmed is not None:
                place.write_bytes(harmed)
            assert file.path in str((await verify(target, manifest, tmp_path, None)).wrong)
            with pytest.raises(BackupUnusable, match=file.path):
                await cassandra_restore.restore(target, manifest, settings)
        place.write_bytes(whole)
    rows = next(file for file in manifest.files if file.path.endswith(".rows"))
    less = msgspec.structs.replace(manifest, files=tuple(file for file in manifest.files if file != rows))
    assert (await verify(target, less, tmp_path, None)).wrong, "what is not in the list is missing"
    with pytest.raises(CannotRestore, match="is not empty"):
        await cassandra_restore.restore(target, manifest, settings)


async def test_no_backup_is_verified_that_cannot_be_restored(
    settings: Settings, target: LocalTarget, keyspace: str, tmp_path: Path
) -> None:
    """Manifests with valid checksums and wrong contents."""
    async with _Service(settings) as service:
        await service.start("one", range(api.SHARDS))
        await service.start("two", range(api.SHARDS), cluster="east")
        await service.send(await service.queue("queue", cluster="east"), "x")
        await cassandra_take.take(settings, target)
    manifest = read_manifest(target)

    def renamed(old: str, new: str) -> Manifest:
        files = (msgspec.structs.replace(one, path=one.path.replace(old, new)) for one in manifest.files)
        return msgspec.structs.replace(manifest, files=tuple(files))

    entries = ("clusters/local/entries.json", "clusters/east/entries.json")
    swapped = renamed(entries[0], "aside")
    swapped = msgspec.structs.replace(
        swapped,
        files=tuple(
            msgspec.structs.replace(one, path={"aside": entries[1], entries[1]: entries[0]}.get(one.path, one.path))
            for one in swapped.files
        ),
    )
    east = [one for one in manifest.files if "/east/" not in one.path]
    wrong = {
        "has an unknown file": renamed(".rows", ".row"),
        "has an unknown file: 'clusters/west": renamed("clusters/east/journal", "clusters/west/journal"),
        "has no clusters/east/entries.json": renamed("clusters/east/entries.json", "clusters/east/entry.json"),
        "entries of another cluster for": swapped,
        "does not have the backend cluster of these queues or topics: 000000000001/queue": msgspec.structs.replace(
            manifest, clusters=("local",), files=tuple(east)
        ),
        "has an invalid name of a backend cluster": msgspec.structs.replace(manifest, clusters=("local", "east; DROP")),
        "was made by a newer Holdfast": msgspec.structs.replace(manifest, schema=manifest.schema + 1),
    }
    again = msgspec.structs.replace(settings, cassandra_keyspace=f"{keyspace}_b")
    for text, manifest_of_it in wrong.items():
        assert text in str((await verify(target, manifest_of_it, tmp_path, None)).wrong)
        with pytest.raises(BackupUnusable, match=text):
            await cassandra_restore.restore(target, manifest_of_it, again)
    same = msgspec.structs.replace(again, cluster="east", cassandra_cluster_keyspace=f"{keyspace}_b_local")
    with pytest.raises(CannotRestore, match="the same keyspace"):
        await cassandra_restore.restore(target, manifest, same)
    async with closing(await CassandraConnection.open(connection_settings(settings))) as connection:
        assert await CassandraKeyspace(connection, again.cassandra_keyspace).tables() is None, "nothing was made"


@pytest.mark.parametrize("step", ["close_all", "put_segment", "put_metadata", "last"])
async def test_an_interrupted_restore_is_reported_and_continues_when_it_is_repeated(
    step: str, settings: Settings, target: LocalTarget, keyspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each of its steps, after that step has done part of its work."""
    async with _Service(settings) as service:
        process = await service.start("one", range(api.SHARDS))
        await service.start("two", range(api.SHARDS), cluster="east")
        for cluster in CLUSTERS:
            queue = await service.queue(cluster, cluster=cluster)
            for number in range(20):
                await service.send(queue, f"{number}")
        await process.node.checkpoint()
        await cassandra_take.take(settings, target)
        await cassandra_take.take(settings, target)
    manifest = read_manifest(target)
    earlier = read_manifest(target, names_in(target)[0])
    again = msgspec.structs.replace(settings, cassandra_keyspace=f"{keyspace}_b")
    keyspaces = [again.cassandra_keyspace, *(cluster_keyspace(again, one) for one in CLUSTERS)]

    with monkeypatch.context() as patched:
        if step == "last":  # the metadata are not open yet, all others are
            opened = copy.open_to_all

            async def open_to_all(store: CassandraStore, note: str) -> None:
                if store.keyspace.name == again.cassandra_keyspace:
                    raise StoreUnavailable("it went away")
                await opened(store, note)

            patched.setattr("holdfast.backup.cassandra_restore.open_to_all", open_to_all)
        else:
            whole = getattr(Keyspaces, step)

            async def cut_off(self: Keyspaces, *arguments: Any) -> None:
                await whole(self, *arguments)
                raise StoreUnavailable("it went away")

            patched.setattr(Keyspaces, step, cut_off)
        with pytest.raises(CannotRestore, match=f"it went away.*Repeat the command.*DROP KEYSPACE {keyspaces[0]};"):
            await cassandra_restore.restore(target, manifest, again)
    async with closing(await CassandraConnection.open(connection_settings(again))) as connection:
        for name in keyspaces[:1] if step == "last" else keyspaces:
            with pytest.raises(CannotOpen, match=r"has an incomplete restore.*repeat that command"):
                await CassandraStore.open(connection.share(), name)
    found = [one for one in await asyncio.to_thread(lambda: list(doctor_of_clusters(again))) if one.level == "wrong"]
    assert any("has an incomplete restore" in one.what and "repeat that command" in one.todo for one in found)
    assert not any("newer release" in one.todo for one in found)
    shown = {kept.keyspace: stored for kept, stored in await schema_cassandra.show(again)}
    assert shown[keyspaces[0]].restoring
    with pytest.raises(CannotRestore, match=f"has part of another backup .{manifest.name}"):
        await cassandra_restore.restore(target, earlier, again)

    await cassandra_restore.restore(target, manifest, again)
    with pytest.raises(CannotRestore, match="is not empty"):
        await cassandra_restore.restore(target, manifest, again)
    async with _Service(again) as service:
        for cluster in CLUSTERS:
            await service.start_successor(cluster)
            queue = service.target(cluster)
            assert sorted(map(int, await service.emptied(queue))) == list(range(20))


async def test_the_later_of_two_restores_into_the_same_keyspaces_ends(
    settings: Settings, target: LocalTarget, keyspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _Service(settings) as service:
        await service.start("one", range(api.SHARDS))
        await service.send(await service.queue("queue"), "x")
        await cassandra_take.take(settings, target)
    manifest = read_manifest(target)
    again = msgspec.structs.replace(settings, cassandra_keyspace=f"{keyspace}_b")
    whole = Keyspaces.put_cluster

    async def meanwhile(self: Keyspaces, name: str, rows: Filling) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(Keyspaces, "put_cluster", whole)
            await cassandra_restore.restore(target, manifest, again)
        await whole(self, name, rows)

    with monkeypatch.context() as patched:
        patched.setattr(Keyspaces, "put_cluster", meanwhile)
        with pytest.raises(CannotRestore, match="another restore into the same keyspaces"):
            await cassandra_restore.restore(target, manifest, again)
    async with _Service(again) as service:
        assert [queue.name for queue in await service.queues()] == ["queue"]

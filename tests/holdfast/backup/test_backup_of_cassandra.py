"""``holdfast backup``, ``restore`` and ``verify`` of a service in a real Cassandra, whose nodes run here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from auth.credentials import AccessKey, Tenant
from auth.encryption.keyring import Keyring
from auth.encryption.master_keys import LocalMasterKeys, new_master_key
from auth.encryption.named_keys import DataKeyDestroyed
from backend.api import SHARDS, DeadLetter, NewMessage, PartitionSettings, Receive, Target
from backend.cluster.member import Member
from backend.journal.cassandra import tables as cassandra_tables
from backend.journal.cassandra.journal import CassandraJournal
from backend.journal.cassandra.log import CassandraLog, CassandraLogSettings
from backend.journal.cassandra.tables import JOURNAL, CassandraTables
from backend.journal.cassandra.tail import CassandraTail
from backend.node import Node, NodeSettings
from backend.serving import transfers
from backend.serving.shards import shard_of
from bench.servers.cassandra_server import CassandraCluster
from holdfast.backup import cassandra_moment, cassandra_restore, cassandra_take
from holdfast.backup.cassandra_restore import Keyspaces
from holdfast.backup.kept import CannotBackUp, names_in, read_manifest
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
from metadata_service.cassandra.store import CassandraStore
from metadata_service.models import BackupPin, Heartbeat, Queue, cluster_of
from metadata_service.opening import CannotOpen
from metadata_service.store import ConditionFailed, StoreUnavailable
from tests.backend.nodes import FakeResolver
from tests.backend.test_node import until

ACCOUNT = "000000000001"
KEY = AccessKey(access_key_id="AKIAONE", secret="sealed x", account=ACCOUNT, principal_id="AIDAONE")
CLUSTERS = ("local", "east")
"""Backend clusters, by their numbers."""
LOG = CassandraLogSettings(segment_bytes=64 << 10, row_bytes=4096)
"""Small segments, so that there are several."""


class _Process:
    """A node with everything that its process would have: a connection, and objects opened over it."""

    def __init__(
        self, node: Node, store: CassandraStore, tables: CassandraTables, member: Member | None, cluster: int
    ) -> None:
        self.node = node
        self.cluster = cluster
        self.store = store
        self.tables = tables
        self.member = member


class Elsewhere:
    """Connection of a node to the others."""

    def __init__(self, service: _Service) -> None:
        self._service = service

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def ask(target: Target, *arguments: Any) -> Any:
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
        await self.metadata.register_cluster("local")
        for queue in await self.queues():
            self._know(queue)
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
        number = (await self.metadata.register_cluster(cluster)).number
        store = await self._opened(cluster_keyspace(self.settings, cluster))
        await store.bring(JOURNAL)
        tables = await CassandraTables.open(store.keyspace.connection, store.keyspace.name, store.fence)
        node = await Node.start_on(
            lambda: CassandraJournal(tables, LOG),
            store,
            self.resolver,
            settings=NodeSettings(name, shards=shards, checkpoint_segments=4, cluster=number),
            elsewhere=Elsewhere(self),  # type: ignore[arg-type]  # it passes all on
        )
        self._stack.push_async_callback(node.close)
        member = None
        if joins:
            member = Member(name, node, store, lambda: time.time_ns() // 1_000_000, f"{name}:1")
            member.start()
            self._stack.push_async_callback(member.stop)
        self.processes[name] = _Process(node, store, tables, member, number)
        return self.processes[name]

    def owner(self, partition: int) -> Node:
        shard, cluster = shard_of(partition), cluster_of(partition)
        owners = (one for one in self.processes.values() if one.cluster == cluster)
        return next(one.node for one in owners if shard in one.node.owned)

    # --- queues ---

    async def queues(self) -> list[Queue]:
        names = await self.metadata.list_queues(ACCOUNT, limit=1000)
        return [await self.metadata.get_queue(ACCOUNT, name) for name in names]

    async def queue(self, name: str, owner: str = "", cluster: str = "local", **attributes: str) -> Target:
        """Create a queue; ``owner``: the node that shall own it."""
        while True:
            queue = await self.metadata.create_queue(
                ACCOUNT, name, attributes, {}, now_ms=1, hold_seconds=0, clusters=[CLUSTERS.index(cluster)]
            )
            (partition,) = (one.id for one in queue.partitions)
            if not owner or shard_of(partition) in self.processes[owner].node.owned:
                break
            await self.metadata.delete_queue(queue.queue_id, now_ms=1)
        settings = self._know(queue)
        await self.owner(partition).configure(settings)
        return Target(partition, queue.queue_id, queue.version)

    def target(self, name: str) -> Target:
        found = next(one for one in self.resolver.known.values() if one.arn.endswith(f":{name}"))
        return Target(found.partition, found.queue_id, found.version)

    def _know(self, queue: Queue) -> PartitionSettings:
        (partition,) = (one.id for one in queue.partitions)
        arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:{queue.name}"
        settings = PartitionSettings(partition, queue.queue_id, queue.version, arn, queue.handle_key)
        self.resolver.known[partition] = settings
        return settings

    async def send(self, target: Target, *bodies: str) -> list[str]:
        """Send messages; returns their ids."""
        messages = [NewMessage(body.encode()) for body in bodies]
        return [one.message_id for one in await self.owner(target.partition).send(target, messages)]

    async def emptied(self, target: Target) -> list[str]:
        """Bodies of all messages of a queue, each received once."""
        return [body for _, body in await self.drained(target)]

    async def drained(self, target: Target) -> list[tuple[str, str]]:
        """Ids and bodies of all messages of a queue, each received once."""
        node, found = self.owner(target.partition), []
        while messages := await node.receive(target, Receive(10, 600)):
            found += [(message.message_id, message.payload.decode()) for message in messages]
            await node.delete(target, [message.handle for message in messages])
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
    connection = await CassandraConnection.open(connection_settings(settings))
    try:
        for name in (settings.cassandra_keyspace, *(cluster_keyspace(settings, one) for one in CLUSTERS)):
            await asyncio.to_thread(connection.session.execute, f"DROP KEYSPACE IF EXISTS {name}", timeout=60)
    finally:
        await connection.close()


# --- under load -----------------------------------------------------------------------------------------


class _Load:
    """Clients, each with its own work, until they are stopped; and their answers."""

    def __init__(self, service: _Service) -> None:
        self._service = service
        self.sent: dict[str, list[str]] = {"first": [], "second": [], "failing": []}
        self.deleted: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        work = (self._in_turn, self._failing, self._fail, self._take)
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
        command = Receive(10, 0, 0, DeadLetter(1, self._service.target("dead")))
        await self._service.owner(target.partition).receive(target, command)

    async def _take(self, number: int) -> None:
        target = self._service.target("taken")
        node = self._service.owner(target.partition)
        await node.send(target, [NewMessage(b"t%d" % number)])
        for message in await node.receive(target, Receive(10, 600)):
            await node.delete(target, [message.handle])
            self.deleted.append(message.payload.decode())


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


async def test_what_was_acknowledged_before_is_there_after_all_was_destroyed(
    settings: Settings, target: LocalTarget, keyspace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "RETRY_SECONDS", 0.01)
    masters = LocalMasterKeys([new_master_key()])
    async with _Service(settings) as service:
        await service.metadata.create_tenant(Tenant(ACCOUNT, "one"))
        await service.metadata.put_access_key(KEY)
        keyring = Keyring(service.metadata, masters)
        await keyring.ready(ACCOUNT)
        encrypted = [(await keyring.named.ready(ACCOUNT, name)).seal(b"m") for name in ("alias/kept", "alias/gone")]
        await keyring.named.destroy(ACCOUNT, "alias/gone")
        await service.start("one", range(0, SHARDS, 2))
        await service.start("two", range(1, SHARDS, 2))
        for name, owner in (("first", "one"), ("second", "two"), ("failing", "one"), ("dead", "two"), ("taken", "two")):
            await service.queue(name, owner)
        load = _Load(service)
        load.start()

        async def enough() -> bool:
            load.check()
            return min(*map(len, load.sent.values()), len(load.deleted)) > 30

        await until(enough)
        await service.processes["one"].node.checkpoint()  # also checkpoint files, and live segments below a floor
        before, deleted = {name: list(sent) for name, sent in load.sent.items()}, set(load.deleted)
        monkeypatch.setattr(cassandra_tables, "HELD_SECONDS_MOST", 30)  # the machine may be busy
        with monkeypatch.context() as patched:
            delay_second_log(patched, service, load)
            taken, _ = await cassandra_take.take(settings, target)
        at_its_end = {name: len(sent) for name, sent in load.sent.items()}

        async def goes_on() -> bool:
            load.check()
            return all(len(load.sent[name]) > at_its_end[name] for name in before)

        await until(goes_on)
        await load.stop()
        assert not (await service.processes["one"].store.cluster()).pins
    await drop(settings)

    kinds = {file.path.rpartition(".")[2] for file in taken.manifest.files}
    assert kinds == {"rows", "bin", "json"}
    manifest = read_manifest(target)
    assert (manifest.form, manifest.queues, manifest.master_keys) == ("cassandra", 5, (masters.primary,))
    found = await verify(target, manifest, tmp_path, masters)
    assert found.wrong == []
    counts = {one.name: one.messages for one in found.queues or ()}
    other = await verify(target, manifest, tmp_path, LocalMasterKeys([new_master_key()]))
    assert masters.primary in str(other.wrong)

    again = msgspec.structs.replace(settings, cassandra_keyspace=f"{keyspace}_b")
    await cassandra_restore.restore(target, manifest, again)
    with pytest.raises(CannotRestore, match="is not empty"):
        await cassandra_restore.restore(target, manifest, again)
    async with _Service(again) as service:
        assert await service.metadata.list_access_keys(ACCOUNT) == [KEY]
        assert await service.metadata.reserve_seals(1, 1, 1 << 40)
        keyring = Keyring(service.metadata, masters)
        assert await keyring.check() == 0
        assert await keyring.open(ACCOUNT, encrypted[0]) == b"m"
        with pytest.raises(DataKeyDestroyed):
            await keyring.open(ACCOUNT, encrypted[1])
        assert [key.name for key in await service.metadata.named_keys()] == ["alias/gone", "alias/kept"]
        successor = await service.start("successor", joins=True)

        async def served() -> bool:
            return len(successor.node.owned) == SHARDS

        await until(served)
        for known in service.resolver.known.values():
            await successor.node.configure(known)
        first = await service.emptied(service.target("first"))
        second = await service.emptied(service.target("second"))
        for name, kept in (("first", first), ("second", second)):
            assert set(kept) >= set(before[name])
            assert len(set(kept)) == len(kept) == counts[name]
        assert {int(one) for one in second} <= {int(one) for one in first}, "it is the state of one moment"
        assert len(first) - len(second) <= 1
        assert not deleted & set(await service.emptied(service.target("taken")))
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


# --- several backend clusters -----------------------------------------------------------------------------


class ByIds:
    """Clients of one queue, which send messages and delete part of them, until they are stopped."""

    def __init__(self, service: _Service, target: Target) -> None:
        self._service = service
        self._target = target
        self.sent: list[str] = []
        """Ids of messages whose send was answered."""
        self.started: list[str] = []
        """Ids of messages for which a delete was at least started."""
        self.deleted: list[str] = []
        """Ids of messages whose deletion was answered."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(one()) for one in (self._send, self._take)]

    async def stop(self) -> None:
        for task in self._tasks:
            assert not task.done(), task.exception()
            task.cancel()
        await asyncio.wait(self._tasks)

    async def _send(self) -> None:
        while True:
            self.sent += await self._service.send(self._target, "x" * 500)

    async def _take(self) -> None:
        node = self._service.owner(self._target.partition)
        while True:
            for message in await node.receive(self._target, Receive(1, 600)):
                self.started.append(message.message_id)
                await node.delete(self._target, [message.handle])
                self.deleted.append(message.message_id)
            await asyncio.sleep(0.001)


async def test_a_service_with_two_clusters_comes_back_message_by_message(
    settings: Settings, target: LocalTarget, keyspace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cassandra_tables, "HELD_SECONDS_MOST", 30)  # the machine may be busy
    untouched: dict[str, list[tuple[str, str]]] = {}
    async with _Service(settings) as service:
        await service.start("one", range(SHARDS))
        await service.start("two", range(SHARDS), cluster="east")
        busy = {}
        for cluster in CLUSTERS:
            backlog = await service.queue(backlog_name(cluster), cluster=cluster)
            bodies = [f"{cluster} {number} {'x' * 700}" for number in range(200)]
            ids = [one for body in bodies for one in await service.send(backlog, body)]
            untouched[backlog_name(cluster)] = list(zip(ids, bodies, strict=True))
            busy[cluster] = ByIds(service, await service.queue(f"busy_{cluster}", cluster=cluster))
        await service.processes["two"].node.checkpoint()  # also checkpoint files
        for load in busy.values():
            load.start()

        async def enough() -> bool:
            return all(len(load.deleted) > 20 for load in busy.values())

        await until(enough)
        before = {cluster: (list(load.sent), list(load.deleted)) for cluster, load in busy.items()}
        taken, _ = await cassandra_take.take(settings, target)
        for load in busy.values():
            await load.stop()
    await drop(settings)

    manifest = read_manifest(target)
    assert manifest.clusters == CLUSTERS
    for cluster in CLUSTERS:
        assert any(file.path.startswith(f"clusters/{cluster}/journal/") for file in taken.manifest.files)
    found = await verify(target, manifest, tmp_path, None)
    assert found.wrong == []
    counts = {one.name: one.messages for one in found.queues or ()}
    again = msgspec.structs.replace(settings, cassandra_keyspace=f"{keyspace}_b")
    await cassandra_restore.restore(target, manifest, again)
    async with _Service(again) as service:
        for cluster in CLUSTERS:
            started = await service.start(f"successor_{cluster}", joins=True, cluster=cluster)

            async def served(node: Node = started.node) -> bool:
                return len(node.owned) == SHARDS

            await until(served)
        for known in service.resolver.known.values():
            await service.owner(known.partition).configure(known)
        for name, messages in untouched.items():
            assert sorted(await service.drained(service.target(name))) == sorted(messages)
            assert counts[name] == len(messages)
        for cluster, (sent, deleted) in before.items():
            there = [one for one, _ in await service.drained(service.target(f"busy_{cluster}"))]
            assert len(set(there)) == len(there) <= counts[f"busy_{cluster}"]
            assert set(sent) - set(there) <= set(busy[cluster].started), "only what was taken may be gone"
            assert not set(deleted) & set(there)


def backlog_name(cluster: str) -> str:
    return f"backlog_{cluster}"


# --- the hold -------------------------------------------------------------------------------------------


async def test_a_log_that_is_held_answers_nothing_and_ends_a_hold_that_lasts(
    settings: Settings, target: LocalTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cassandra_tables, "HELD_SECONDS_MOST", 60)
    async with _Service(settings) as service:
        process = await service.start("one", range(SHARDS))
        queue, log_id = await service.queue("queue"), process.node.ownership.log_id
        store = await service._opened(cluster_keyspace(settings))  # the store of the other process
        assert await store.hold(log_id, "a backup")
        with pytest.raises(ConditionFailed, match="is held by a backup"):
            await store.hold(log_id, "another")
        sent = asyncio.create_task(service.send(queue, "held"))

        log = process.node._incarnation and process.node._incarnation.log
        assert isinstance(log, CassandraLog)

        async def is_noticed() -> bool:
            return log_id in process.tables._held and bool(log._unanswered) and not log._incomplete

        await until(is_noticed)
        assert not sent.done(), "it is on a quorum, and not answered"
        assert await store.release(log_id, "a backup")
        await sent
        assert not await store.release(log_id, "a backup"), "it did not last"

        monkeypatch.setattr(cassandra_tables, "HELD_SECONDS_MOST", 0.05)
        assert await store.hold(log_id, "killed")
        await service.send(queue, "it goes on")
        assert not await store.release(log_id, "killed")
        assert await store.hold(log_id, "changed")
        (entry,) = await store.logs()
        await store.update_log(entry)
        assert not await store.release(log_id, "changed"), "a change of the entry ends it"

        # Backups meanwhile: holds that do not last, an entry that changes, a node that does not support
        # holds.
        real = CassandraStore.release
        tries = 0

        async def lost(self: CassandraStore, log_id: int, name: str) -> bool:
            nonlocal tries
            tries += 1
            return await real(self, log_id, name) and tries > 2

        monkeypatch.setattr(cassandra_moment, "PAUSE_SECONDS", (0, 0))
        monkeypatch.setattr(CassandraStore, "release", lost)
        await cassandra_take.take(settings, target)
        assert tries == 3
        monkeypatch.undo()
        beat = Heartbeat("one", log_id, 1, 1, 1)
        await store.beat(beat)
        with pytest.raises(CannotBackUp, match="of an earlier release"):
            await cassandra_take.take(settings, target)
        await store.beat(msgspec.structs.replace(beat, count=2, can_be_held=True))
        await cassandra_take.take(settings, target, keep=1)


async def test_what_a_backup_copies_stays_until_its_pin_is_void(settings: Settings) -> None:
    async with _Service(settings) as service:
        process = await service.start("one", range(SHARDS))
        queue, log_id = await service.queue("queue"), process.node.ownership.log_id

        async def pin(until_ms: int) -> None:
            entry = await process.store.cluster()
            pins = (BackupPin("killed", until_ms, ((log_id, 2, 1),)),)
            await process.store.update_cluster(msgspec.structs.replace(entry, pins=pins))

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


async def test_a_damaged_backup_is_found_out_and_half_a_restore_is_no_service(
    settings: Settings, target: LocalTarget, keyspace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _Service(settings) as service:
        process = await service.start("one", range(SHARDS))
        queue = await service.queue("queue")
        for number in range(20):
            await service.send(queue, f"{number} {'x' * 8000}")
        await process.node.checkpoint()
        await cassandra_take.take(settings, target)
    manifest = read_manifest(target)
    assert (await verify(target, manifest, tmp_path, None)).messages == 20
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
        await service.start("one", range(SHARDS))
        await service.start("two", range(SHARDS), cluster="east")
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
        "belongs to no part": renamed(".rows", ".row"),
        "belongs to no part of it: 'clusters/west": renamed("clusters/east/journal", "clusters/west/journal"),
        "has no clusters/east/entries.json": renamed("clusters/east/entries.json", "clusters/east/entry.json"),
        "entries of another cluster for": swapped,
        "lacks the backend cluster of these queues: 000000000001/queue": msgspec.structs.replace(
            manifest, clusters=("local",), files=tuple(east)
        ),
        "names a backend cluster wrongly": msgspec.structs.replace(manifest, clusters=("local", "east; DROP")),
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
    connection = await CassandraConnection.open(connection_settings(settings))
    try:
        assert await CassandraKeyspace(connection, again.cassandra_keyspace).tables() is None, "nothing was made"
    finally:
        await connection.close()


@pytest.mark.parametrize("step", ["close_all", "put_segment", "put_metadata", "last"])
async def test_a_restore_that_was_cut_off_says_so_and_goes_on_when_it_is_repeated(
    step: str, settings: Settings, target: LocalTarget, keyspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each of its steps, after that step has done part of its work."""
    async with _Service(settings) as service:
        process = await service.start("one", range(SHARDS))
        await service.start("two", range(SHARDS), cluster="east")
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
    connection = await CassandraConnection.open(connection_settings(again))
    try:
        for name in keyspaces[:1] if step == "last" else keyspaces:
            with pytest.raises(CannotOpen, match=r"was not restored to its end.*repeat that command"):
                await CassandraStore.open(connection.share(), name)
    finally:
        await connection.close()
    found = [one for one in await asyncio.to_thread(lambda: list(doctor_of_clusters(again))) if one.level == "wrong"]
    assert any("was not restored to its end" in one.what and "repeat that command" in one.todo for one in found)
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
            successor = await service.start(f"successor_{cluster}", joins=True, cluster=cluster)

            async def served(node: Node = successor.node) -> bool:
                return len(node.owned) == SHARDS

            await until(served)
            queue = service.target(cluster)
            await successor.node.configure(service.resolver.known[queue.partition])
            assert sorted(map(int, await service.emptied(queue))) == list(range(20))


async def test_of_two_restores_into_the_same_keyspaces_the_later_one_ends(
    settings: Settings, target: LocalTarget, keyspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _Service(settings) as service:
        await service.start("one", range(SHARDS))
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

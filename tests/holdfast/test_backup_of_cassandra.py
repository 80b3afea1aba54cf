"""``holdfast backup``, ``restore`` and ``verify`` of a service in a real Cassandra, whose nodes run here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import msgspec
import pytest

from auth.credentials import AccessKey, Tenant
from auth.keyring import Keyring
from auth.master_keys import LocalMasterKeys, new_master_key
from backend import ferry
from backend.api import SHARDS, DeadLetter, NewMessage, PartitionSettings, Receive, Target
from backend.journal import cassandra_tables
from backend.journal.cassandra_journal import CassandraJournal
from backend.journal.cassandra_log import CassandraLog, CassandraLogSettings
from backend.journal.cassandra_tables import JOURNAL, CassandraTables
from backend.journal.cassandra_tail import CassandraTail
from backend.manager import Member
from backend.node import Node, NodeSettings
from backend.shards import shard_of
from bench.cassandra_server import CassandraCluster
from holdfast.backup import cassandra_moment, cassandra_restore, cassandra_take
from holdfast.backup.kept import CannotBackUp, read_manifest
from holdfast.backup.manifest import BackupUnusable
from holdfast.backup.restore import CannotRestore
from holdfast.backup.target import LocalTarget
from holdfast.backup.verify import verify
from holdfast.settings import Settings
from holdfast.stores import cluster_keyspace, connection_settings
from metadata_service.cassandra import CassandraStore
from metadata_service.cassandra_connection import CassandraConnection
from metadata_service.models import BackupPin, Heartbeat, Queue
from metadata_service.opening import CannotOpen
from metadata_service.store import ConditionFailed, StoreUnavailable
from tests.backend.nodes import Resolver
from tests.backend.test_node import until

ACCOUNT = "000000000001"
KEY = AccessKey(access_key_id="AKIAONE", secret="sealed x", account=ACCOUNT, principal_id="AIDAONE")
LOG = CassandraLogSettings(segment_bytes=64 << 10, row_bytes=4096)
"""Small segments, so that there are several."""


class Process:
    """A node with all that a process of its own has: a connection, and what is opened over it."""

    def __init__(self, node: Node, store: CassandraStore, tables: CassandraTables, member: Member | None) -> None:
        self.node = node
        self.store = store
        self.tables = tables
        self.member = member


class Elsewhere:
    """The way from a node to the others."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def ask(target: Target, *arguments: Any) -> Any:
            return await getattr(self._service.owner(target.partition), name)(target, *arguments)

        return ask


class Service:
    """A service in the keyspaces that the settings name."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.resolver = Resolver()
        self.processes: dict[str, Process] = {}
        self.metadata: CassandraStore
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Service:
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

    async def start(self, name: str, shards: Collection[int] = (), *, joins: bool = False) -> Process:
        store = await self._opened(cluster_keyspace(self.settings))
        await store.bring(JOURNAL)
        tables = await CassandraTables.open(store.keyspace.connection, store.keyspace.name, store.fence)
        node = await Node.start_on(
            lambda: CassandraJournal(tables, LOG),
            store,
            self.resolver,
            settings=NodeSettings(name, shards=shards, checkpoint_segments=4),
            elsewhere=Elsewhere(self),  # type: ignore[arg-type]  # it passes all on
        )
        self._stack.push_async_callback(node.close)
        member = None
        if joins:
            member = Member(name, node, store, lambda: time.time_ns() // 1_000_000, f"{name}:1")
            member.start()
            self._stack.push_async_callback(member.stop)
        self.processes[name] = Process(node, store, tables, member)
        return self.processes[name]

    def owner(self, partition: int) -> Node:
        shard = shard_of(partition)
        return next(one.node for one in self.processes.values() if shard in one.node.owned)

    # --- queues ---

    async def queues(self) -> list[Queue]:
        names = await self.metadata.list_queues(ACCOUNT, limit=1000)
        return [await self.metadata.get_queue(ACCOUNT, name) for name in names]

    async def queue(self, name: str, owner: str = "", **attributes: str) -> Target:
        """A new queue; ``owner``: a node that is to have it."""
        while True:
            queue = await self.metadata.create_queue(ACCOUNT, name, attributes, {}, now_ms=1, hold_seconds=0)
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

    async def send(self, target: Target, *bodies: str) -> None:
        await self.owner(target.partition).send(target, [NewMessage(body.encode()) for body in bodies])

    async def emptied(self, target: Target) -> list[str]:
        """All messages of a queue, each taken once."""
        node, found = self.owner(target.partition), []
        while messages := await node.receive(target, Receive(10, 600)):
            found += [message.payload.decode() for message in messages]
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
        for name in (settings.cassandra_keyspace, cluster_keyspace(settings)):
            await asyncio.to_thread(connection.session.execute, f"DROP KEYSPACE {name}", timeout=60)
    finally:
        await connection.close()


# --- under load -----------------------------------------------------------------------------------------


class Load:
    """Clients, each at its own work, until they are stopped; and what they were answered."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.sent: dict[str, list[str]] = {"first": [], "second": [], "failing": []}
        self.deleted: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        work = (self._in_turn, self._failing, self._fail, self._take)
        self._tasks = [asyncio.create_task(self._loop(one)) for one in work]

    def check(self) -> None:
        """All of them are at work."""
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
        """The second, of another node, is sent when the first was answered: it is never there without the first."""
        await self._send("first", f"{number}")
        await self._send("second", f"{number}")

    async def _failing(self, number: int) -> None:
        await self._send("failing", f"f{number} {'x' * 500}")

    async def _fail(self, number: int) -> None:
        """What is received for the second time goes to the dead-letter queue, which is the other node's."""
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


def look_late(patched: pytest.MonkeyPatch, service: Service, load: Load) -> None:
    """Let the backup look at the second node's log only when both are held, or much was sent since it looked at the
    first's: so it has messages of the one without those of the other before, if answers go out meanwhile."""
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
    monkeypatch.setattr(ferry, "RETRY_SECONDS", 0.01)
    masters = LocalMasterKeys([new_master_key()])
    async with Service(settings) as service:
        await service.metadata.create_tenant(Tenant(ACCOUNT, "one"))
        await service.metadata.put_access_key(KEY)
        await Keyring(service.metadata, masters).ready(ACCOUNT)
        await service.start("one", range(0, SHARDS, 2))
        await service.start("two", range(1, SHARDS, 2))
        for name, owner in (("first", "one"), ("second", "two"), ("failing", "one"), ("dead", "two"), ("taken", "two")):
            await service.queue(name, owner)
        load = Load(service)
        load.start()

        async def enough() -> bool:
            load.check()
            return min(*map(len, load.sent.values()), len(load.deleted)) > 30

        await until(enough)
        await service.processes["one"].node.checkpoint()  # pieces, too, and live segments below a floor
        before, deleted = {name: list(sent) for name, sent in load.sent.items()}, set(load.deleted)
        monkeypatch.setattr(cassandra_tables, "HELD_SECONDS_MOST", 30)  # a busy machine is no failure
        with monkeypatch.context() as patched:
            look_late(patched, service, load)
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
    async with Service(again) as service:
        assert await service.metadata.list_access_keys(ACCOUNT) == [KEY]
        assert await service.metadata.reserve_seals(1, 1, 1 << 40)
        heir = await service.start("heir", joins=True)

        async def served() -> bool:
            return len(heir.node.owned) == SHARDS

        await until(served)
        for known in service.resolver.known.values():
            await heir.node.configure(known)
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
            """Messages that were on their way have arrived."""
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
    monkeypatch.setattr(cassandra_tables, "HELD_SECONDS_MOST", 60)
    async with Service(settings) as service:
        process = await service.start("one", range(SHARDS))
        queue, log_id = await service.queue("queue"), process.node.ownership.log_id
        store = await service._opened(cluster_keyspace(settings))  # the other's process
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

        # Backups meanwhile: holds that do not last, an entry that changes, a node that does not know what a hold is.
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
    async with Service(settings) as service:
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


# --- what goes wrong ------------------------------------------------------------------------------------


async def test_a_damaged_backup_is_found_out_and_half_a_restore_is_no_service(
    settings: Settings, target: LocalTarget, keyspace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Service(settings) as service:
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

    other = msgspec.structs.replace(settings, cassandra_keyspace=f"{keyspace}_b")
    monkeypatch.setattr(cassandra_restore, "fill", AsyncMock(side_effect=StoreUnavailable("it went away")))
    with pytest.raises(StoreUnavailable):
        await cassandra_restore.restore(target, manifest, other)
    for name in (other.cassandra_keyspace, cluster_keyspace(other)):
        connection = await CassandraConnection.open(connection_settings(other))
        with pytest.raises(CannotOpen, match="was not restored to its end"):
            await CassandraStore.open(connection, name)

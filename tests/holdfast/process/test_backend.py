"""Backends as members of a cluster in one folder: takeover at a start, and hand-over at an end."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from auth.lookup import Credentials
from backend.api import SHARDS, Configure, CountMessages, NewMessage, Receive, ReceiveOptions, Send, Target, shard_of
from backend.partition_settings import settings_of_stream_partition, target_of_group
from backend.rpc.address import Address
from backend.rpc.cluster_client import ClusterBackend, nodes_of
from backend.serving.stream_partition import OpenGroup, OpenStream
from backend.stream_api import GroupSettings, JoinAnswer, JoinRequest, NewBatch, StreamError
from backend.stream_commands import AppendBatch, ConfigureGroup, ConfigureStream, FetchBatches, JoinGroup
from frontend.queues.queues import Queues
from frontend.services import Services
from frontend.settings import FrontendSettings
from holdfast.process.backend import BackendParameters, BackendRole, Sockets, in_folder, run_backend
from holdfast.runtime.observability import Observability
from holdfast.settings import Settings
from metadata_service.models import NewQueue
from metadata_service.nodes.cached_client import MetadataClient
from metadata_service.sqlite.store import SQLiteStore
from metadata_service.streams import NewStream
from tests.servers.waiting import until

SECRET = b"between these backends and nobody else"
ACCOUNT = "000000000000"
TWO = ("backend-1", "backend-2")
WAIT = 60.0
"""Seconds that a call waits which is expected to be answered before."""


class _Running:
    """A backend, in a task of this loop."""

    def __init__(self, settings: Settings, backend: BackendParameters) -> None:
        loop = asyncio.get_running_loop()
        self.role: asyncio.Future[BackendRole] = loop.create_future()
        self.stop = asyncio.Event()
        self.hand_over = True
        self.observed = Observability(settings, "backend", backend.name)
        self.task = loop.create_task(
            run_backend(
                *(settings, backend, SECRET, self.stop, self.role.set_result, self.observed),
                hand_over=lambda: self.hand_over,
            )
        )

    async def ready(self) -> BackendRole:
        waiting: list[asyncio.Future[Any]] = [self.role, self.task]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not self.role.done():
            raise AssertionError(await self.task)
        return await self.role

    async def end(self, *, hand_over: bool) -> None:
        self.hand_over = hand_over
        self.stop.set()
        assert await self.task == 0


class Folder:
    """A data folder, its backends, and a frontend's view of them."""

    def __init__(self, path: Path) -> None:
        self.settings = Settings(data=path, segment_bytes=1 << 21, drain_seconds=5)
        self.store = SQLiteStore(self.settings.metadata_file)
        self.running: list[_Running] = []

    async def start(self, *backends: BackendParameters) -> list[_Running]:
        started = [_Running(self.settings, backend) for backend in backends]
        self.running += started
        for each in started:
            await each.ready()
        return started

    async def settled(self, *running: _Running) -> None:
        async with asyncio.timeout(60):
            for each in running:
                await (await each.role).member.placed.wait()

    async def connect(self) -> ClusterBackend:
        nodes = nodes_of(self.store.entries, Sockets(self.settings.data).reach)
        backend = await ClusterBackend.connect(nodes, secret=SECRET)
        await backend.ready(10)
        return backend

    async def queue(self, backend: ClusterBackend, name: str) -> Target:
        queue = await self.store.queues.create_queue(NewQueue(ACCOUNT, name, {}, {}, now_ms=1, hold_seconds=0))
        services = Services(
            FrontendSettings(), Credentials(self.store.credentials), MetadataClient(self.store.queues), backend
        )
        view = Queues(services).view(queue)
        await backend.call(Configure(view.settings))
        return view.target

    async def close(self) -> None:
        for each in self.running:
            if not each.task.done():
                await each.end(hand_over=False)
        await self.store.close()


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[Folder]:
    made = Folder(tmp_path)
    yield made
    await made.close()


def one_of_two(folder: Folder, name: str) -> BackendParameters:
    return in_folder(folder.settings.data, name, name, TWO)


async def bodies(backend: ClusterBackend, target: Target) -> set[bytes]:
    return {found.payload for found in await backend.call(Receive(target, ReceiveOptions(10, 0, 5)))}


async def test_a_backend_that_leaves_has_handed_all_over_and_no_call_fails(folder: Folder) -> None:
    one, other = await folder.start(*(one_of_two(folder, name) for name in TWO))
    await folder.settled(one, other)
    backend = await folder.connect()
    targets = [await folder.queue(backend, f"q{number}") for number in range(20)]
    leaving = asyncio.Event()

    async def keep_sending(target: Target) -> int:
        sent = 0
        while not leaving.is_set():
            await backend.call(Send(target, [NewMessage(b"x")]))
            sent += 1
        return sent

    sending = [asyncio.create_task(keep_sending(target)) for target in targets]
    await one.end(hand_over=True)
    successor = (await other.role).node
    await until(lambda: len(successor.owned) == SHARDS)  # the last ones were assigned a moment ago
    leaving.set()
    sent = await asyncio.gather(*sending)
    counted = [(await backend.call(CountMessages(target))).visible for target in targets]
    assert counted == sent
    assert await nodes_of(folder.store.entries)() == {"backend-2": Address(path="backend-2.sock")}
    (again,) = await folder.start(one_of_two(folder, "backend-1"))
    await folder.settled(again, other)
    assert len((await again.role).node.owned) > 100
    assert [(await backend.call(CountMessages(target))).visible for target in targets] == sent
    await backend.close()


# --- topics and groups --------------------------------------------------------------------------------------


async def test_calls_that_wait_go_on_at_the_next_owner_of_a_topic_and_a_group(folder: Folder) -> None:
    one, other = await folder.start(*(one_of_two(folder, name) for name in TWO))
    await folder.settled(one, other)
    backend = await folder.connect()
    leaving, successor = (await one.role).node, (await other.role).node
    stream = await folder.store.streams.create_stream(NewStream(ACCOUNT, "orders", {}, {}, 1, (0,) * 64))
    number = next(at for at, one in enumerate(stream.partition_ids) if shard_of(one) in leaving.owned)
    await backend.call(ConfigureStream(settings_of_stream_partition(stream, number)))
    partition = Target(stream.partition_ids[number], stream.stream_id, stream.version)
    targets = (target_of_group(ACCOUNT, f"readers-{at}", 0) for at in range(SHARDS))
    group = next(target for target in targets if shard_of(target.partition) in leaving.owned)
    about = (group.partition, group.queue_id, group.version, ACCOUNT, "readers")
    settings = GroupSettings(*about, initial_rebalance_delay_ms=0)
    await backend.call(ConfigureGroup(settings))
    assert (await join(backend, group, "first")).leader == "first"
    fetching = asyncio.create_task(backend.call(FetchBatches(partition, 0, 1 << 20, WAIT)))
    joining = asyncio.create_task(join(backend, group, "second"))  # waits for the first member
    topic, members = leaving.streams[partition.partition], leaving.streams[group.partition]
    assert isinstance(topic, OpenStream)
    assert isinstance(members, OpenGroup)
    await until(lambda: topic.waiters and members.waiting)
    await one.end(hand_over=True)
    await until(lambda: len(successor.owned) == SHARDS)
    assert (await joining).error is StreamError.NONE
    assert not fetching.done()
    appended = await backend.call(AppendBatch(partition, NewBatch(b"records", 3, 7)))
    assert appended.base_offset == 0
    assert [batch.payload for batch in (await fetching).batches] == [b"records"]
    await backend.close()


async def test_partitions_of_a_topic_that_was_deleted_meanwhile_are_dropped_at_the_start(folder: Folder) -> None:
    (running,) = await folder.start(in_folder(folder.settings.data, "backend", "node", ("node",)))
    stream = await folder.store.streams.create_stream(NewStream(ACCOUNT, "orders", {}, {}, 1, (0, 0)))
    node = (await running.role).node
    for number in range(stream.partitions):
        await node.call(ConfigureStream(settings_of_stream_partition(stream, number)))
    await running.end(hand_over=False)
    await folder.store.streams.delete_stream(stream.stream_id)
    (again,) = await folder.start(in_folder(folder.settings.data, "backend", "node", ("node",)))
    node = (await again.role).node
    await until(lambda: not node.streams)


async def join(backend: ClusterBackend, group: Target, member: str) -> JoinAnswer:
    protocols = (("range", b""),)
    request = JoinRequest("", member, "client", "host", 60_000, 60_000, "consumer", protocols, None, False)
    return await backend.call(JoinGroup(group, request, WAIT))

"""Backends as members of a cluster in one folder: takeover at a start, and hand-over at an end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from auth.lookup import Credentials
from backend.api import SHARDS, NewMessage, Receive, Target
from backend.rpc.address import Address
from backend.rpc.cluster_client import ClusterBackend, nodes_of
from frontend.queues.queues import Queues
from frontend.request.settings import FrontendSettings
from frontend.services import Services
from holdfast.process.backend import BackendParameters, BackendRole, Sockets, alone, in_folder, run_backend
from holdfast.runtime.observability import Observability
from holdfast.settings import Settings
from metadata_service.nodes.cached_client import MetadataClient
from metadata_service.sqlite.store import SQLiteStore

SECRET = b"between these backends and nobody else"
ACCOUNT = "000000000000"
TWO = ("backend-1", "backend-2")


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
                await (await each.role).member.settled.wait()

    async def connect(self) -> ClusterBackend:
        nodes = nodes_of(self.store, Sockets(self.settings.data).reach)
        backend = await ClusterBackend.connect(nodes, secret=SECRET)
        await backend.ready(10)
        return backend

    async def queue(self, backend: ClusterBackend, name: str) -> Target:
        queue = await self.store.create_queue(ACCOUNT, name, {}, {}, now_ms=1, hold_seconds=0)
        services = Services(FrontendSettings(), Credentials(self.store), MetadataClient(self.store), backend)
        view = Queues(services).view(queue)
        await backend.configure(view.settings)
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
    return {found.payload for found in await backend.receive(target, Receive(10, 0, 5))}


async def test_one_backend_and_two_take_turns_on_a_folder(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.settings.data)
    (only,) = await folder.start(alone(Address(path="wire.sock")))
    backend = await folder.connect()
    target = await folder.queue(backend, "q")
    await backend.send(target, [NewMessage(b"of one")])
    await backend.close()
    await only.end(hand_over=True)  # no other backend could get the shards

    two = await folder.start(*(one_of_two(folder, name) for name in TWO))
    await folder.settled(*two)
    shares = [len((await each.role).node.owned) for each in two]
    assert sum(shares) == SHARDS
    assert min(shares) > 100
    backend = await folder.connect()
    assert await bodies(backend, target) == {b"of one"}
    await backend.send(target, [NewMessage(b"of two")])
    await backend.close()
    for each in two:
        await each.end(hand_over=False)

    await folder.start(alone(Address(path="wire.sock")))
    backend = await folder.connect()
    assert await bodies(backend, target) == {b"of one", b"of two"}
    await backend.close()


async def test_a_backend_that_leaves_has_handed_all_over_and_no_call_fails(folder: Folder) -> None:
    one, other = await folder.start(*(one_of_two(folder, name) for name in TWO))
    await folder.settled(one, other)
    backend = await folder.connect()
    targets = [await folder.queue(backend, f"q{number}") for number in range(20)]
    leaving = asyncio.Event()

    async def keep_sending(target: Target) -> int:
        sent = 0
        while not leaving.is_set():
            await backend.send(target, [NewMessage(b"x")])
            sent += 1
        return sent

    sending = [asyncio.create_task(keep_sending(target)) for target in targets]
    await one.end(hand_over=True)
    successor = (await other.role).node
    async with asyncio.timeout(20):
        while len(successor.owned) < SHARDS:  # the last ones were assigned a moment ago
            await asyncio.sleep(0.01)
    leaving.set()
    sent = await asyncio.gather(*sending)
    counted = [(await backend.counters(target)).visible for target in targets]
    assert counted == sent
    assert await nodes_of(folder.store)() == {"backend-2": Address(path="backend-2.sock")}
    (again,) = await folder.start(one_of_two(folder, "backend-1"))
    await folder.settled(again, other)
    assert len((await again.role).node.owned) > 100
    assert [(await backend.counters(target)).visible for target in targets] == sent
    await backend.close()

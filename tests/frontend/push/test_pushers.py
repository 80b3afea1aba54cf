"""Distribution of queues over frontends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from ipaddress import ip_network
from pathlib import Path

import pytest
import pytest_asyncio

from frontend.push import pushers as module
from frontend.push.endpoint import Endpoints
from frontend.push.pushers import Pushers, _Office, owner_of
from metadata_service.clusters.election import Election
from metadata_service.store import StoreUnavailable
from tests.frontend.push.endpoints import PushEndpoint, serving
from tests.frontend.service import KEY, FrontendService, running
from tests.servers.waiting import until

QUEUES = 12


class _World:
    """A service with queues, and frontends whose time the test sets."""

    def __init__(self, service: FrontendService, server: PushEndpoint) -> None:
        self.service = service
        self.server = server
        self.now = 0.0
        self.frontends: list[Pushers] = []

    def frontend(self, name: str, *, alone: bool = False) -> Pushers:
        services, store = self.service.app.services, self.service.store
        made = Pushers(services, store, Endpoints([ip_network("127.0.0.0/8")]), name, alone=alone)
        if not alone:
            made._office = _Office(store.clusters)
            made._election = Election(
                made._office, name, listed=True, clock=lambda: self.now, wall=lambda: 1_800_000_000 + self.now
            )
        self.frontends.append(made)
        return made

    async def turns(self, *frontends: Pushers, count: int = 1) -> None:
        for _ in range(count):
            self.now += 2
            for one in frontends:
                one._ask_due = 0.0
                await one.turn()

    async def until_shared(self, *frontends: Pushers) -> None:
        """Let time pass until each queue is pushed by exactly one of these."""

        async def shared() -> bool:
            await self.turns(*frontends)
            return sorted(name for one in frontends for name in one._pushers) == self.names

        await until(shared)

    names = sorted((KEY.account, f"q{number}") for number in range(QUEUES))

    async def make_queues(self) -> None:
        for _, name in self.names:
            await self.service.make_queue(name, HoldfastPushUrl=self.server.url)


@pytest_asyncio.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[_World]:
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(running(tmp_path))
        made = _World(service, await stack.enter_async_context(serving()))
        monkeypatch.setattr(module, "_now", lambda: made.now)
        yield made
        for one in made.frontends:
            await one.close()


async def test_one_frontend_alone_pushes_everything_without_an_election(world: _World) -> None:
    one = world.frontend("one", alone=True)
    await world.turns(one)
    assert not one._pushers
    await world.make_queues()
    await world.turns(one)
    assert sorted(one._pushers) == world.names
    assert (await world.service.store.clusters.pushers()).version == 0
    for _, name in world.names[1:]:
        url = world.service.url(name)
        await world.service.json("SetQueueAttributes", {"QueueUrl": url, "Attributes": {"HoldfastPushUrl": ""}})
    await world.turns(one)
    assert list(one._pushers) == world.names[:1]


@pytest.mark.parametrize(("dies", "after_seconds"), [("first", 10), ("other", module.LIVE_SECONDS)])
async def test_queues_are_shared_out_and_taken_over(world: _World, dies: str, after_seconds: float) -> None:
    await world.make_queues()
    one, two, three = (world.frontend(name) for name in ("one", "two", "three"))
    await world.until_shared(one)
    await world.until_shared(one, two, three)
    parts = [set(each._pushers) for each in (one, two, three)]
    assert all(parts), "each has some"
    for _, name in world.names:
        await world.service.send(world.service.url(name), name)
    await until(lambda: len(world.server.calls) == QUEUES)
    await three.close()
    await world.until_shared(one, two)
    assert set(one._pushers) >= parts[0], "a queue moves only if its frontend has gone"
    assert set(two._pushers) >= parts[1]
    silent, live = (one, two) if dies == "first" else (two, one)
    started = world.now
    await world.until_shared(live)  # as if the other was killed
    assert after_seconds - 2 <= world.now - started <= after_seconds + 4
    assert silent._pushers, "it does not know, and does no harm"
    assert sorted(world.server.bodies) == sorted(name for _, name in world.names)


async def test_no_queues_no_reports(world: _World) -> None:
    one = world.frontend("one")
    await world.turns(one, count=10)
    assert (await world.service.store.clusters.pushers()).version == 0
    await world.make_queues()
    await world.until_shared(one)
    for _, name in world.names:
        await world.service.json("DeleteQueue", {"QueueUrl": world.service.url(name)})
    await world.turns(one, count=2)
    assert not one._pushers
    entry = await world.service.store.clusters.pushers()
    assert (entry.start, entry.candidates) == ("", ())
    await world.turns(one, count=5)
    assert (await world.service.store.clusters.pushers()).version == entry.version


async def test_queues_of_suspended_tenants_are_not_pushed(world: _World) -> None:
    await world.make_queues()
    one = world.frontend("one", alone=True)
    await world.turns(one)
    tenant = await world.service.tenant()
    suspended = type(tenant)(tenant.account, tenant.name, state="suspended", version=tenant.version)
    await world.service.store.credentials.update_tenant(suspended)
    await world.turns(one)
    assert not one._pushers


async def test_pushes_go_on_while_the_metadata_are_unavailable(
    world: _World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "STAND_SECONDS", 0.01)
    await world.make_queues()
    one = world.frontend("one", alone=True)
    one.start()
    await until(lambda: len(one._pushers) == QUEUES)

    async def fail() -> list[tuple[str, str]]:
        raise StoreUnavailable("not now")

    with monkeypatch.context() as patch:
        patch.setattr(world.service.store.queues, "push_queues", fail)
        one._ask_due = 0.0
        await until(lambda: "it cannot be read now which queues push" in caplog.text)
        await world.service.send(world.service.url("q1"), "a")
        await until(lambda: world.server.bodies == ["a"])
        assert len(one._pushers) == QUEUES
    assert caplog.text.count("it cannot be read now") == 1


async def test_ended_pusher_is_replaced(world: _World) -> None:
    await world.make_queues()
    one = world.frontend("one", alone=True)
    await world.turns(one)
    name = world.names[0]
    first = one._pushers[name]
    url = world.service.url(name[1])
    await world.service.json("SetQueueAttributes", {"QueueUrl": url, "Attributes": {"HoldfastPushUrl": ""}})
    assert first._running is not None
    first._more = True
    first._running.cancel()
    await asyncio.wait([first._running])
    await world.service.json(
        "SetQueueAttributes", {"QueueUrl": url, "Attributes": {"HoldfastPushUrl": world.server.url}}
    )
    await world.turns(one)
    assert one._pushers[name] is not first
    await world.service.send(url, "a")
    await until(lambda: world.server.bodies == ["a"])


def test_rendezvous_moves_only_queues_of_the_one_that_is_gone() -> None:
    queues = [("000000000000", f"q{number}") for number in range(1000)]
    names = ["one", "two", "three", "four"]
    before = {queue: owner_of(queue, names) for queue in queues}
    counts = [list(before.values()).count(name) for name in names]
    assert min(counts) > 180
    after = {queue: owner_of(queue, names[:3]) for queue in queues}
    assert all(after[queue] == owner for queue, owner in before.items() if owner != "four")

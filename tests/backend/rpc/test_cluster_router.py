"""Several backend clusters behind one router: each call reaches the cluster in its partition's id."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from backend.api import AccountBytes, Release, Target
from backend.rpc.address import Address
from backend.rpc.client import ClientLimits
from backend.rpc.cluster_router import ClusterRouter
from backend.rpc.connection import NotSent
from backend.rpc.handshake import HandshakeRefused
from backend.rpc.server import BackendServer, serve_backend
from metadata_service.models import partition_id
from tests.backend.calls import send
from tests.backend.wired import SECRET, Obedient
from tests.closing import closing

LIMITS = ClientLimits(call_seconds=5)


class One(Obedient):
    """A node that owns all shards of its cluster."""

    def __init__(self, stored: int) -> None:
        super().__init__()
        self.stored = stored

    async def stored_bytes(self) -> int:
        return self.stored


class Clusters:
    """Two clusters of one node each, and a third one that is not known yet."""

    def __init__(self) -> None:
        self.inside = [One(10), One(200)]
        self.servers: list[BackendServer] = []
        self.addresses: dict[int, dict[str, Address]] = {0: {}, 1: {}, 2: {}}

    async def open(self) -> None:
        for number, inside in enumerate(self.inside):
            server = await serve_backend(inside, secret=SECRET, host="127.0.0.1")
            self.servers.append(server)
            self.addresses[number] = {"node": server.address}

    def router(self, secret: bytes = SECRET, numbers: tuple[int, ...] = (0, 1)) -> ClusterRouter:
        def nodes(number: int) -> ReadsNodes:
            return ReadsNodes(self, number)

        return ClusterRouter(nodes, lambda: numbers, secret=secret, limits=LIMITS)


class ReadsNodes:
    def __init__(self, clusters: Clusters, number: int) -> None:
        self._clusters = clusters
        self._number = number

    async def __call__(self) -> dict[str, Address]:
        return self._clusters.addresses[self._number]


@pytest.fixture
async def clusters() -> AsyncIterator[Clusters]:
    made = Clusters()
    await made.open()
    yield made
    for server in made.servers:
        await server.close()


def queue(cluster: int) -> Target:
    return Target(partition_id(cluster, 7), 70, 1)


async def test_a_call_is_sent_to_the_cluster_of_its_partition(clusters: Clusters) -> None:
    async with closing(clusters.router()) as router:
        await router.ready(10)
        assert router.connected
        await send(router, queue(1), b"a")
        assert [inside.asked for inside in clusters.inside] == [[], ["send"]]
        await send(router, queue(0), b"b")
        await router.call(Release(queue(1), ["handle"]))
        assert [inside.asked for inside in clusters.inside] == [["send"], ["send"]]
        assert [inside.released for inside in clusters.inside] == [[], ["handle"]]
        assert await router.call(AccountBytes("000000000000")) == 210


async def test_an_unreachable_cluster_disturbs_no_other(clusters: Clusters) -> None:
    """Its calls wait for nodes to appear, as long as a call may take."""
    async with closing(clusters.router()) as router:
        waiting = asyncio.create_task(send(router, queue(2), b"a"))
        await send(router, queue(1), b"b")
        assert not waiting.done()
        clusters.addresses[2] = clusters.addresses[0]
        await waiting
        assert [inside.asked for inside in clusters.inside] == [["send"], ["send"]]


async def test_it_is_ready_if_one_cluster_is_and_otherwise_has_the_reason(clusters: Clusters) -> None:
    for router in (clusters.router(numbers=(2, 1)), clusters.router()):
        await router.ready(10)
        await router.close()
    for empty_router in (clusters.router(numbers=(2,)), clusters.router(numbers=())):
        with pytest.raises(NotSent, match="no node of any cluster can be called"):
            await empty_router.ready(0.1)
        await empty_router.close()
    stranger = clusters.router(b"another secret than that")
    with pytest.raises(HandshakeRefused, match="another shared secret"):
        await stranger.ready(10)
    await stranger.close()

"""Several nodes as one backend: owners change, nodes start, end and hang, and callers see few effects."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from backend import api
from backend.api import shard_of
from backend.rpc import cluster_client
from backend.rpc.address import Address
from backend.rpc.client import ClientLimits
from backend.rpc.cluster_client import ClusterBackend
from backend.rpc.connection import NotSent
from backend.rpc.server import BackendServer, ServerLimits, serve_backend
from metadata_service.store import StoreUnavailable
from tests.backend.calls import send
from tests.backend.wired import SECRET, TARGET, Obedient
from tests.servers.waiting import until

SHARD = shard_of(TARGET.partition)
LIMITS = ClientLimits(call_seconds=20, heartbeat_seconds=0.05)
POLL = api.ReceiveOptions(1, 30, 10)


class Owner(Obedient):
    """A node that serves the shards it owns."""

    def __init__(self, name: str, owners: dict[int, str]) -> None:
        super().__init__()
        self.name = name
        self.owners = owners
        self.says: str | None = None
        """Owner that it reports; None: the actual one."""
        self.refused = 0
        self.hangs = False
        self.waits: list[float] = []

    def _check(self, target: api.Target) -> None:
        if self.hangs:
            raise api.Unavailable("it hangs")
        shard = shard_of(target.partition)
        owner = self.owners.get(shard)
        if owner != self.name or self.says is not None:
            self.refused += 1
            raise api.NotOwner(shard, self.says or owner)

    async def send(self, target: api.Target, messages: Sequence[api.NewMessage]) -> list[api.SendResult]:
        self._check(target)
        return await super().send(target, messages)

    async def receive(self, target: api.Target, command: api.ReceiveOptions) -> list[api.ReceivedMessage]:
        self.waits.append(command.wait_seconds)
        self._check(target)
        found = await super().receive(target, command)
        self._check(target)
        return found

    async def stored_bytes(self) -> int:
        return 100


class _Nodes:
    """A cluster of such nodes, and a frontend's view of it."""

    def __init__(self) -> None:
        self.owners: dict[int, str] = {}
        self.inside: dict[str, Owner] = {}
        self.servers: dict[str, BackendServer] = {}
        self.known: dict[str, Address] = {}
        self.fail_with: Exception | None = None
        self.reads = 0
        self.backend: ClusterBackend

    async def start(self, name: str) -> None:
        inside = self.inside.setdefault(name, Owner(name, self.owners))
        port = self.known[name].port if name in self.known else 0
        server = self.servers[name] = await serve_backend(
            inside, secret=SECRET, host="127.0.0.1", port=port, limits=ServerLimits(heartbeat_seconds=0.05)
        )
        self.known[name] = server.address

    async def read(self) -> dict[str, Address]:
        self.reads += 1
        if self.fail_with is not None:
            raise self.fail_with
        return dict(self.known)

    async def send(self) -> list[api.SendResult]:
        return await send(self.backend, TARGET, b"a")

    @property
    def refused(self) -> int:
        return sum(node.refused for node in self.inside.values())


@pytest.fixture
async def nodes(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[_Nodes]:
    monkeypatch.setattr(cluster_client, "POLL_SECONDS", 0.05)
    nodes = _Nodes()
    for name in ("a", "b", "c"):
        await nodes.start(name)
    nodes.backend = await ClusterBackend.connect(nodes.read, secret=SECRET, limits=LIMITS)
    for member in nodes.backend._members.values():
        await member.backend.ready(10)
    yield nodes
    await nodes.backend.close()
    for server in nodes.servers.values():
        await server.close()


async def test_the_owner_is_found_and_remembered(nodes: _Nodes) -> None:
    nodes.owners[SHARD] = "b"
    for _ in range(20):
        await nodes.send()
    assert len(nodes.inside["b"].asked) == 20
    assert nodes.refused <= 1
    nodes.owners[SHARD] = "c"
    for _ in range(20):
        await nodes.send()
    assert len(nodes.inside["c"].asked) == 20
    assert nodes.refused <= 2, "the former owner said who has it now"


async def test_a_node_that_has_answered_is_called_again(nodes: _Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes.owners[SHARD] = "b"
    for chosen in ("b", "a"):
        monkeypatch.setattr("random.choice", lambda _, chosen=chosen: nodes.backend._members[chosen])
        await nodes.send()
    assert nodes.refused == 0


async def test_a_call_waits_while_the_shard_has_no_owner(nodes: _Nodes) -> None:
    call = asyncio.create_task(nodes.send())
    await until(lambda: nodes.refused > 5)
    assert not call.done()
    nodes.owners[SHARD] = "a"
    await call
    assert nodes.inside["a"].asked == ["send"]


async def test_a_call_that_is_not_accepted_in_time_was_not_sent(nodes: _Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes.backend, "_limits", LIMITS._replace(call_seconds=0.2))
    with pytest.raises(NotSent, match=f"shard {SHARD} has no owner now"):
        await nodes.send()


async def test_two_nodes_that_name_each_other_are_rarely_called(nodes: _Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes.backend, "_limits", LIMITS._replace(call_seconds=0.5))
    for name, other in (("a", "b"), ("b", "a"), ("c", "a")):
        nodes.inside[name].says = other
    with pytest.raises(NotSent):
        await nodes.send()
    assert nodes.refused < 30


async def test_a_dead_nodes_shard_is_served_by_its_new_owner(nodes: _Nodes) -> None:
    nodes.owners[SHARD] = "b"
    await nodes.send()
    await nodes.servers["b"].close()
    await until(lambda: not nodes.backend._members["b"].backend.connected)
    calls = [asyncio.create_task(nodes.send()) for _ in range(10)]
    await until(lambda: nodes.refused > 5)
    assert not any(call.done() for call in calls)
    nodes.owners[SHARD] = "c"
    await asyncio.gather(*calls)
    assert len(nodes.inside["c"].asked) == 10


async def test_a_node_that_hangs_is_avoided(nodes: _Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes.owners[SHARD] = "b"
    await nodes.send()
    nodes.inside["b"].hangs = True
    for _ in range(cluster_client.FAILURES_AVOIDED):
        with pytest.raises(api.Unavailable, match="it hangs"):
            await nodes.send()
    nodes.owners[SHARD] = "c"
    await nodes.send()
    nodes.owners[SHARD] = "b"
    nodes.inside["b"].hangs = False
    assert await nodes.send(), "it is avoided for a while only"


async def test_a_node_that_was_away_is_called_as_soon_as_it_is_connected(
    nodes: _Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_client, "AVOID_SECONDS_FIRST", 1000)
    monkeypatch.setattr(cluster_client, "AVOID_SECONDS_MAX", 1000)
    nodes.owners[SHARD] = "b"
    await nodes.send()
    await nodes.servers["b"].close()
    member = nodes.backend._members["b"]
    await until(lambda: not member.backend.connected)
    call = asyncio.create_task(nodes.send())
    await until(lambda: member.failures)
    await nodes.start("b")
    await call


async def test_calls_with_an_unknown_outcome_are_not_repeated(nodes: _Nodes) -> None:
    nodes.owners[SHARD] = "b"
    await nodes.send()
    nodes.inside["b"].hold = True
    call = asyncio.create_task(nodes.send())
    await until(lambda: nodes.inside["b"].held)
    for connection in list(nodes.servers["b"].connections):
        connection.cut()
    with pytest.raises(api.Unavailable, match="not known"):
        await call
    assert nodes.inside["b"].asked == ["send", "send"]


async def test_nodes_are_added_and_removed(nodes: _Nodes) -> None:
    await nodes.start("d")
    nodes.owners[SHARD] = "d"
    await nodes.send()
    del nodes.known["a"]
    await until(lambda: "a" not in nodes.backend._members)
    await until(lambda: not nodes.servers["a"].connections)
    nodes.fail_with = StoreUnavailable("away")
    reads = nodes.reads
    await until(lambda: nodes.reads > reads + 1)
    await nodes.send()
    assert set(nodes.backend._members) == {"b", "c", "d"}, "what was known holds while nothing can be read"


async def test_a_node_that_is_not_known_is_looked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_client, "POLL_SECONDS", 100)
    nodes = _Nodes()
    await nodes.start("a")
    nodes.backend = await ClusterBackend.connect(nodes.read, secret=SECRET, limits=LIMITS)
    await nodes.start("b")
    nodes.owners[SHARD] = "b"
    assert await nodes.send()
    await nodes.backend.close()
    for server in nodes.servers.values():
        await server.close()


async def test_a_rolling_restart_shows_no_error(nodes: _Nodes) -> None:
    nodes.owners[SHARD] = "a"
    stop, answers = False, 0

    async def keep_sending() -> None:
        nonlocal answers
        while not stop:
            await nodes.send()
            answers += 1

    async def replace(leaving: str, next_owner: str) -> None:
        enough = answers + 50
        await until(lambda: answers >= enough)
        nodes.owners[SHARD] = next_owner
        await nodes.servers[leaving].drain(30)
        await nodes.start(leaving)
        await until(lambda: nodes.backend._members[leaving].backend.connected)

    callers = [asyncio.create_task(keep_sending()) for _ in range(4)]
    for leaving, next_owner in (("a", "b"), ("b", "c"), ("c", "a")):
        await replace(leaving, next_owner)
    stop = True
    await asyncio.gather(*callers)
    assert sum(len(node.asked) for node in nodes.inside.values()) == answers


async def test_a_long_poll_whose_shard_moves_waits_for_what_is_left_of_its_time(nodes: _Nodes) -> None:
    nodes.owners[SHARD] = "a"
    await nodes.send()
    nodes.inside["a"].hold = True
    poll = asyncio.create_task(nodes.backend.call(api.Receive(TARGET, POLL)))
    await until(lambda: nodes.inside["a"].held)
    await asyncio.sleep(0.1)
    nodes.owners[SHARD] = "b"
    nodes.inside["a"].unblock()
    assert len(await poll) == 1
    assert nodes.inside["a"].waits == [10]
    assert 5 < nodes.inside["b"].waits[0] <= 9.9


async def test_bytes_are_those_of_all_nodes(nodes: _Nodes) -> None:
    assert await nodes.backend.call(api.AccountBytes("000000000000")) == 300
    await nodes.servers["b"].close()
    await until(lambda: not nodes.backend._members["b"].backend.connected)
    with pytest.raises(api.Unavailable):
        await nodes.backend.call(api.AccountBytes("000000000000"))


async def test_the_error_of_a_cluster_without_nodes() -> None:
    async def no_nodes() -> dict[str, Address]:
        return {}

    backend = await ClusterBackend.connect(no_nodes, secret=SECRET, limits=LIMITS._replace(call_seconds=0.05))
    assert not backend.connected
    for call in (backend.call(api.Send(TARGET, [])), backend.call(api.AccountBytes("000000000000"))):
        with pytest.raises(NotSent, match="no node that can be called"):
            await call
    await backend.close()

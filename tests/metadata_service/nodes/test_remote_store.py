"""The store behind metadata nodes: the conformance suite over HTTP, and tests with a node that is down."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import httpx
import msgspec
import pytest

from auth.credentials import Tenant
from metadata_service.models import NewQueue, Queue
from metadata_service.nodes.cached_client import MetadataClient
from metadata_service.nodes.change_feed import ChangeWatch
from metadata_service.nodes.codec import METHODS, CallBody, Refusal, queue_key
from metadata_service.nodes.node import BODY_BYTES_MAX, MetadataNode, NotInRing
from metadata_service.nodes.remote_store import RemoteStore
from metadata_service.nodes.ring import Ring, RingMember, RingView
from metadata_service.sqlite.store import SQLiteStore
from metadata_service.store import MetadataStore, QueueExists, QueueNotFound, StoreUnavailable
from tests.metadata_service.conformance import ACCOUNT, NOW_MS, QueueConformance, StoreConformance, create
from tests.metadata_service.faulty import Faults
from tests.metadata_service.fleet import SECRET, RingNodes, nodes, remote


@asynccontextmanager
async def cluster(folder: Path, count: int, *, full_copy: bool = False) -> AsyncIterator[RingNodes]:
    """Nodes that have opened the same file separately, like processes."""
    stores: list[SQLiteStore] = []

    def make(view: RingView, name: str) -> MetadataNode:
        stores.append(SQLiteStore(folder / "metadata.sqlite"))
        return MetadataNode(stores[-1], view, name, SECRET, full_copy=full_copy)

    try:
        async with nodes(count, make) as running:
            yield running
    finally:
        for store in stores:
            await store.close()


def owner_of(view: RingView, queue: Queue) -> str:
    return Ring(view).owner(queue_key(queue.account, queue.name)).name


def queue_of(view: RingView, node: str) -> str:
    """Name for a queue that belongs to this node."""
    ring = Ring(view)
    return next(
        name for number in range(1000) if ring.owner(queue_key(ACCOUNT, name := f"queue-{number}")).name == node
    )


@pytest.mark.long
class TestOneNode(QueueConformance):
    """Conformance of a ring without another node to call; its other calls differ from queues' only in their names."""

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[MetadataStore]:
        store = SQLiteStore(tmp_path / "metadata.sqlite")
        async with (
            nodes(1, lambda view, name: MetadataNode(store, view, name, SECRET)) as running,
            remote(running.view) as (_, far),
        ):
            yield far
        await store.close()


class TestThreeNodes(StoreConformance):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[MetadataStore]:
        async with cluster(tmp_path, 3) as running, remote(running.view) as (_, far):
            yield far


@pytest.mark.long
class TestTwoNodesWithAll(QueueConformance):
    """Conformance in the mode ``full_copy``."""

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[MetadataStore]:
        async with cluster(tmp_path, 2, full_copy=True) as running, remote(running.view) as (_, far):
            yield far


# --- a node is down -----------------------------------------------------------------------------------


async def test_a_nodes_death_costs_one_retry(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as running:
        caller = RemoteStore(running.view, SECRET, clock=lambda: 0)
        far = caller
        made = [await create(far, f"q{number}") for number in range(30)]
        of_m1 = [queue for queue in made if owner_of(running.view, queue) == "m1"]
        assert len(of_m1) > 3
        running.forget_calls()
        await running["m1"].stop()
        for queue in made:
            assert await far.queues.get_queue(ACCOUNT, queue.name) == queue
        assert len(running["m0"].calls) + len(running["m2"].calls) == len(made)
        assert caller._peers["m1"].failures == 1, "asked once, then avoided"
        changed = await far.queues.update_queue(of_m1[0].queue_id, 1, now_ms=NOW_MS, tags={"a": "b"})
        assert await far.queues.get_queue(ACCOUNT, changed.name) == changed
        await far.queues.delete_queue(changed.queue_id, now_ms=NOW_MS)
        with pytest.raises(QueueNotFound):
            await far.queues.get_queue(ACCOUNT, changed.name)
        await far.close()


async def test_a_recovered_node_is_called_again(tmp_path: Path) -> None:
    now = 0.0
    async with cluster(tmp_path, 2) as running:
        caller = RemoteStore(running.view, SECRET, clock=lambda: now, chance=lambda: 0.5)
        name = queue_of(running.view, "m0")
        await create(caller, name)
        running["m0"].node.drain()
        for failures in range(1, 8):
            await caller.queues.get_queue(ACCOUNT, name)
            assert caller._peers["m0"].failures == failures
            await caller.queues.get_queue(ACCOUNT, name)
            assert caller._peers["m0"].failures == failures
            assert caller._peers["m0"].avoided_until - now == min(0.5 * 2 ** (failures - 1), 15)
            now = caller._peers["m0"].avoided_until
        running["m0"].node._draining = False
        running.forget_calls()
        await caller.queues.get_queue(ACCOUNT, name)
        assert running["m0"].calls
        assert not running["m1"].calls
        assert caller._peers["m0"].failures == 0
        await caller.close()


async def test_without_any_node_the_store_is_unavailable(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as running, remote(running.view) as (_, far):
        for one in running.running.values():
            await one.stop()
        with pytest.raises(StoreUnavailable, match=r"no metadata node answers: m\d: .*; m\d: "):
            await create(far, "orders")
    async with remote(RingView.of(1, ())) as (_, far):
        with pytest.raises(StoreUnavailable, match="there is none"):
            await far.entries.logs()


async def test_calls_with_an_unknown_outcome_are_repeated_only_if_idempotent(tmp_path: Path) -> None:
    """The node has done it, and dies before the answer."""
    async with cluster(tmp_path, 2) as running, remote(running.view) as (_, far):
        name = queue_of(running.view, "m0")
        with pytest.raises(QueueNotFound):
            await far.queues.get_queue(ACCOUNT, name)
        running["m0"].lose_answers = True
        with pytest.raises(StoreUnavailable, match="whether create_queue took effect is not known"):
            await create(far, name)
        assert "/v1/call/create_queue" not in running["m1"].calls
        assert (await far.queues.get_queue(ACCOUNT, name)).name == name
    async with cluster(tmp_path, 2) as running, remote(running.view) as (_, far):
        running["m0"].lose_answers = running["m1"].lose_answers = True
        with pytest.raises(StoreUnavailable, match="no metadata node answers"):
            await far.queues.get_queue(ACCOUNT, name)
        assert (len(running["m0"].calls), len(running["m1"].calls)) == (1, 1)


class SlowNodes(httpx.AsyncHTTPTransport):
    """Nodes that take 5 s for each call, without the time."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.extensions["timeout"]["read"] < 5:
            raise httpx.ReadTimeout("", request=request)
        return await super().handle_async_request(request)


@pytest.mark.parametrize("alive", [1, 2])
async def test_a_slow_node_has_more_time_if_no_other_answers(tmp_path: Path, alive: int) -> None:
    """While one node is replaced, and where all share a slow database."""
    async with cluster(tmp_path, 2) as running, remote(running.view) as (_, quick):
        created = await create(quick, "orders")
        if alive == 1:
            await running["m0"].stop()
        slow = RemoteStore(running.view, SECRET, transport=SlowNodes())
        try:
            assert await slow.queues.get_queue(ACCOUNT, "orders") == created
        finally:
            await slow.close()


async def test_a_node_that_hangs_ends_the_call(tmp_path: Path) -> None:
    async def hang(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("", request=request)

    view = RingView.of(1, (RingMember("m0", "http://127.0.0.1:1"),))
    caller = RemoteStore(view, SECRET, transport=httpx.MockTransport(hang))
    with pytest.raises(StoreUnavailable, match="m0: not answered within 2 s; m0: not answered within 8 s"):
        await caller.entries.logs()
    await caller.close()


async def test_the_owner_polls_changes_made_by_a_stand_in(tmp_path: Path) -> None:
    async with (
        cluster(tmp_path, 2) as running,
        remote(running.view) as (caller, far),
        remote(running.view) as (_, other),
    ):
        name = queue_of(running.view, "m0")
        queue = await create(far, name)
        caller._avoid(running.view.members[0], caller._peers["m0"], "cut off from it")
        changed = await far.queues.update_queue(queue.queue_id, 1, now_ms=NOW_MS, tags={"a": "b"})
        assert running["m1"].calls[-1] == "/v1/call/update_queue"
        while await other.queues.get_queue(ACCOUNT, name) != changed:
            await asyncio.sleep(0.01)
        assert "/v1/call/get_queue" not in running["m1"].calls, "it was the owner that knew"


async def test_a_draining_node_begins_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as running, remote(running.view) as (_, far):
        name = queue_of(running.view, "m0")
        running["m0"].node.drain()
        queue = await create(far, name)
        assert await far.queues.get_queue(ACCOUNT, name) == queue
        async with httpx.AsyncClient() as http:
            answers = [await http.get(member.address + "/health") for member in running.view.members]
        assert [answer.status_code for answer in answers] == [503, 200]


# --- ownership and caching of queues -------------------------------------------------------------------


async def test_a_node_answers_for_its_own_queues_from_memory(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "metadata.sqlite")
    faults = Faults(store)
    async with (
        nodes(1, lambda view, name: MetadataNode(faults.store, view, name, SECRET)) as running,
        remote(running.view) as (_, far),
    ):
        queue = await create(far, "orders")
        changed = await far.queues.update_queue(queue.queue_id, 1, now_ms=NOW_MS, tags={"a": "b"})
        faults.calls.append("get_queue")
        while "get_queue" in faults.calls:  # its own changes invalidate it too, at its next poll, which causes one read
            faults.calls.clear()
            assert await far.queues.get_queue(ACCOUNT, "orders") == changed
        faults.fail("update_queue", "after")
        with pytest.raises(StoreUnavailable):
            await far.queues.update_queue(queue.queue_id, 2, now_ms=NOW_MS, tags={"a": "c"})
        assert (await far.queues.get_queue(ACCOUNT, "orders")).tags == {"a": "c"}
    await store.close()


async def test_a_queue_of_another_node_is_refused_with_its_name(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as running, remote(running.view) as (caller, far):
        name = queue_of(running.view, "m0")
        await create(far, name)
        await create(far, queue_of(running.view, "m1"))
        key = queue_key(ACCOUNT, name)
        body = msgspec.json.encode(
            CallBody(msgspec.Raw(METHODS["get_queue"].encode(ACCOUNT, name)), running.view.mark, key)
        )
        status, answer = await caller._ask(
            running.view.members[1], caller._peers["m1"], "POST", "/v1/call/get_queue", body
        )
        assert status == 421
        refusal = msgspec.json.decode(answer, type=Refusal)
        assert (refusal.reason, refusal.owner) == ("owner", "m0")


async def test_a_node_with_all_has_them_from_its_start_and_answers_for_each(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "metadata.sqlite")
    for account in (ACCOUNT, "111111111111"):
        await store.credentials.put_tenant(Tenant(account, account))
        for number in range(5):
            await create(store, f"q{number}", account=account)
    faults = Faults(store)
    async with (
        nodes(2, lambda view, name: MetadataNode(faults.store, view, name, SECRET, full_copy=True)) as running,
        remote(running.view) as (_, far),
    ):
        await running["m0"].stop()
        faults.calls.clear()
        for account in (ACCOUNT, "111111111111"):
            for number in range(5):
                assert (await far.queues.get_queue(account, f"q{number}")).account == account
        assert "get_queue" not in faults.calls
    await store.close()


# --- views ------------------------------------------------------------------------------------------


async def test_a_node_with_an_older_view_adopts_the_newer(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as running, remote(running.view) as (older, far):
        names = [f"q{number}" for number in range(20)]
        for name in names:
            await create(far, name)
        smaller = running.view.left("m2")
        async with remote(smaller) as (newer, other):
            for name in names:
                assert (await other.queues.get_queue(ACCOUNT, name)).name == name
            assert newer.view == smaller
        assert running["m0"].node.view == running["m1"].node.view == smaller
        assert running["m2"].node.view == running.view
        await running["m2"].stop()
        for name in names:
            assert (await far.queues.get_queue(ACCOUNT, name)).name == name
        assert older.view == smaller


async def test_the_error_of_two_views_of_one_version(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as running:
        other = RingView.of(1, running.view.members[:1])
        async with remote(other) as (_, far):
            with pytest.raises(StoreUnavailable, match="two different lists of metadata nodes with version 1"):
                await far.entries.logs()


async def test_a_view_without_the_node_is_not_taken_over(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as running, remote(running.view) as (caller, far):
        await create(far, queue_of(running.view, "m1"))
        without = msgspec.json.encode(running.view.left("m1"))
        peer = caller._peers["m1"]
        status, answer = await caller._ask(running.view.members[1], peer, "PUT", "/v1/view", without)
        assert status == 400
        assert b"has no member 'm1'" in answer
        assert running["m1"].node.view == running.view


def test_a_node_has_to_be_in_its_view(tmp_path: Path) -> None:
    with pytest.raises(NotInRing, match="has no member 'm9'"):
        MetadataNode(cast(MetadataStore, None), RingView.of(1, (RingMember("m0"),)), "m9", SECRET)


# --- authentication -----------------------------------------------------------------------------------


async def test_without_the_secret_no_request_is_accepted(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1) as running, remote(running.view, b"another secret of the length") as (_, far):
        with pytest.raises(StoreUnavailable, match="refused the signature"):
            await create(far, "orders")
        async with httpx.AsyncClient(base_url=running.view.members[0].address) as http:
            assert (await http.get("/v1/view")).status_code == 401
            assert (await http.post("/v1/call/logs", content=b"{}")).status_code == 401


async def test_a_repeated_request_is_not_accepted(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1) as running, remote(running.view) as (caller, far):
        seen: list[httpx.Request] = []

        async def keep(request: httpx.Request) -> None:
            seen.append(request)

        caller._http.event_hooks = {"request": [keep]}
        await create(far, "orders")
        again = await caller._http.send(seen[-1])
        assert again.status_code == 401
        assert "sent before" in again.text


async def test_clocks_may_differ_and_jump(tmp_path: Path) -> None:
    now = 1e6
    async with cluster(tmp_path, 1) as running:
        caller = RemoteStore(running.view, SECRET, clock=lambda: now)
        await create(caller, "orders")
        running.forget_calls()
        assert (await caller.queues.get_queue(ACCOUNT, "orders")).name == "orders"
        assert len(running["m0"].calls) == 1, "the first answer told it the time"
        for jump in (3600, -7200):
            now += jump
            running.forget_calls()
            assert (await caller.queues.get_queue(ACCOUNT, "orders")).name == "orders"
            assert len(running["m0"].calls) == 2
        await caller.close()


async def test_a_request_from_before_a_restart_is_not_accepted_after_it(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1) as running, remote(running.view) as (caller, far):
        seen: list[httpx.Request] = []

        async def keep(request: httpx.Request) -> None:
            seen.append(request)

        caller._http.event_hooks = {"request": [keep]}
        await create(far, "orders")
        node = running["m0"].node
        running["m0"].node = MetadataNode(node._store, running.view, "m0", SECRET)
        again = await caller._http.send(seen[-1])
        assert again.status_code == 401
        assert (await far.queues.get_queue(ACCOUNT, "orders")).name == "orders", "who signs anew is heard"


async def test_an_answer_of_another_sender_is_not_accepted(tmp_path: Path) -> None:
    async def impostor(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=b"[]")

    view = RingView.of(1, (RingMember("m0", "http://127.0.0.1:1"),))
    caller = RemoteStore(view, SECRET, transport=httpx.MockTransport(impostor))
    with pytest.raises(StoreUnavailable, match="not signed with the cluster's secret"):
        await caller.entries.logs()
    await caller.close()


async def test_invalid_calls_are_refused(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1) as running, remote(running.view) as (caller, far):
        await far.entries.logs()
        member, peer = running.view.members[0], caller._peers["m0"]

        async def post(path: str, body: bytes) -> tuple[int, bytes]:
            return await caller._ask(member, peer, "POST", path, body)

        assert (await post("/v1/call/close", b"{}"))[0] == 404
        assert (await post("/v1/call/logs", b"{}"))[0] == 400
        bad = msgspec.json.encode(CallBody(msgspec.Raw(b'{"node":5}'), running.view.mark))
        status, answer = await post("/v1/call/logs", bad)
        assert status == 400
        assert b"$.node" in answer
        async with httpx.AsyncClient() as http:
            huge = await http.post(member.address + "/v1/call/logs", content=b" " * (BODY_BYTES_MAX + 1))
        assert huge.status_code == 413


async def test_a_failure_of_the_node_is_no_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with cluster(tmp_path, 1) as running, remote(running.view) as (_, far):

        async def logs(node: str | None = None) -> None:
            raise RuntimeError("secret details")

        running["m0"].node._store.entries.logs = logs  # type: ignore[assignment,method-assign]
        with pytest.raises(StoreUnavailable, match="answered 500") as raised:
            await far.entries.logs()
        assert "details" not in str(raised.value)
        assert "secret details" in caplog.text


async def test_the_frontends_cache_works_with_it(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as running, remote(running.view) as (_, far), remote(running.view) as (_, other):
        client = MetadataClient(far.queues)
        watch = ChangeWatch(far.changes, client)
        await watch.poll()
        queue = await client.create(NewQueue(ACCOUNT, "orders", {}, {}, now_ms=NOW_MS, hold_seconds=60))
        with pytest.raises(QueueExists):
            await client.create(NewQueue(ACCOUNT, "orders", {}, {}, now_ms=NOW_MS, hold_seconds=60))
        assert client.cached(ACCOUNT, "orders") == queue
        changed = await other.queues.update_queue(queue.queue_id, 1, now_ms=NOW_MS, tags={"a": "b"})
        await watch.poll()
        assert client.cached(ACCOUNT, "orders") is None
        assert await client.get(ACCOUNT, "orders") == changed
        await client.delete(changed, now_ms=NOW_MS)
        with pytest.raises(QueueNotFound):
            await client.get(ACCOUNT, "orders")


async def test_the_error_of_a_closed_store() -> None:
    async with remote(RingView.of(1, ())) as (_, far):
        await far.close()
        await far.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            await far.entries.logs()

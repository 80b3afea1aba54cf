"""Queues with several partitions, as clients see them: over a real backend, through two frontends."""

import asyncio
import time
from binascii import a2b_base64, b2a_base64
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from auth.audit import AuditFile, AuditLog
from auth.credentials import Tenant
from auth.encryption.keyring import Keyring
from auth.encryption.master_keys import LocalMasterKeys, new_master_key
from auth.lookup import Credentials
from backend import api
from backend.cluster.repartition import Splits
from backend.engine.receipt_handles import partition_of
from backend.journal.local.disk import RealDisk
from backend.journal.local.log import LogSettings
from backend.node import Node, NodeSettings
from backend.resolver import StoreResolver
from backend.serving import token_import
from frontend.app import create_app
from frontend.queues.queues import Queues
from frontend.queues.view import QueueView
from frontend.services import Services
from frontend.settings import FrontendSettings
from metadata_service.clusters import partition_map as maps
from metadata_service.models import Queue
from metadata_service.nodes.cached_client import MetadataClient
from metadata_service.sqlite.store import SQLiteStore
from tests.auth.clock import Clock
from tests.backend.nodes import incarnation_of
from tests.frontend.service import KEY, NAMING, FrontendAnswer, FrontendService
from tests.servers.waiting import until

REGION = "us-east-1"


class _Spread:
    """One backend, and two frontends that learn of each other's changes only by the backend's refusals."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = SQLiteStore(folder / "metadata.sqlite")
        self.resolver = StoreResolver(self.store.queues, FrontendSettings(region=REGION))
        self.node: Node
        self.one: FrontendService
        self.other: FrontendService
        self.queues: Queues

    async def start(self, stack: AsyncExitStack) -> None:
        stack.push_async_callback(self.store.close)
        await self.store.credentials.put_tenant(Tenant(KEY.account, "tests"))
        await self.store.credentials.put_access_key(KEY)
        settings = NodeSettings(log=LogSettings(segment_bytes=4 << 20))
        self.node = await Node.start(
            RealDisk(), str(self.folder / "journal"), self.store.entries, self.resolver, settings=settings
        )
        stack.push_async_callback(self.node.close)
        self.one, self.other = [await self._frontend(stack, name) for name in ("one", "other")]

    async def _frontend(self, stack: AsyncExitStack, name: str) -> FrontendService:
        clock = Clock(time.time())
        audit_file = self.folder / f"{name}.jsonl"
        audit = AuditLog(AuditFile(audit_file), clock)
        stack.callback(audit.close)
        services = Services(
            FrontendSettings(region=REGION, queue_name_hold_seconds=0, purge_interval_seconds=0),
            Credentials(self.store.credentials),
            MetadataClient(self.store.queues),
            self.node,
            clock,
            audit=audit,
            keyring=Keyring(self.store, LocalMasterKeys([MASTER]), clock=clock),
            naming=NAMING,
        )
        self.queues = Queues(services)
        app = create_app(services)
        client = await stack.enter_async_context(httpx.AsyncClient(transport=httpx.ASGITransport(app=app)))
        return FrontendService(app, self.node, clock, client, self.store, audit_file)  # type: ignore[arg-type]

    # --- the queue ---

    async def queue(self, name: str = "orders") -> Queue:
        return await self.store.queues.get_queue(KEY.account, name)

    async def change(self, partitions: Callable[[Queue], Awaitable[Sequence[Any]]], name: str = "orders") -> Queue:
        """Change the map without notifying anybody."""
        queue = await self.queue(name)
        return await self.store.queues.update_queue(
            queue.queue_id, queue.version, now_ms=0, partitions=tuple(await partitions(queue))
        )

    async def split(self, count: int, name: str = "orders") -> Queue:
        async def split(queue: Queue) -> Sequence[Any]:
            return maps.split(queue, await self.store.queues.new_partition_ids(0, count))

        return await self.change(split, name)

    async def drain(self, places: Sequence[int], name: str = "orders") -> Queue:
        async def drain(queue: Queue) -> Sequence[Any]:
            return maps.drain(queue, [maps.open_ones(queue.partitions)[place].id for place in places])

        return await self.change(drain, name)

    async def tended(self, name: str = "orders") -> Queue:
        """Wait until no work is left."""
        splits = Splits(self.store.queues, self.node, self.resolver, lambda: 0)
        async with asyncio.timeout(20):
            while not await splits.finish((await self.queue(name)).queue_id, linger_seconds=0):
                await asyncio.sleep(0.01)
        return await self.queue(name)

    async def held(self, name: str = "orders") -> list[int]:
        """Number of messages of each partition."""
        queue = await self.queue(name)
        held = []
        for one in queue.partitions:
            try:
                counted = await self.node.call(api.CountMessages(api.Target(one.id, queue.queue_id)))
                held.append(counted.visible + counted.in_flight + counted.delayed)
            except api.PartitionUnknown:
                held.append(0)
        return held


MASTER = new_master_key()


@pytest.fixture
async def spread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[_Spread]:
    monkeypatch.setattr(token_import, "RETRY_SECONDS", 0.01)
    async with AsyncExitStack() as stack:
        made = _Spread(tmp_path)
        await made.start(stack)
        yield made


async def ok(answer: Awaitable[FrontendAnswer]) -> Any:
    found = await answer
    assert found.status == 200, found.content
    return found.json if found.content else {}


async def send(
    service: FrontendService, body: str, name: str = "orders", token: str | None = None, **members: Any
) -> Any:
    headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.SendMessage"}
    if token is not None:
        headers["x-holdfast-client-token"] = token
    content = orjson.dumps({"QueueUrl": service.url(name), "MessageBody": body, **members})
    return await ok(service.signed("POST", "/", content, headers))


async def send_numbered(service: FrontendService, *numbers: int) -> None:
    """Send messages whose bodies are the numbers of this range."""
    for number in range(*numbers):
        await send(service, f"{number}")


async def call(service: FrontendService, action: str, name: str = "orders", **members: Any) -> Any:
    return await ok(service.json(action, {"QueueUrl": service.url(name), **members}))


async def receive(service: FrontendService, name: str = "orders", **members: Any) -> list[Any]:
    found: list[Any] = (await call(service, "ReceiveMessage", name, **{"MaxNumberOfMessages": 10, **members})).get(
        "Messages", []
    )
    return found


async def delete(service: FrontendService, messages: Sequence[Any], name: str = "orders") -> None:
    entries = [{"Id": str(place), "ReceiptHandle": one["ReceiptHandle"]} for place, one in enumerate(messages)]
    answer = await call(service, "DeleteMessageBatch", name, Entries=entries)
    assert len(answer["Successful"]) == len(messages)


async def receive_all(service: FrontendService, name: str = "orders", **members: Any) -> list[Any]:
    found: list[Any] = []
    while got := await receive(service, name, **members):
        await delete(service, got, name)
        found += got
    return found


def redrive(name: str) -> str:
    """Redrive policy with this dead-letter queue, after one receive."""
    arn = f"arn:aws:sqs:{REGION}:{KEY.account}:{name}"
    return orjson.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1}).decode()


def bodies(messages: Sequence[Any]) -> list[str]:
    return [message["Body"] for message in messages]


# --- messages ----------------------------------------------------------------------------------------------


async def test_messages_are_spread_and_all_are_received_and_deleted(spread: _Spread) -> None:
    await spread.one.make_queue("orders", HoldfastPartitions="4")
    sent = [f"message {place}" for place in range(40)]
    for body in sent:
        await send(spread.one, body)
    assert await spread.held() == [10, 10, 10, 10]
    counted = (await call(spread.other, "GetQueueAttributes", AttributeNames=["All"]))["Attributes"]
    assert counted["ApproximateNumberOfMessages"] == "40"
    got: list[Any] = []
    while len(got) < 40:
        some = await receive(spread.other)
        assert some, "none is hidden"
        got += some
    assert sorted(bodies(got)) == sorted(sent)
    for message in got[:7]:
        handle = message["ReceiptHandle"]
        await call(spread.one, "ChangeMessageVisibility", ReceiptHandle=handle, VisibilityTimeout=0)
    again = await receive_all(spread.one)
    assert sorted(bodies(again)) == sorted(bodies(got[:7]))
    rest = got[7:]
    for start in range(0, len(rest), 10):
        await delete(spread.one, rest[start : start + 10])
    assert await spread.held() == [0, 0, 0, 0]


async def test_a_call_with_a_token_counts_once_and_a_batch_is_sent_whole(spread: _Spread) -> None:
    await spread.one.make_queue("orders", HoldfastPartitions="4")
    first = [await send(spread.one, f"{place}", token=f"t{place}") for place in range(12)]
    again = [await send(spread.other, f"{place}", token=f"t{place}") for place in range(12)]
    assert again == first
    assert sum(await spread.held()) == 12
    before = await spread.held()
    entries = [{"Id": str(place), "MessageBody": f"{place}"} for place in range(10)]
    assert len((await call(spread.one, "SendMessageBatch", Entries=entries))["Successful"]) == 10
    grown = [now - then for now, then in zip(await spread.held(), before, strict=True)]
    assert sorted(grown) == [0, 0, 0, 10]


async def test_fifo_groups_keep_their_order_and_their_partition(spread: _Spread) -> None:
    attributes = {"FifoQueue": "true", "DeduplicationScope": "messageGroup", "ContentBasedDeduplication": "true"}
    await spread.one.make_queue("f.fifo", **attributes, HoldfastPartitions="3")
    groups = [f"g{place}" for place in range(8)]
    for turn in range(4):
        entries = [
            {"Id": group, "MessageBody": f"{turn}", "MessageGroupId": group, "MessageDeduplicationId": f"{turn}{group}"}
            for group in groups
        ]
        answer = await call(spread.one, "SendMessageBatch", "f.fifo", Entries=entries)
        assert [one["Id"] for one in answer["Successful"]] == groups, "in the order of the entries"
        twin = await call(spread.other, "SendMessageBatch", "f.fifo", Entries=entries)
        assert twin["Successful"] == answer["Successful"]
    assert sum(1 for held in await spread.held("f.fifo") if held) > 1
    got: dict[str, list[str]] = {group: [] for group in groups}
    for message in await receive_all(spread.other, "f.fifo", AttributeNames=["All"]):
        got[message["Attributes"]["MessageGroupId"]].append(message["Body"])
    assert got == {group: ["0", "1", "2", "3"] for group in groups}


async def test_a_receive_attempt_that_is_repeated_gets_the_same_messages(spread: _Spread) -> None:
    attributes = {"FifoQueue": "true", "DeduplicationScope": "messageGroup", "ContentBasedDeduplication": "true"}
    await spread.one.make_queue("f.fifo", **attributes, HoldfastPartitions="3")
    for place in range(30):
        await send(spread.one, f"{place}", "f.fifo", MessageGroupId=f"g{place}")
    for attempt in ("one", "two", "three", "four"):
        first = await receive(spread.one, "f.fifo", MaxNumberOfMessages=2, ReceiveRequestAttemptId=attempt)
        again = await receive(spread.other, "f.fifo", MaxNumberOfMessages=2, ReceiveRequestAttemptId=attempt)
        assert again == first
        assert len(first) == 2


# --- waiting -----------------------------------------------------------------------------------------------


async def waiting(spread: _Spread, count: int, name: str = "orders") -> None:
    """Wait until ``count`` watches are at the partitions."""
    queue = await spread.queue(name)
    known = incarnation_of(spread.node).partitions
    await until(lambda: sum(len(known[one.id].waiters) for one in queue.partitions if one.id in known) == count)


async def test_a_long_poll_returns_with_the_first_message_of_any_partition(spread: _Spread) -> None:
    await spread.one.make_queue("orders", HoldfastPartitions="4")
    await receive(spread.one)
    for turn in range(5):
        poll = asyncio.ensure_future(receive(spread.one, WaitTimeSeconds=20))
        await waiting(spread, 4)
        started_at = time.monotonic()
        await send(spread.other, f"{turn}")
        assert bodies(await poll) == [f"{turn}"]
        assert time.monotonic() - started_at < 5
    assert await receive(spread.one, WaitTimeSeconds=1) == []


async def test_waiting_polls_share_one_watch_and_each_message_is_given_to_one_of_them(spread: _Spread) -> None:
    await spread.one.make_queue("orders", HoldfastPartitions="4")
    await receive(spread.one)
    polls = [asyncio.ensure_future(receive(spread.one, WaitTimeSeconds=20, MaxNumberOfMessages=1)) for _ in range(12)]
    await waiting(spread, 4)
    entries = [{"Id": str(place), "MessageBody": f"{place}"} for place in range(10)]
    await call(spread.other, "SendMessageBatch", Entries=entries)
    await send(spread.other, "10")
    await send(spread.other, "11")
    got = [body for poll in await asyncio.gather(*polls) for body in bodies(poll)]
    assert sorted(got, key=int) == [f"{place}" for place in range(12)]
    await waiting(spread, 0)


async def test_a_partition_that_is_always_full_does_not_block_another_one(spread: _Spread) -> None:
    await spread.one.make_queue("orders", HoldfastPartitions="2")
    for _ in range(2):
        await send(spread.one, "first")
    queue = await spread.queue()
    ids = [one.id for one in queue.partitions]
    await receive(spread.one, MaxNumberOfMessages=1)
    counted = [await spread.node.call(api.CountMessages(api.Target(one, queue.queue_id))) for one in ids]
    (full,) = {one for one, held in zip(ids, counted, strict=True) if held.visible}
    view = spread.queues.view(queue)
    assert len(await spread.queues.call(view, api.Receive(view.target, api.ReceiveOptions(1, 30)))) == 1
    later = await spread.node.call(
        api.Send(api.Target(ids[full == ids[0]], queue.queue_id), [api.NewMessage(b"not ours to read")])
    )
    async with asyncio.timeout(5):
        while True:
            await spread.node.call(api.Send(api.Target(full, queue.queue_id), [api.NewMessage(b"more")]))
            got = await spread.queues.call(view, api.Receive(view.target, api.ReceiveOptions(1, 30)))
            assert len(got) == 1
            if got[0].message_id == later[0].message_id:
                break


async def test_a_poll_whose_client_has_left_has_claimed_nothing(spread: _Spread) -> None:
    await spread.one.make_queue("orders", HoldfastPartitions="4")
    await receive(spread.one)
    view = spread.queues.view(await spread.queue())

    async def poll() -> list[api.ReceivedMessage]:
        return await spread.queues.call(view, api.Receive(view.target, api.ReceiveOptions(10, 30, 20)))

    left = asyncio.ensure_future(poll())
    await waiting(spread, 4)
    left.cancel()
    await asyncio.wait([left])
    await waiting(spread, 0)
    stays = asyncio.ensure_future(poll())
    leaves = asyncio.ensure_future(poll())
    await waiting(spread, 4)
    await send(spread.one, "first")
    leaves.cancel()
    assert len(await stays) == 1
    await asyncio.wait([leaves])
    counters = await spread.queues.call(view, api.CountMessages(view.target))
    assert (counters.visible, counters.in_flight) == (0, 1)


def failing(
    spread: _Spread, partition: int, kinds: Any, error: Exception
) -> Callable[[api.Command[Any]], Awaitable[Any]]:
    """Make a ``call`` of the backend that fails for commands of these kinds to one partition."""
    plain = spread.node.call

    async def call(command: api.Command[Any]) -> Any:
        if isinstance(command, kinds) and command.partition == partition:
            raise error
        return await plain(command)

    return call


async def test_an_unavailable_partition_does_not_block_the_others(
    spread: _Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    await spread.one.make_queue("orders", HoldfastPartitions="3")
    await send_numbered(spread.one, 9)
    down = (await spread.queue()).partitions[0].id
    monkeypatch.setattr(
        spread.node, "call", failing(spread, down, api.Watch | api.Receive, api.Unavailable("it is down"))
    )
    assert len(await receive_all(spread.one)) == 6
    poll = asyncio.ensure_future(receive(spread.one, WaitTimeSeconds=20))
    await waiting(spread, 2)
    for place in range(3):
        await send(spread.one, f"more {place}")
    assert len(await poll) == 1
    monkeypatch.undo()
    assert len(await receive_all(spread.one)) == 5


async def test_a_partition_at_its_limit_of_messages_in_flight_does_not_block_the_others(
    spread: _Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    await spread.one.make_queue("orders", HoldfastPartitions="2")
    await send_numbered(spread.one, 4)
    assert len(await receive(spread.one, MaxNumberOfMessages=1)) == 1
    full = (await spread.queue()).partitions[0].id
    monkeypatch.setattr(spread.node, "call", failing(spread, full, api.Receive, api.OverLimit("as many as it may")))
    got = [len(await receive(spread.one)) for _ in range(3)]
    assert sum(got) in (1, 2), "those of the other one"
    assert got[-1] == 0


async def test_a_handle_of_a_partition_that_a_frontend_does_not_know_yet(spread: _Spread) -> None:
    await spread.one.make_queue("orders")
    await send(spread.other, "before")
    await delete(spread.other, await receive(spread.other))
    await spread.split(3)
    await spread.tended()
    for place in range(8):
        await send(spread.one, f"{place}", token=f"t{place}")
    got: list[Any] = []
    while len(got) < 8:
        got += await receive(spread.one)
    got.sort(key=lambda message: message["ReceiptHandle"], reverse=True)  # those of the newest partitions first
    await delete(spread.other, got)
    assert sum(await spread.held()) == 0


# --- the queue as a whole ----------------------------------------------------------------------------------


async def test_a_purge_and_a_deletion_reach_all_partitions(spread: _Spread) -> None:
    await spread.one.make_queue("orders", HoldfastPartitions="4")
    await send_numbered(spread.one, 8)
    await call(spread.one, "PurgeQueue")
    assert await spread.held() == [0, 0, 0, 0]
    await send(spread.one, "after")
    queue = await spread.queue()
    await call(spread.one, "DeleteQueue")
    assert not {one.id for one in queue.partitions} & set(incarnation_of(spread.node).partitions)


async def test_an_export_has_the_messages_of_all_partitions_also_of_those_that_go_meanwhile(spread: _Spread) -> None:
    await spread.one.make_queue("orders", HoldfastPartitions="4")
    sent = [f"{place}" for place in range(40)]
    for body in sent:
        await send(spread.one, body)
    found: list[str] = []
    after: str | None = ""
    pages = 0
    while after is not None:
        page = await ok(spread.other.signed("GET", f"/v1/queues/orders/export?limit=3&after={after}", b"", {}))
        found += [one["body"] for one in page["messages"]]
        after, pages = page["next"], pages + 1
        if pages == 5:  # the first partition is complete
            await spread.split(2)
            await spread.tended()
    assert sorted(found, key=int) == sent


async def test_dead_letters_and_move_tasks_go_over_all_partitions(spread: _Spread) -> None:
    one = spread.one
    await one.make_queue("dead", HoldfastPartitions="3")
    arn = f"arn:aws:sqs:{REGION}:{KEY.account}:"
    await one.make_queue("orders", HoldfastPartitions="2", RedrivePolicy=redrive("dead"), VisibilityTimeout="0")
    sent = [f"{place}" for place in range(12)]
    for body in sent:
        await send(one, body)
    async with asyncio.timeout(20):
        while sum(await spread.held("dead")) < 12:
            await receive(one)
    for place in range(12, 18):
        await send(one, f"{place}", "dead")
    assert all(await spread.held("dead"))
    given = {"SourceArn": f"{arn}dead", "DestinationArn": f"{arn}orders", "MaxNumberOfMessagesPerSecond": 500}
    task = (await ok(one.json("StartMessageMoveTask", given)))["TaskHandle"]
    async with asyncio.timeout(20):
        while True:
            (listed,) = (await ok(one.json("ListMessageMoveTasks", {"SourceArn": f"{arn}dead"})))["Results"]
            if listed["Status"] == "COMPLETED":
                break
    assert listed["MaxNumberOfMessagesPerSecond"] == 500
    assert (listed["ApproximateNumberOfMessagesMoved"], listed["ApproximateNumberOfMessagesToMove"]) == (18, 18)
    assert sum(await spread.held("dead")) == 0
    refused = await one.json("CancelMessageMoveTask", {"TaskHandle": task})
    assert refused.status == 404
    await call(one, "SetQueueAttributes", Attributes={"VisibilityTimeout": "30"})
    assert sorted(bodies(await receive_all(one)), key=int) == [f"{place}" for place in range(18)]


async def test_a_queues_limits_are_shared_out(spread: _Spread) -> None:
    await spread.one.make_queue("orders", HoldfastPartitions="3", HoldfastMaximumMessages="10")
    view: QueueView = spread.queues.view(await spread.queue())
    assert {part.settings.messages_max for part in view.parts} == {4}
    assert {part.settings.in_flight_limit for part in view.parts} == {40_000}
    answers = [
        await spread.one.json("SendMessage", {"QueueUrl": spread.one.url("orders"), "MessageBody": "x"})
        for _ in range(20)
    ]
    refused = next(answer for answer in answers if answer.status != 200)
    assert "its share of HoldfastMaximumMessages is 4" in refused.message
    assert sum(answer.status == 200 for answer in answers) == sum(await spread.held()) == 12


# --- while the map changes ---------------------------------------------------------------------------------


async def test_a_queue_is_split_and_drained_while_clients_go_on(spread: _Spread) -> None:
    await spread.one.make_queue("orders")
    sent: dict[str, str] = {}
    got: list[str] = []
    running = True

    async def sender(service: FrontendService, name: str) -> None:
        place = 0
        while running:
            place += 1
            body = f"{name}-{place}"
            first = await send(service, body, token=body)
            again = await send(spread.other if service is spread.one else spread.one, body, token=body)
            assert again == first
            sent[body] = first["MessageId"]

    async def receiver(service: FrontendService) -> None:
        while running:
            messages = await receive(service, WaitTimeSeconds=1)
            if messages:
                await delete(service, messages)
                got.extend(bodies(messages))

    tasks = [asyncio.ensure_future(sender(service, f"s{at}")) for at, service in enumerate((spread.one, spread.other))]
    tasks += [asyncio.ensure_future(receiver(service)) for service in (spread.one, spread.other)]

    async def some(count: int) -> None:
        enough = len(sent) + count
        async with asyncio.timeout(30):
            while len(sent) < enough:
                await asyncio.sleep(0.01)
                for task in tasks:
                    if task.done():
                        task.result()

    await some(20)
    await spread.split(3)
    await some(20)
    assert len((await spread.tended()).partitions) == 4
    await some(20)
    used = incarnation_of(spread.node).partitions
    assert sum(1 for one in (await spread.queue()).partitions if one.id in used) == 4
    await spread.drain([0, 2])
    await some(20)
    await spread.tended()
    await spread.drain([1])
    await some(20)
    queue = await spread.tended()
    assert len(queue.partitions) == 1
    await some(20)
    running = False
    await asyncio.gather(*tasks)
    got += bodies(await receive_all(spread.one))
    assert sorted(got) == sorted(sent)


async def test_a_poll_that_waits_while_the_queue_is_split_hears_of_the_new_partitions(spread: _Spread) -> None:
    await spread.one.make_queue("orders")
    await receive(spread.one)
    poll = asyncio.ensure_future(receive(spread.one, WaitTimeSeconds=20, MaxNumberOfMessages=1))
    await waiting(spread, 1)
    await spread.split(3)
    await spread.tended()
    await waiting(spread, 4)
    started_at = time.monotonic()
    for place in range(4):
        await send(spread.other, f"{place}", token=f"t{place}")  # the other frontend does not know yet
    assert len(await poll) == 1
    assert time.monotonic() - started_at < 10
    assert len(await receive_all(spread.other)) == 3


async def test_handles_and_counters_of_a_partition_that_drains(spread: _Spread) -> None:
    await spread.one.make_queue("orders", HoldfastPartitions="2")
    await send_numbered(spread.one, 4)
    got = [message for _ in range(2) for message in await receive(spread.one)]
    assert len(got) == 4
    await spread.drain([0])
    await send(spread.other, "new")
    counted = (await call(spread.one, "GetQueueAttributes", AttributeNames=["All"]))["Attributes"]
    assert (counted["ApproximateNumberOfMessages"], counted["ApproximateNumberOfMessagesNotVisible"]) == ("1", "4")
    await delete(spread.other, got)
    assert len((await spread.tended()).partitions) == 1
    assert bodies(await receive_all(spread.one)) == ["new"]


async def test_a_node_that_ends_during_polls_is_retried_with_pauses(spread: _Spread) -> None:
    await spread.one.make_queue("orders", HoldfastPartitions="2")
    poll = asyncio.ensure_future(receive(spread.one, WaitTimeSeconds=1))
    await waiting(spread, 2)
    spread.node.drain()
    async with asyncio.timeout(60):
        assert await poll == []


@pytest.mark.parametrize("waits", [False, True])
async def test_a_frontend_that_knows_an_old_map_leaves_a_partition_that_has_retired(
    spread: _Spread, waits: bool
) -> None:
    """A partition keeps dead letters that it has taken, so it still exists.  (Found by the simulator.)"""
    fifo = {"FifoQueue": "true", "DeduplicationScope": "messageGroup"}
    await spread.one.make_queue("dead.fifo", **fifo)
    await spread.one.make_queue("f.fifo", **fifo, RedrivePolicy=redrive("dead.fifo"), VisibilityTimeout="0")
    ordered = {"MessageGroupId": "g", "MessageDeduplicationId": "first"}
    await send(spread.one, "letter", "f.fifo", **ordered)
    async with asyncio.timeout(20):
        while sum(await spread.held("dead.fifo")) < 1:
            await receive(spread.one, "f.fifo")

    async def move(queue: Queue) -> Sequence[Any]:
        (there,) = await spread.store.queues.new_partition_ids(0, 1)
        return maps.move(queue, {queue.partitions[0].id: there})

    await spread.change(move, "dead.fifo")
    assert bodies(await receive_all(spread.other, "dead.fifo")) == ["letter"]
    known = len(spread.node.partitions)
    if waits:
        poll = asyncio.ensure_future(receive(spread.other, "dead.fifo", WaitTimeSeconds=20))
        await waiting(spread, 1, "dead.fifo")
    assert len((await spread.tended("dead.fifo")).partitions) == 1
    assert len(spread.node.partitions) >= known, "the one that has retired is there"
    await send(spread.one, "later", "dead.fifo", **{**ordered, "MessageDeduplicationId": "later"})
    got = await poll if waits else await receive(spread.other, "dead.fifo")
    assert bodies(got) == ["later"]


async def test_receives_while_a_partition_that_has_retired_is_in_the_map(spread: _Spread) -> None:
    await spread.one.make_queue("orders", HoldfastPartitions="2")
    queue = await spread.drain([0])
    (leaving,) = [one for one in queue.partitions if one.state == "draining"]
    target = api.Target(leaving.id, queue.queue_id)
    assert await receive(spread.one) == []  # all partitions know the map
    settled = Splits(spread.store.queues, spread.node, spread.resolver, lambda: 0)
    async with asyncio.timeout(20):
        while maps.changing((await spread.queue()).partitions):
            await settled.finish(queue.queue_id, linger_seconds=1000)
            await asyncio.sleep(0.01)
    assert await spread.node.call(api.Retire(target, 0))
    assert await receive(spread.one) == []
    poll = asyncio.ensure_future(receive(spread.one, WaitTimeSeconds=20))
    await waiting(spread, 1)
    await send(spread.one, "new")
    assert bodies(await poll) == ["new"]
    assert await call(spread.one, "GetQueueAttributes") == {}


@pytest.mark.parametrize("left", [1, 2])
async def test_handles_of_a_partition_that_has_retired(spread: _Spread, left: int) -> None:
    """A repeated delete, after a lost answer, gets the right answer: the message is gone."""
    url = await spread.one.make_queue("orders", HoldfastPartitions=str(1 + left))
    await send_numbered(spread.one, 1 + left)
    got = [message for _ in range(1 + left) for message in await receive(spread.one)]
    first = maps.open_ones((await spread.queue()).partitions)[0].id
    (gone,) = [message["ReceiptHandle"] for message in got if partition_of(message["ReceiptHandle"]) == first]
    await delete(spread.one, got)
    await spread.drain([0])
    assert len((await spread.tended()).partitions) == left
    packed = a2b_base64(gone)
    forged = b2a_base64(packed[:-1] + bytes([packed[-1] ^ 1]), newline=False).decode()
    for service in (spread.one, spread.other):
        await ok(service.json("DeleteMessage", {"QueueUrl": url, "ReceiptHandle": gone}))
        entries = [{"Id": "gone", "ReceiptHandle": gone}, {"Id": "forged", "ReceiptHandle": forged}]
        batch = await ok(service.json("DeleteMessageBatch", {"QueueUrl": url, "Entries": entries}))
        assert [one["Id"] for one in batch["Successful"]] == ["gone"]
        assert [one["Code"] for one in batch["Failed"]] == ["ReceiptHandleIsInvalid"]
        change = {"QueueUrl": url, "ReceiptHandle": gone, "VisibilityTimeout": 5}
        changed = await service.json("ChangeMessageVisibility", change)
        assert (changed.status, b"does not exist or is not available" in changed.content) == (400, True)
        entries = [{**one, "VisibilityTimeout": 5} for one in entries]
        batch = await ok(service.json("ChangeMessageVisibilityBatch", {"QueueUrl": url, "Entries": entries}))
        codes = {one["Id"]: one["Code"] for one in batch["Failed"]}
        assert codes == {"gone": "InvalidParameterValue", "forged": "ReceiptHandleIsInvalid"}


async def test_each_partition_is_counted_once_though_the_map_has_just_changed(spread: _Spread) -> None:
    """A removed partition is not mistaken for an existing one.  (Found by the simulator.)"""
    await spread.one.make_queue("orders", HoldfastPartitions="3")
    old = await spread.queues.find(KEY.account, "orders")
    await spread.drain([0, 1])
    assert len((await spread.tended()).partitions) == 1
    await send(spread.other, "new")
    assert (await spread.queues.call(old, api.CountMessages(old.target))).visible == 1


async def test_measures_of_several_partitions_add_up_to_one_queue(spread: _Spread) -> None:
    await spread.one.make_queue("orders", HoldfastPartitions="3")
    view = await spread.queues.find(KEY.account, "orders")

    async def measures() -> list[api.Measures]:
        return await spread.queues.call(view, api.QueueMeasures(view.target))

    for service in (spread.one, spread.other):
        assert await receive(service) == []
        assert await receive(service, WaitTimeSeconds=1) == []
    assert sum(one.empty_receives for one in await measures()) == 4, "however many partitions were asked"
    for body in range(6):
        await send(spread.one, str(body))
    received, calls = 0, 0
    while received < 6:
        received += len(await receive(spread.other))
        calls += 1
    assert calls > 1, "from one partition at a time"
    parts = await measures()
    assert len(parts) == 3
    assert sum(one.sent for one in parts) == sum(one.received for one in parts) == 6
    assert sum(one.empty_receives for one in parts) == 4

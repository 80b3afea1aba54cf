"""The embedded service: composition, declared queues, and readiness."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from auth.limits import Rate, TenantLimits
from backend.api import Configure, NewMessage, Send
from billing.lake.outbox import Outbox
from billing.metering.json_records import encode_calls
from billing.metering.usage import COUNTS, UsageKey, UsageRecord
from frontend.queues.queues import Queues
from frontend.queues.view import QueueView
from frontend.settings import FrontendSettings
from holdfast.process.embedded import Embedded, compose
from holdfast.runtime.declared.queues import in_order
from holdfast.runtime.errors import CannotStart
from holdfast.runtime.frontend_services import frontend_settings
from holdfast.runtime.keyring import open_keyring
from holdfast.runtime.root_tenant import ensure_root
from holdfast.settings import (
    DeclaredQueue,
    DeclaredSubscription,
    DeclaredTopic,
    DeclaredValue,
    Settings,
    SettingsError,
    load,
)
from metadata_service.sqlite.store import SQLiteStore
from metadata_service.store import QueueNotFound
from metadata_service.topics import Subscription, Topic
from tests.closing import closing
from tests.servers.waiting import until
from tests.tables import table

ACCOUNT = "000000000000"
ARN = "arn:aws:sqs:us-east-1:000000000000:"

Start = Callable[..., AbstractAsyncContextManager[tuple[Embedded, SQLiteStore]]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Starts the service on the same data folder each time."""

    @asynccontextmanager
    async def starting(*queues: DeclaredQueue, **changes: Any) -> AsyncIterator[tuple[Embedded, SQLiteStore]]:
        settings = Settings(data=tmp_path, queues=queues, **{"segment_bytes": 1 << 21, **changes})
        async with closing(SQLiteStore(settings.metadata_file)) as store:
            root, _ = await ensure_root(store.credentials, settings)
            service = await compose(settings, store, root, await open_keyring(settings, store))
            try:
                yield service, store
            finally:
                await service.drain()
                await service.close()

    return starting


async def view_of(service: Embedded, store: SQLiteStore, name: str) -> QueueView:
    return Queues(service.app.services).view(await store.queues.get_queue(ACCOUNT, name))


async def subscriptions_of(store: SQLiteStore, topic: Topic) -> list[Subscription]:
    return await store.topics.topic_subscriptions(topic.topic_id, limit=100)


async def status(service: Embedded, path: str) -> int:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""}
    await service.app({**scope, "headers": [], "http_version": "1.1", "scheme": "http"}, receive, send)
    code: int = sent[0]["status"]
    return code


async def test_refused_sign_ins_are_in_the_audit_log(start: Start, tmp_path: Path) -> None:
    async with start():
        pass
    assert (tmp_path / "audit.jsonl").read_bytes() == b""
    async with start(audit_file=tmp_path / "elsewhere") as (service, _):
        assert await status(service, "/") == 403
        line = json.loads((tmp_path / "elsewhere").read_text())
    assert (line["action"], line["outcome"], line["reason"]) == ("sign-in", "refused", "MissingAuthenticationToken")


async def test_messages_are_named_under_one_secret_for_good(start: Start, tmp_path: Path) -> None:
    """Otherwise a duplicate sent again after a restart would be another message."""
    named = []
    for _ in range(2):
        async with start() as (service, store):
            named.append(service.app.services.naming)
            (stored,) = await store.credentials.list_service_keys("naming")
    assert named[0] == named[1]
    assert len(named[0]) == 32
    assert named[0] not in stored.secret, "it is stored encrypted"
    assert named[0] not in (tmp_path / "metadata.sqlite").read_bytes()


async def test_without_an_audit_log_the_service_does_not_start(start: Start, tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="cannot be written: No such file"):
        async with start(audit_file=tmp_path / "none" / "audit"):
            pass


def test_the_frontend_gets_its_settings() -> None:
    changed: dict[str, Any] = {
        "region": "eu-west-1",
        "external_url": "https://queue.example.com",
        "queue_name_hold_seconds": 1,
        "purge_interval_seconds": 2,
        "deduplication_window_seconds": 3,
        "in_flight_limit": 4,
        "auto_create_queues": True,
        "forbid_deleting_nonempty_queues": True,
    }
    assert dataclasses.asdict(frontend_settings(Settings(**changed))).items() >= changed.items()
    assert frontend_settings(Settings()) == FrontendSettings()
    limited = frontend_settings(Settings(default_limits="calls=5:9 queues=3"))
    assert limited.default_limits == TenantLimits(calls=Rate(5, 9), queues=3)


async def test_it_starts_without_its_redis_and_reports_it(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    async with start(rate_limit_storage="unix:///nowhere/redis", default_limits="calls=1") as (service, _):
        assert await status(service, "/health/ready") == 200
    assert "Redis at unix:///nowhere/redis does not answer" in caplog.text


async def test_the_least_segment_has_room_for_the_largest_message(start: Start) -> None:
    segment_bytes_min = 2 << 20
    assert load({"segment_bytes": str(segment_bytes_min)}, {}).segment_bytes == segment_bytes_min
    with pytest.raises(SettingsError, match="segment-bytes"):
        load({"segment_bytes": str(segment_bytes_min - 1)}, {})
    async with start(DeclaredQueue("orders"), segment_bytes=segment_bytes_min) as (service, store):
        view = await view_of(service, store, "orders")
        backend = service.app.services.backend
        await backend.call(Configure(view.settings))
        for _ in range(3):
            (stored,) = await backend.call(Send(view.target, [NewMessage(bytes(view.message_bytes_max + 4096))]))
            assert stored.message_id


async def test_it_is_ready_until_it_drains(start: Start) -> None:
    async with start() as (service, _):
        assert await status(service, "/health/live") == 200
        assert await status(service, "/health/ready") == 200
        await service.drain()
        assert await status(service, "/health/ready") == 503
        assert await status(service, "/health/live") == 200


async def test_it_is_not_ready_without_its_journal(start: Start) -> None:
    async with start() as (service, _):
        service._node._failed(OSError("the disk is gone"))
        assert await status(service, "/health/ready") == 503
        async with asyncio.timeout(30):
            while await status(service, "/health/ready") != 200:
                await asyncio.sleep(0.01)


async def test_declared_queues_are_created(start: Start) -> None:
    source = DeclaredQueue(
        "orders",
        {"DelaySeconds": 5, "RedrivePolicy": {"deadLetterTargetArn": ARN + "dead", "maxReceiveCount": 3}},
        {"team": "shop"},
    )
    fifo = DeclaredQueue("line.fifo", {"FifoQueue": True, "ContentBasedDeduplication": True})
    async with start(source, fifo, DeclaredQueue("dead")) as (_, store):
        queue = await store.queues.get_queue(ACCOUNT, "orders")
        assert queue.attributes["DelaySeconds"] == "5"
        assert json.loads(queue.attributes["RedrivePolicy"])["maxReceiveCount"] == 3
        assert queue.tags == {"team": "shop"}
        line = await store.queues.get_queue(ACCOUNT, "line.fifo")
        assert line.attributes == {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
        assert await store.queues.dead_letter_sources(ACCOUNT, ARN + "dead", limit=10) == ["orders"]


async def test_declared_queues_are_brought_to_what_is_declared(start: Start) -> None:
    before = DeclaredQueue("orders", {"DelaySeconds": 5, "VisibilityTimeout": 7}, {"a": "1", "b": "1"})
    after = DeclaredQueue("orders", {"DelaySeconds": 6}, {"b": "2"})
    async with start(before) as (_, store):
        created = await store.queues.get_queue(ACCOUNT, "orders")
    async with start(after) as (_, store):
        queue = await store.queues.get_queue(ACCOUNT, "orders")
        assert queue.queue_id == created.queue_id
        assert queue.attributes == {"DelaySeconds": "6", "VisibilityTimeout": "7"}
        assert queue.tags == {"a": "1", "b": "2"}
    async with start(after) as (_, store):
        assert msgspec.structs.replace(await store.queues.get_queue(ACCOUNT, "orders"), version=0, modified_s=0) == (
            msgspec.structs.replace(queue, version=0, modified_s=0)
        )


async def test_a_declared_queue_that_was_deleted_is_made_anew(start: Start) -> None:
    declared = DeclaredQueue("orders")
    async with start(declared) as (_, store):
        queue = await store.queues.get_queue(ACCOUNT, "orders")
        await store.queues.delete_queue(queue.queue_id, now_ms=10**15)
    async with start(declared) as (_, store):
        assert (await store.queues.get_queue(ACCOUNT, "orders")).queue_id > queue.queue_id


@pytest.mark.parametrize(("queue", "why"), table(__file__, "declarations that cannot be used"))
async def test_a_declaration_that_cannot_be_used_is_named(start: Start, queue: list[Any], why: str) -> None:
    with pytest.raises(CannotStart) as raised:
        async with start(DeclaredQueue(*queue)):
            pass
    assert str(raised.value).startswith(why)
    async with start() as (_, store):
        with pytest.raises(QueueNotFound):
            await store.queues.get_queue(ACCOUNT, queue[0])


async def test_declared_topics_are_created_with_their_subscriptions(start: Start) -> None:
    raw = DeclaredSubscription("orders", {"RawMessageDelivery": True, "FilterPolicy": {"kind": ["meal"]}})
    news = DeclaredTopic("news", {"DisplayName": "News"}, {"team": "shop"}, (raw, DeclaredSubscription("log")))
    line = DeclaredTopic("line.fifo", {"FifoTopic": True, "ContentBasedDeduplication": True})
    queues = DeclaredQueue("orders"), DeclaredQueue("log")
    async with start(*queues, topics=(news, line)) as (_, store):
        topic = await store.topics.get_topic(ACCOUNT, "news")
        assert (topic.attributes, topic.tags) == ({"DisplayName": "News"}, {"team": "shop"})
        found = {one.endpoint: one for one in await subscriptions_of(store, topic)}
        assert set(found) == {ARN + "orders", ARN + "log"}
        assert not any(one.pending for one in found.values())
        assert found[ARN + "orders"].attributes["RawMessageDelivery"] == "true"
        assert json.loads(found[ARN + "orders"].attributes["FilterPolicy"]) == {"kind": ["meal"]}
        fifo = await store.topics.get_topic(ACCOUNT, "line.fifo")
        assert fifo.attributes == {"FifoTopic": "true", "ContentBasedDeduplication": "true"}


async def test_declared_topics_are_brought_to_what_is_declared(start: Start) -> None:
    def declared(name: str, tag: str, raw: bool, *more: DeclaredSubscription) -> tuple[DeclaredTopic, DeclaredTopic]:
        attributes: dict[str, DeclaredValue] = {} if name == "" else {"DisplayName": name}
        subscription = DeclaredSubscription("a", {"RawMessageDelivery": raw})
        fifo = DeclaredTopic("line.fifo", {"FifoTopic": True})
        return DeclaredTopic("news", attributes, {"t": tag}, (*more, subscription)), fifo

    queues = DeclaredQueue("a"), DeclaredQueue("b")
    kept = DeclaredSubscription("b", {"FilterPolicy": {"kind": ["meal"]}})
    async with start(*queues, topics=declared("News", "1", True, kept)) as (_, store):
        created = await store.topics.get_topic(ACCOUNT, "news")
        before = {one.endpoint: one for one in await subscriptions_of(store, created)}
    async with start(*queues, topics=declared("", "2", False)) as (_, store):
        topic = await store.topics.get_topic(ACCOUNT, "news")
        assert topic.topic_id == created.topic_id
        assert (topic.attributes, topic.tags) == ({"DisplayName": "News"}, {"t": "2"})
        after = {one.endpoint: one for one in await subscriptions_of(store, topic)}
        assert after[ARN + "a"].subscription_id == before[ARN + "a"].subscription_id
        assert "RawMessageDelivery" not in after[ARN + "a"].attributes
        assert after[ARN + "b"] == before[ARN + "b"], "nothing is deleted, and what is not named stays"
    async with start(*queues, topics=declared("", "2", False)) as (_, store):
        assert await store.topics.get_topic(ACCOUNT, "news") == topic, "without a difference nothing is stored"


async def test_the_type_of_a_declared_topic_stays(start: Start) -> None:
    async with start(topics=(DeclaredTopic("news"),)) as (_, store):
        topic = await store.topics.get_topic(ACCOUNT, "news")
    with pytest.raises(CannotStart, match=r"^topic 'news', .* exists as a standard topic, and its type stays"):
        async with start(topics=(DeclaredTopic("news", {"FifoTopic": True, "DisplayName": "N"}),)):
            pass
    async with start(topics=(DeclaredTopic("news", {"FifoTopic": False}),)) as (_, store):
        assert await store.topics.get_topic(ACCOUNT, "news") == topic


async def test_a_declared_topic_that_was_deleted_is_made_anew(start: Start) -> None:
    declared = DeclaredTopic("news", subscriptions=(DeclaredSubscription("a"),))
    async with start(DeclaredQueue("a"), topics=(declared,)) as (_, store):
        topic = await store.topics.get_topic(ACCOUNT, "news")
        await store.topics.delete_topic(topic.topic_id)
    async with start(DeclaredQueue("a"), topics=(declared,)) as (_, store):
        again = await store.topics.get_topic(ACCOUNT, "news")
        assert again.topic_id > topic.topic_id
        assert len(await subscriptions_of(store, again)) == 1


@pytest.mark.parametrize(("topic", "why"), table(__file__, "topics that cannot be used"))
async def test_a_declared_topic_that_cannot_be_used_is_named(start: Start, topic: dict[str, Any], why: str) -> None:
    with pytest.raises(CannotStart) as raised:
        async with start(DeclaredQueue("a"), topics=(msgspec.convert(topic, DeclaredTopic),)):
            pass
    assert str(raised.value).startswith(why)


def test_dead_letter_queues_are_created_first() -> None:
    def to(name: str) -> dict[str, Any]:
        return {"RedrivePolicy": {"deadLetterTargetArn": ARN + name}}

    queues = [
        DeclaredQueue("a", to("b")),
        DeclaredQueue("b", {"RedrivePolicy": json.dumps({"deadLetterTargetArn": ARN + "c"})}),
        DeclaredQueue("c"),
        DeclaredQueue("x", to("y")),
        DeclaredQueue("y", to("x")),
        DeclaredQueue("z", {"RedrivePolicy": "{"}),
    ]
    names = [queue.name for queue in in_order(queues)]
    assert sorted(names) == sorted(queue.name for queue in queues)
    assert names[:3] == ["c", "b", "a"]


async def test_waiting_usage_files_are_logged_if_usage_is_off(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with start():
        assert "are not uploaded" not in caplog.text
    async with start(usage="on") as (service, _):
        meter = service.app.services.meter
        assert meter is not None
        meter.open("ListQueues", UsageKey(ACCOUNT, "", 0, "", "ListQueues"))
    async with start():
        assert f"1 usage files in {tmp_path / 'usage'} are not uploaded" in caplog.text


async def test_what_waits_for_the_usage_stream_is_published_after_the_start(start: Start, tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "usage-stream", 1 << 20)
    key = UsageKey(ACCOUNT, "q", 7, "standard", "SendMessage")
    outbox.add(0, [encode_calls(UsageRecord("host", "00" * 8, 1, 0, 0, key, (1,) * len(COUNTS)))])
    async with start(usage="on", usage_stream="usage", kafka_partitions=3) as (service, store):
        assert service.app.services.publisher is not None
        await until(lambda: outbox.backlog().files == 0)
        assert (await store.streams.get_stream(ACCOUNT, "usage")).partitions == 3


async def test_a_usage_stream_needs_usage(start: Start) -> None:
    with pytest.raises(CannotStart, match="usage_stream needs usage records"):
        async with start(usage_stream="usage"):
            pass

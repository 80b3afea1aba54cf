"""Quotas of a tenant that count calls under way and stored bytes; tests/frontend/cases/limits.yaml has the rest."""

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from auth.limits import UNLIMITED, Rate, TenantLimits
from auth.principal import SCOPES
from backend.api import AccountBytes, Receive, ReceivedMessage, Unavailable
from backend.serving import queue_stats
from frontend.request import throttle
from frontend.request.throttle import CLASS_OF
from frontend.settings import FrontendSettings
from frontend.sqs.protocol.model import ACTIONS
from tests.frontend.service import FrontendAnswer, FrontendService, running
from tests.servers.waiting import until

SLOW = 0.001
"""Rate at which nothing drains within a test."""


async def limit(service: FrontendService, **limits: Any) -> None:
    tenant = msgspec.structs.replace(await service.tenant(), limits=TenantLimits(**limits))
    await service.app.services.credentials.update_tenant(tenant)


async def send(service: FrontendService) -> FrontendAnswer:
    return await service.json("SendMessage", {"QueueUrl": service.url("q"), "MessageBody": "x"})


async def receive(service: FrontendService, queue: str = "q", **members: Any) -> FrontendAnswer:
    return await service.json("ReceiveMessage", {"QueueUrl": service.url(queue), **members})


def test_every_action_has_a_class() -> None:
    assert CLASS_OF.keys() == ACTIONS.keys() | set(SCOPES)
    assert set(CLASS_OF.values()) == set(SCOPES)
    assert CLASS_OF["DeleteMessageBatch"] == CLASS_OF["ChangeMessageVisibility"] == "receive"
    assert CLASS_OF["SendMessageBatch"] == "send"
    assert CLASS_OF["GetQueueAttributes"] == "manage"
    assert TenantLimits() == UNLIMITED


class _Waiting:
    """Receives that wait until the test lets them answer."""

    def __init__(self, service: FrontendService) -> None:
        self.service = service
        self.count = 0
        self.answer = asyncio.Event()
        service.backend.replaced[Receive] = self._receive
        self.tasks: list[asyncio.Task[FrontendAnswer]] = []

    async def _receive(self, command: Receive) -> list[ReceivedMessage]:
        if command.options.wait_seconds:
            self.count += 1
            await self.answer.wait()
        return []

    async def begin(self, count: int) -> None:
        self.tasks += [asyncio.create_task(receive(self.service, WaitTimeSeconds=20)) for _ in range(count)]
        await until(lambda: self.count >= len(self.tasks))

    async def end(self) -> None:
        self.answer.set()
        assert [task.status for task in await asyncio.gather(*self.tasks)] == [200] * len(self.tasks)


async def test_the_quota_of_long_polls(service: FrontendService) -> None:
    await service.make_queue("q")
    await limit(service, long_polls=2)
    waiting = _Waiting(service)
    await waiting.begin(2)
    answer = await receive(service, WaitTimeSeconds=20)
    assert (answer.status, answer.code) == (403, "RequestThrottled")
    assert "has 2 receives waiting for messages" in answer.message
    assert "quota 'long_polls' is 2" in answer.message
    assert answer.headers["retry-after"] == "1"
    assert (await receive(service)).status == 200, "a receive that does not wait is none"
    await waiting.end()
    assert (await receive(service, WaitTimeSeconds=20)).status == 200


async def test_the_quotas_of_topics(service: FrontendService) -> None:
    throttle, account = service.app.context.throttle, (await service.tenant()).account
    assert await throttle.topics_max(account) == (None, None)
    await limit(service, topics=3, topic_partitions=50)
    assert await throttle.topics_max(account) == (3, 50)
    assert await throttle.topics_max("999999999999") == (None, None)


async def test_the_quota_of_calls_under_way(service: FrontendService) -> None:
    await service.make_queue("q")
    await limit(service, connections=2, calls=Rate(SLOW, 4))
    waiting = _Waiting(service)
    await waiting.begin(2)
    for _ in range(5):
        answer = await send(service)
        assert (answer.status, answer.code) == (403, "RequestThrottled")
        assert "has 2 calls under way" in answer.message
        assert "quota 'connections' is 2" in answer.message
    await waiting.end()
    statuses = [(await send(service)).status for _ in range(3)]
    assert statuses == [200, 200, 403], "what was refused did not count against the rate"


def body(service: FrontendService, queue: str = "q", length: int = 1000) -> dict[str, str]:
    return {"QueueUrl": service.url(queue), "MessageBody": "x" * length}


async def test_stored_bytes_are_queried_now_and_then_only(
    service: FrontendService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [1000.0]
    asked = [0]
    monkeypatch.setattr(throttle, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(queue_stats, "SUMS_KEPT_SECONDS", 0.0)

    async def counted(command: AccountBytes) -> int:
        asked[0] += 1
        if asked[0] > 2:
            raise Unavailable("not now")
        return await service.backend.inside.call(command)

    service.backend.replaced[AccountBytes] = counted
    await service.make_queue("q")
    await limit(service, stored_bytes=500)
    for _ in range(3):
        assert (await service.json("SendMessage", body(service))).status == 200
    assert asked == [1]
    now[0] += throttle.STORED_SECONDS
    for _ in range(3):
        assert (await service.json("SendMessage", body(service))).code == "RequestThrottled"
    assert asked == [2]
    for _ in range(3):
        now[0] += throttle.STORED_SECONDS
        answer = await service.json("SendMessage", body(service))
        assert answer.code == "RequestThrottled", "what was known holds while the backend does not tell"
    assert asked == [5]
    assert sum("use the last known values" in record.message for record in caplog.records) == 1


async def test_each_of_several_processes_has_a_share_of_the_quotas(tmp_path: Any) -> None:
    async with running(tmp_path, FrontendSettings(processes=2)) as service:
        await service.make_queue("q")
        await limit(service, long_polls=3)
        waiting = _Waiting(service)
        await waiting.begin(2)
        answer = await receive(service, WaitTimeSeconds=20)
        assert "quota 'long_polls' is 2" in answer.message
        await limit(service, connections=4, long_polls=None)
        assert "quota 'connections' is 2" in (await send(service)).message
        await waiting.end()

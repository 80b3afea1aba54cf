"""A tenant's limits, applied to its calls."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from auth.credentials import Tenant, new_access_key
from auth.limits import UNLIMITED, Rate, TenantLimits
from auth.principal import SCOPES
from backend.api import Receive, ReceivedMessage, Target, Unavailable
from frontend.request import throttle
from frontend.request.settings import FrontendSettings
from frontend.request.throttle import CLASS_OF
from frontend.sqs.protocol.model import ACTIONS
from tests.frontend.fakes import KEY, FrontendAnswer, FrontendService, running

SLOW = 0.001
"""Rate at which nothing drains within a test."""


async def limit(service: FrontendService, account: str = KEY.account, **limits: Any) -> None:
    credentials = service.app.services.credentials
    tenant = await credentials.store.get_tenant(account)
    assert tenant is not None
    await credentials.update_tenant(msgspec.structs.replace(tenant, limits=TenantLimits(**limits)))


async def send(service: FrontendService, queue: str = "q") -> FrontendAnswer:
    return await service.json("SendMessage", {"QueueUrl": service.url(queue), "MessageBody": "x"})


async def receive(service: FrontendService, queue: str = "q", **members: Any) -> FrontendAnswer:
    return await service.json("ReceiveMessage", {"QueueUrl": service.url(queue), **members})


async def passed(service: FrontendService, *queues: str, calls: int = 6) -> int:
    """Number of sends that were admitted."""
    answers = [await send(service, queue) for queue in queues or ("q",) for _ in range(calls)]
    assert {answer.status for answer in answers} <= {200, 403}
    assert all(answer.code == "RequestThrottled" for answer in answers if answer.status == 403)
    return sum(answer.status == 200 for answer in answers)


# --- rates -------------------------------------------------------------------------------------------------


async def test_a_tenant_without_limits_is_not_limited(service: FrontendService) -> None:
    await service.make_queue("q")
    assert await passed(service, calls=50) == 50


async def test_too_many_calls_are_refused_in_json(service: FrontendService) -> None:
    await service.make_queue("q")
    await limit(service, calls=Rate(0.1, 2))
    assert await passed(service, calls=2) == 2
    answer = await send(service)
    assert answer.status == 403
    assert answer.json["__type"].endswith("#RequestThrottled")
    assert answer.headers["x-amzn-query-error"] == "RequestThrottled;Sender"
    assert answer.headers["retry-after"] == "10"
    assert answer.headers["x-amz-retry-after"] == "10000"
    assert f"the account {KEY.account} has the limits calls 0.1 a second, 2 at once" in answer.message


async def test_too_many_calls_are_refused_in_query(service: FrontendService) -> None:
    await service.make_queue("q")
    await limit(service, calls=Rate(SLOW, 1))
    for expected in (200, 403):
        answer = await service.query("SendMessage", {"MessageBody": "x", "QueueUrl": service.url("q")})
        assert answer.status == expected
    assert answer.code == "RequestThrottled"
    assert answer.text("Error/Type") == "Sender"
    assert answer.headers["retry-after"] == "900", "no client is asked to wait for longer"


async def test_each_class_of_actions_has_a_limit_of_its_own(service: FrontendService) -> None:
    await service.make_queue("q")
    await limit(service, send=Rate(SLOW, 2), receive=Rate(SLOW, 3))
    assert await passed(service) == 2
    for expected in (200, 200, 200, 403):
        answer = await receive(service)
        assert answer.status == expected
    assert "has the limits receive 0.001 a second, 3 at once" in answer.message
    handle = {"QueueUrl": service.url("q"), "ReceiptHandle": "1:1"}
    assert (await service.json("DeleteMessage", handle)).code == "RequestThrottled"
    assert (await service.json("GetQueueAttributes", {"QueueUrl": service.url("q")})).status == 200


async def test_a_class_counts_towards_all_calls(service: FrontendService) -> None:
    await service.make_queue("q")
    await limit(service, calls=Rate(SLOW, 4), send=Rate(SLOW, 3))
    assert await passed(service) == 3
    assert (await receive(service)).status == 200
    assert (await receive(service)).status == 403


async def test_each_queue_has_a_limit_of_its_own(service: FrontendService) -> None:
    await service.make_queue("q")
    await service.make_queue("other")
    await limit(service, each_queue=Rate(SLOW, 2))
    assert await passed(service, "q", "other") == 4
    answer = await send(service)
    assert "has the limits each_queue 0.001 a second, 2 at once" in answer.message
    assert (await service.json("GetQueueUrl", {"QueueName": "q"})).status == 200


async def test_a_call_that_its_queue_refuses_does_not_count_for_the_tenant(service: FrontendService) -> None:
    await service.make_queue("q")
    await service.make_queue("other")
    await limit(service, calls=Rate(SLOW, 5), send=Rate(SLOW, 5), each_queue=Rate(SLOW, 2))
    assert await passed(service, calls=20) == 2
    assert await passed(service, "other", calls=2) == 2


async def test_calls_to_queues_that_do_not_exist_count(service: FrontendService) -> None:
    await limit(service, calls=Rate(SLOW, 2))
    for expected in ("NonExistentQueue", "NonExistentQueue", "RequestThrottled"):
        assert (await send(service, "none")).code.endswith(expected)


async def share_with_everybody(service: FrontendService, name: str) -> None:
    arn = f"arn:aws:sqs:us-east-1:{KEY.account}:{name}"
    statement = {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": arn}
    await service.make_queue(name, Policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]}))


async def test_the_owner_of_a_queue_limits_it_whoever_calls(service: FrontendService) -> None:
    other = "222222222222"
    await service.store.put_tenant(Tenant(other, "other"))
    key = new_access_key(other)
    await service.app.services.credentials.put(key)

    async def called(action: str, members: Any) -> FrontendAnswer:
        headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{action}"}
        return await service.signed("POST", "/", json.dumps(members).encode(), headers, key)

    await share_with_everybody(service, "q")
    await limit(service, calls=Rate(SLOW, 9), each_queue=Rate(SLOW, 3))
    sent = {"QueueUrl": service.url("q"), "MessageBody": "x"}
    assert [(await called("SendMessage", sent)).status for _ in range(2)] == [200, 200]
    await limit(service, other, calls=Rate(SLOW, 2))
    assert (await called("SendMessage", sent)).status == 200
    for _ in range(5):
        answer = await called("SendMessage", sent)
        assert answer.code == "RequestThrottled"
        assert f"the account {KEY.account} has the limits each_queue" in answer.message
    assert (await called("ListQueues", {})).status == 200, "what the queue refused did not count for the caller"
    assert (await called("ListQueues", {})).status == 403
    assert (await service.json("ListQueues")).status == 200


async def test_the_owner_of_a_public_queue_answers_for_those_who_do_not_sign(service: FrontendService) -> None:
    await share_with_everybody(service, "q")
    await limit(service, calls=Rate(SLOW, 4), each_queue=Rate(SLOW, 2))
    headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.SendMessage"}
    content = json.dumps({"QueueUrl": service.url("q"), "MessageBody": "x"}).encode()
    for expected in (200, 200, 403, 403, 403):
        answer = await service.unsigned("POST", "/", content, headers)
        assert answer.status == expected, answer.content
    assert answer.code == "RequestThrottled"
    assert [(await service.json("ListQueues")).status for _ in range(3)] == [200, 200, 403]


async def test_other_tenants_are_not_slowed(service: FrontendService) -> None:
    await service.store.put_tenant(Tenant("222222222222", "other"))
    key = new_access_key("222222222222")
    await service.app.services.credentials.put(key)
    await service.make_queue("q")
    await limit(service, calls=Rate(SLOW, 1))
    assert await passed(service) == 1
    headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.ListQueues"}
    for _ in range(5):
        assert (await service.signed("POST", "/", b"{}", headers, key)).status == 200


async def test_limits_change_at_once_and_what_was_used_stays_used(service: FrontendService) -> None:
    await service.make_queue("q")
    await limit(service, calls=Rate(SLOW, 2), each_queue=Rate(SLOW, 9))
    assert await passed(service) == 2
    await limit(service, calls=Rate(SLOW, 5), each_queue=Rate(SLOW, 9))
    assert await passed(service) == 3
    await limit(service)
    assert await passed(service) == 6
    await limit(service, calls=Rate(SLOW, 6))
    assert await passed(service) == 1


async def test_a_record_that_is_read_again_changes_nothing(service: FrontendService) -> None:
    await service.make_queue("q")
    for _ in range(3):
        await limit(service, calls=Rate(SLOW, 2))
        await passed(service, calls=1)
    assert await passed(service) == 0


async def test_tenants_without_limits_have_those_of_the_settings(tmp_path: Any) -> None:
    settings = FrontendSettings(default_limits=TenantLimits(send=Rate(SLOW, 3)))
    async with running(tmp_path, settings) as service:
        await service.make_queue("q")
        assert await passed(service) == 3
        await limit(service, queues=100)
        assert await passed(service) == 6


def test_every_action_has_a_class() -> None:
    assert CLASS_OF.keys() == ACTIONS.keys() | set(SCOPES)
    assert set(CLASS_OF.values()) == set(SCOPES)
    assert CLASS_OF["DeleteMessageBatch"] == CLASS_OF["ChangeMessageVisibility"] == "receive"
    assert CLASS_OF["SendMessageBatch"] == "send"
    assert CLASS_OF["GetQueueAttributes"] == "manage"
    assert TenantLimits() == UNLIMITED


# --- quotas ------------------------------------------------------------------------------------------------


async def test_the_quota_of_queues(service: FrontendService) -> None:
    await limit(service, queues=2)
    for name in ("a", "b"):
        await service.make_queue(name)
    answer = await service.json("CreateQueue", {"QueueName": "c"})
    assert (answer.status, answer.code) == (403, "OverLimit")
    assert f"The account {KEY.account} may have 2 queues, its quota 'queues', and has as many." in answer.message
    await service.make_queue("a")  # exists already
    assert (await service.json("DeleteQueue", {"QueueUrl": service.url("b")})).status == 200
    await service.make_queue("c")


async def test_the_quota_of_queues_holds_for_those_that_a_send_creates(tmp_path: Any) -> None:
    async with running(tmp_path, FrontendSettings(auto_create_queues=True)) as service:
        await limit(service, queues=1)
        assert (await send(service, "a")).status == 200
        assert (await send(service, "b")).code == "OverLimit"


class _Waiting:
    """Receives that wait until the test lets them answer."""

    def __init__(self, service: FrontendService, monkeypatch: pytest.MonkeyPatch) -> None:
        self.service = service
        self.count = 0
        self.answer = asyncio.Event()
        monkeypatch.setattr(service.backend, "receive", self._receive)
        self.tasks: list[asyncio.Task[FrontendAnswer]] = []

    async def _receive(self, target: Target, command: Receive) -> list[ReceivedMessage]:
        if command.wait_seconds:
            self.count += 1
            await self.answer.wait()
        return []

    async def begin(self, count: int) -> None:
        self.tasks += [asyncio.create_task(receive(self.service, WaitTimeSeconds=20)) for _ in range(count)]
        async with asyncio.timeout(30):
            while self.count < len(self.tasks):
                await asyncio.sleep(0)

    async def end(self) -> None:
        self.answer.set()
        assert [task.status for task in await asyncio.gather(*self.tasks)] == [200] * len(self.tasks)


async def test_the_quota_of_long_polls(service: FrontendService, monkeypatch: pytest.MonkeyPatch) -> None:
    await service.make_queue("q")
    await limit(service, long_polls=2)
    waiting = _Waiting(service, monkeypatch)
    await waiting.begin(2)
    answer = await receive(service, WaitTimeSeconds=20)
    assert (answer.status, answer.code) == (403, "RequestThrottled")
    assert "has 2 receives waiting for messages" in answer.message
    assert "quota 'long_polls' is 2" in answer.message
    assert answer.headers["retry-after"] == "1"
    assert (await receive(service)).status == 200, "a receive that does not wait is none"
    await waiting.end()
    assert (await receive(service, WaitTimeSeconds=20)).status == 200


async def test_the_quota_of_calls_under_way(service: FrontendService, monkeypatch: pytest.MonkeyPatch) -> None:
    await service.make_queue("q")
    await limit(service, connections=2, calls=Rate(SLOW, 4))
    waiting = _Waiting(service, monkeypatch)
    await waiting.begin(2)
    for _ in range(5):
        answer = await send(service)
        assert (answer.status, answer.code) == (403, "RequestThrottled")
        assert "has 2 calls under way" in answer.message
        assert "quota 'connections' is 2" in answer.message
    await waiting.end()
    assert await passed(service) == 2, "what was refused did not count against the rate"


def body(service: FrontendService, queue: str = "q", length: int = 1000) -> dict[str, str]:
    return {"QueueUrl": service.url(queue), "MessageBody": "x" * length}


@pytest.fixture
def always_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Query the backend before each send."""
    monkeypatch.setattr(throttle, "STORED_SECONDS", 0.0)


@pytest.mark.usefixtures("always_weighed")
async def test_the_quota_of_stored_bytes(service: FrontendService) -> None:
    await service.make_queue("q")
    await service.make_queue("other")
    await limit(service, stored_bytes=2500)
    for queue in ("q", "other", "q"):
        assert (await service.json("SendMessage", body(service, queue))).status == 200
    used = await service.backend.stored_bytes(KEY.account)
    answer = await service.json("SendMessage", body(service))
    assert (answer.status, answer.code) == (403, "RequestThrottled")
    assert f"The queues of the account {KEY.account} store {used} bytes" in answer.message
    assert "its quota 'stored_bytes' is 2500" in answer.message
    assert answer.headers["retry-after"] == "1"
    entries = [{"Id": "a", "MessageBody": "x"}, {"Id": "b", "MessageBody": "y"}]
    batch = {"QueueUrl": service.url("other"), "Entries": entries}
    assert (await service.json("SendMessageBatch", batch)).code == "RequestThrottled"
    answer = await service.query("SendMessage", body(service))
    assert (answer.status, answer.code, answer.text("Error/Type")) == (403, "RequestThrottled", "Sender")
    assert f"store {used} bytes" in answer.message
    rest = await service.signed("POST", "/v1/queues/q/messages", b"x", {"Content-Type": "text/plain"})
    assert (rest.status, rest.json["code"]) == (429, "RequestThrottled")
    assert await service.backend.stored_bytes(KEY.account) == used, "nothing of it was stored"

    (message,) = (await receive(service, "other")).json["Messages"]
    deleted = await service.json(
        "DeleteMessage", {"QueueUrl": service.url("other"), "ReceiptHandle": message["ReceiptHandle"]}
    )
    assert deleted.status == 200
    assert (await service.json("SendMessageBatch", batch)).status == 200


@pytest.mark.usefixtures("always_weighed")
async def test_bytes_count_towards_the_quota_of_the_queues_owner(service: FrontendService) -> None:
    await share_with_everybody(service, "q")
    await limit(service, stored_bytes=500, calls=Rate(SLOW, 2))
    headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.SendMessage"}
    content = json.dumps(body(service)).encode()
    for expected in (200, 403, 403):
        answer = await service.unsigned("POST", "/", content, headers)
        assert answer.status == expected, answer.content
    assert f"account {KEY.account} store as much as its quota 'stored_bytes' lets them" in answer.message
    assert not any(str(number) in answer.message for number in (500, await service.backend.stored_bytes(KEY.account)))
    assert (await service.json("ListQueues")).status == 200, "what was refused did not count against the rate"


async def test_what_is_stored_is_asked_for_now_and_then_only(
    service: FrontendService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [1000.0]
    asked = [0]
    monkeypatch.setattr(throttle, "time", SimpleNamespace(monotonic=lambda: now[0]))
    stored_bytes = service.backend.stored_bytes

    async def counted(account: str) -> int:
        asked[0] += 1
        if asked[0] > 2:
            raise Unavailable("not now")
        return await stored_bytes(account)

    monkeypatch.setattr(service.backend, "stored_bytes", counted)
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


async def test_of_several_processes_each_has_a_share_of_the_quotas(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, FrontendSettings(processes=2)) as service:
        await service.make_queue("q")
        await limit(service, long_polls=3)
        waiting = _Waiting(service, monkeypatch)
        await waiting.begin(2)
        answer = await receive(service, WaitTimeSeconds=20)
        assert "quota 'long_polls' is 2" in answer.message
        await limit(service, connections=4, long_polls=None)
        assert "quota 'connections' is 2" in (await send(service)).message
        await waiting.end()


async def test_the_rest_form_is_limited_as_well(service: FrontendService) -> None:
    await service.make_queue("q")
    await limit(service, send=Rate(0.1, 1))
    path = "/v1/queues/q/messages"
    for expected in (201, 429):
        answer = await service.signed("POST", path, b"x", {"Content-Type": "text/plain"})
        assert answer.status == expected, answer.content
    assert answer.headers["retry-after"] == "10"
    assert answer.json["code"] == "RequestThrottled"


@pytest.mark.parametrize(
    ("method", "path", "content"),
    [
        ("GET", "/v1/tenants", b""),
        ("GET", f"/v1/tenants/{KEY.account}", b""),
        ("GET", "/v1/keys", b""),
        ("POST", "/v1/keys", b'{"name": "x"}'),
        ("GET", "/v1/roles", b""),
        ("PUT", "/v1/roles/r", b"{}"),
        ("POST", "/v1/token", b"{}"),
    ],
)
async def test_administration_over_rest_is_limited_as_well(
    service: FrontendService, method: str, path: str, content: bytes
) -> None:
    operator = msgspec.structs.replace(KEY, role="operator")
    await service.app.services.credentials.put(operator)
    await limit(service, manage=Rate(0.1, 2))
    headers = {"Content-Type": "application/json"} if content else {}
    for _ in range(2):
        answer = await service.signed(method, path, content, headers)
        assert answer.status != 429, answer.content
    audited = len(service.audited())
    answer = await service.signed(method, path, content, headers)
    assert (answer.status, answer.json["code"]) == (429, "RequestThrottled")
    assert answer.headers["retry-after"] == "10"
    assert len(service.audited()) == audited, "a limit would not be one if each refusal cost a write"
    limits, json_type = f"/v1/tenants/{KEY.account}/limits", {"Content-Type": "application/json"}
    taken_back = await service.signed("PATCH", limits, b'{"manage": null}', json_type)
    assert taken_back.status == 200, "an operator can always undo a limit, also that of the own account"
    assert (await service.signed(method, path, content, headers)).status != 429


async def test_an_administrator_changes_no_limit_by_being_refused(service: FrontendService) -> None:
    admin = msgspec.structs.replace(KEY, role="admin")
    await service.app.services.credentials.put(admin)
    await limit(service, manage=Rate(SLOW, 1))
    for expected in (200, 429):
        assert (await service.signed("GET", f"/v1/tenants/{KEY.account}/limits", b"", {})).status == expected

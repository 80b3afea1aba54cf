"""Clients' values in log lines and error texts: truncated where long, masked where secret."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from frontend.sqs.protocol.errors import MASK
from holdfast.logs import _Formatter
from telemetry.logs import JsonLines
from tests.behaviour import wire
from tests.behaviour.runner import CaseCaller
from tests.behaviour.world import World, exchange
from tests.frontend.test_costs import FORM, owner, signed

LONG = 1_000_000
ANSWER_BYTES_MAX = 2_500
"""Maximum size of an error answer: its text may have 1,000 characters, which XML makes longer."""
LINE_LENGTH_MAX = 2_500


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as made:
        yield made


@pytest.fixture(scope="module")
def caller(world: World) -> CaseCaller:
    """The owner of a queue q, and of a FIFO queue q.fifo."""

    async def own() -> CaseCaller:
        made = await owner(world)
        request = wire.encode("json", "CreateQueue", {"QueueName": "q.fifo", "Attributes": {"FifoQueue": "true"}})
        assert (await exchange(world.app, signed(world, made, request))).status == 200
        return made

    return world.run(own())


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Lines of the log, in both of its formats."""
    forms: list[logging.Formatter] = [_Formatter("p"), JsonLines("all", "p", 1)]
    return [form.format(record) for record in caplog.records for form in forms]


def sent(world: World, caller: CaseCaller | None, request: wire.WireRequest) -> wire.WireAnswer:
    request.headers = dict(request.headers) | {"Host": world.host}
    return world.run(exchange(world.app, request if caller is None else signed(world, caller, request)))


A = "/" * LONG
X = "x" * LONG
LONG_CALLS: list[tuple[str, dict[str, Any]]] = [
    ("SendMessage", {"QueueUrl": A, "MessageBody": "m"}),
    ("SendMessage", {"QueueUrl": "q.fifo", "MessageBody": "m", "MessageGroupId": X, "MessageDeduplicationId": "d"}),
    ("SendMessage", {"QueueUrl": "q", "MessageBody": "m", "MessageAttributes": {X: {"DataType": "String"}}}),
    ("SendMessage", {"QueueUrl": "q", "MessageBody": "m", "MessageSystemAttributes": {X: {"DataType": "String"}}}),
    (
        "SendMessage",
        {"QueueUrl": "q", "MessageBody": "m", "MessageAttributes": {"a": {"DataType": X, "StringValue": "x"}}},
    ),
    ("GetQueueAttributes", {"QueueUrl": "q", "AttributeNames": [X]}),
    ("SetQueueAttributes", {"QueueUrl": "q", "Attributes": {X: "1"}}),
    ("SetQueueAttributes", {"QueueUrl": "q", "Attributes": {"DelaySeconds": X}}),
    ("SetQueueAttributes", {"QueueUrl": "q", "Attributes": {"Policy": X}}),
    ("SetQueueAttributes", {"QueueUrl": "q", "Attributes": {"RedrivePolicy": X}}),
    ("SetQueueAttributes", {"QueueUrl": "q", "Attributes": {"RedriveAllowPolicy": X}}),
    ("ReceiveMessage", {"QueueUrl": "q", "AttributeNames": [X]}),
    ("ReceiveMessage", {"QueueUrl": "q.fifo", "ReceiveRequestAttemptId": X}),
    ("DeleteMessage", {"QueueUrl": "q", "ReceiptHandle": X}),
    ("ChangeMessageVisibility", {"QueueUrl": "q", "ReceiptHandle": X, "VisibilityTimeout": 1}),
    ("CreateQueue", {"QueueName": X}),
    ("ListQueues", {"NextToken": X}),
    ("TagQueue", {"QueueUrl": "q", "Tags": {X: "v"}}),
    ("AddPermission", {"QueueUrl": "q", "Label": X, "AWSAccountIds": ["000000000000"], "Actions": ["SendMessage"]}),
    ("AddPermission", {"QueueUrl": "q", "Label": "a", "AWSAccountIds": [X], "Actions": [X]}),
    ("RemovePermission", {"QueueUrl": "q", "Label": X}),
    ("StartMessageMoveTask", {"SourceArn": X}),
    ("CancelMessageMoveTask", {"TaskHandle": X}),
    ("SendMessageBatch", {"QueueUrl": "q", "Entries": [{"Id": X, "MessageBody": "m"}]}),
]


@pytest.mark.parametrize("protocol", wire.PROTOCOLS)
@pytest.mark.parametrize("call", LONG_CALLS, ids=lambda call: f"{call[0]}-{list(call[1])[-1]}")
def test_long_values_of_calls(
    world: World,
    caller: CaseCaller,
    caplog: pytest.LogCaptureFixture,
    protocol: wire.Protocol,
    call: tuple[str, dict[str, Any]],
) -> None:
    with caplog.at_level(logging.DEBUG):
        answer = sent(world, caller, wire.encode(protocol, *call))
    assert 400 <= answer.status < 500
    assert len(answer.body) < ANSWER_BYTES_MAX
    assert max(map(len, lines(caplog)), default=0) < LINE_LENGTH_MAX


HEAD = "x" * 40_000
LONG_REQUESTS: list[wire.WireRequest] = [
    wire.WireRequest("POST", "/", {"X-Amz-Target": f"AmazonSQS.{HEAD}"}, "", b"{}"),
    wire.WireRequest("POST", "/", {"X-Amz-Target": HEAD, "Content-Type": "application/x-amz-json-1.0"}, "", b"{}"),
    wire.WireRequest("POST", "/", dict(FORM), "", b"Version=2012-11-05&Action=" + X.encode()),
    wire.WireRequest("POST", "/", dict(FORM), "", b"Action=ListQueues&Version=" + X.encode()),
    wire.WireRequest("POST", "/", dict(FORM), "", b"Action=GetCallerIdentity&Version=2011-06-15&X=" + X.encode()),
    wire.WireRequest("POST", f"/v1/queues/{HEAD}/messages", {"Content-Type": "text/plain"}, "", b"m"),
    wire.WireRequest("GET", "/v1/queues/q/messages", {}, f"{HEAD[:10_000]}=1", b""),
    wire.WireRequest("GET", "/v1/queues/q", {}, f"account={HEAD[:10_000]}", b""),
    wire.WireRequest("GET", f"/v1/tenants/{HEAD}", {}, "", b""),
    wire.WireRequest("PUT", "/v1/queues/q", {"Content-Type": "application/json"}, "", b'{"%b":1}' % HEAD.encode()),
    wire.WireRequest(
        "POST", "/v1/queues/q/messages", {"Content-Type": "application/json"}, "", b'{"%b":1}' % HEAD.encode()
    ),
]


@pytest.mark.parametrize("is_signed", [True, False])
@pytest.mark.parametrize("number", range(len(LONG_REQUESTS)))
def test_long_values_of_requests(
    world: World, caller: CaseCaller, caplog: pytest.LogCaptureFixture, number: int, is_signed: bool
) -> None:
    made = LONG_REQUESTS[number]
    request = wire.WireRequest(made.method, made.path, dict(made.headers), made.query, made.body)
    with caplog.at_level(logging.DEBUG):
        answer = sent(world, caller if is_signed else None, request)
    assert 400 <= answer.status < 500
    assert len(answer.body) < ANSWER_BYTES_MAX
    assert max(map(len, lines(caplog)), default=0) < LINE_LENGTH_MAX


@pytest.mark.parametrize(
    "authorization",
    [
        "Bearer " + HEAD,
        "Basic " + HEAD,
        f"AWS4-HMAC-SHA256 {HEAD}",
        f"AWS4-HMAC-SHA256 Credential={HEAD}/20270115/us-east-1/sqs/aws4_request, SignedHeaders=host, "
        f"Signature={'0' * 64}",
        f"AWS4-HMAC-SHA256 Credential=a/20270115/us-east-1/{HEAD}/aws4_request, SignedHeaders=host, "
        f"Signature={'0' * 64}",
        f"AWS4-HMAC-SHA256 Credential=a/20270115/us-east-1/sqs/{HEAD}, SignedHeaders=host, Signature={'0' * 64}",
    ],
)
@pytest.mark.parametrize("path", ["/", "/v1/queues"])
def test_long_values_of_who_signs(
    world: World, caplog: pytest.LogCaptureFixture, authorization: str, path: str
) -> None:
    headers = {"Authorization": authorization, "X-Amz-Date": HEAD, "X-Amz-" + HEAD[:20_000]: "1", "Host": world.host}
    with caplog.at_level(logging.DEBUG):
        answer = world.run(exchange(world.app, wire.WireRequest("GET", path, headers, "", b"")))
    assert 400 <= answer.status < 500
    assert len(answer.body) < ANSWER_BYTES_MAX
    assert max(map(len, lines(caplog)), default=0) < LINE_LENGTH_MAX


# --- values that must not be logged --------------------------------------------------------------------------

SECRET = "order-4711 secret"
"""An invalid id, because of its space."""
SECRET_CALLS: list[tuple[str, dict[str, Any]]] = [
    (
        "SendMessage",
        {"QueueUrl": "q.fifo", "MessageBody": "m", "MessageGroupId": "g", "MessageDeduplicationId": SECRET},
    ),
    ("SendMessage", {"QueueUrl": "q", "MessageBody": "m", "MessageDeduplicationId": SECRET}),
    ("SendMessage", {"QueueUrl": "q.fifo", "MessageBody": "m", "MessageGroupId": SECRET}),
    ("ReceiveMessage", {"QueueUrl": "q.fifo", "ReceiveRequestAttemptId": SECRET}),
    ("DeleteMessage", {"QueueUrl": "q", "ReceiptHandle": SECRET}),
    ("ChangeMessageVisibility", {"QueueUrl": "q", "ReceiptHandle": SECRET, "VisibilityTimeout": 1}),
]


@pytest.mark.parametrize("protocol", wire.PROTOCOLS)
@pytest.mark.parametrize("call", SECRET_CALLS, ids=lambda call: f"{call[0]}-{list(call[1])[-1]}")
def test_refused_ids_and_handles_are_not_in_the_log(
    world: World,
    caller: CaseCaller,
    caplog: pytest.LogCaptureFixture,
    protocol: wire.Protocol,
    call: tuple[str, dict[str, Any]],
) -> None:
    with caplog.at_level(logging.DEBUG):
        answer = sent(world, caller, wire.encode(protocol, *call))
    assert SECRET.encode() in answer.body
    assert caplog.records
    assert not any(SECRET in line for line in lines(caplog))
    assert any(MASK in line for line in lines(caplog))


def test_handles_that_count_for_nothing_are_not_in_the_log(
    world: World, caller: CaseCaller, caplog: pytest.LogCaptureFixture
) -> None:
    """A handle of another queue, and one whose message is gone."""

    def done(action: str, **params: Any) -> dict[str, Any]:
        answer = wire.decode(
            "json", action, sent(world, caller, wire.encode("json", action, {"QueueUrl": "q"} | params))
        )
        assert isinstance(answer, dict), answer
        return answer

    done("SendMessage", MessageBody="m")
    handle = done("ReceiveMessage")["Messages"][0]["ReceiptHandle"]
    done("DeleteMessage", ReceiptHandle=handle)
    caplog.clear()
    with caplog.at_level(logging.DEBUG):
        for queue in ("q", "q.fifo"):
            params = {"QueueUrl": queue, "ReceiptHandle": handle, "VisibilityTimeout": 1}
            answer = sent(world, caller, wire.encode("json", "ChangeMessageVisibility", params))
            assert handle.encode() in answer.body
    assert len(caplog.records) == 2
    assert not any(handle in line for line in lines(caplog))

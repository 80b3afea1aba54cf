"""Safe retries at the frontend: tokens, digests, concurrent repeats.  Crash safety is tested with the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import orjson
import pytest

from auth.principal import Principal, anonymous
from backend.api import Unavailable
from frontend.request.call import Retry
from frontend.request.retries import Retries
from frontend.request.settings import FrontendSettings
from frontend.sqs.protocol.errors import SqsError
from tests.frontend.fakes import KEY, FrontendAnswer, FrontendService, running

OWN = "x-holdfast-client-token"
SDK = "amz-sdk-invocation-id"
OLDER_SDK = "aws-sdk-invocation-id"
UUID = "0b2c3c54-8d5e-4a52-b4a9-6f3a9c0b5e10"


async def call(service: FrontendService, action: str, members: Mapping[str, Any], **headers: str) -> FrontendAnswer:
    """Make a call in JSON; underscores in the names of headers are hyphens."""
    sent = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{action}"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    return await service.signed("POST", "/", orjson.dumps(members), sent)


async def form(
    service: FrontendService, parameters: Mapping[str, str], token: str, accept: str = "*/*"
) -> FrontendAnswer:
    """Make a call in the Query protocol."""
    sent = {"Content-Type": "application/x-www-form-urlencoded", OWN: token, "Accept": accept}
    return await service.signed("POST", "/", urlencode({"Version": "2012-11-05", **parameters}).encode(), sent)


def stored(service: FrontendService) -> int:
    [partition] = service.backend.partitions.values()
    return len(partition.messages)


@pytest.mark.parametrize("header", [OWN, SDK, OLDER_SDK])
async def test_a_repeat_gets_the_first_answer(service: FrontendService, header: str) -> None:
    url = await service.make_queue("q")
    members = {
        "QueueUrl": url,
        "MessageBody": "a",
        "MessageAttributes": {"n": {"DataType": "Number", "StringValue": "1"}},
    }
    first = await call(service, "SendMessage", members, **{header: UUID})
    service.clock.now += 59
    again = await call(service, "SendMessage", members, **{header: UUID})
    assert first.status == again.status == 200
    assert first.content == again.content
    assert stored(service) == 1
    service.clock.now += 1
    later = await call(service, "SendMessage", members, **{header: UUID})
    assert later.json["MessageId"] != first.json["MessageId"]


async def test_without_a_token_each_call_counts(service: FrontendService) -> None:
    url = await service.make_queue("q")
    for _ in range(2):
        await call(service, "SendMessage", {"QueueUrl": url, "MessageBody": "a"})
    assert stored(service) == 2


async def test_our_own_header_goes_first(service: FrontendService) -> None:
    members = {"QueueUrl": await service.make_queue("q"), "MessageBody": "a"}
    for sdk in ("one", "two"):
        await call(service, "SendMessage", members, **{OWN: "mine", SDK: sdk})
    assert stored(service) == 1
    for own in ("other", "another"):
        await call(service, "SendMessage", members, **{OWN: own, SDK: "one"})
    assert stored(service) == 3
    for older in ("three", "four"):
        await call(service, "SendMessage", members, **{SDK: "one", OLDER_SDK: older})
    assert stored(service) == 4


@pytest.mark.parametrize("token", ["", "a b", "a,b", "x" * 129])
async def test_a_malformed_token(service: FrontendService, token: str) -> None:
    members = {"QueueUrl": await service.make_queue("q"), "MessageBody": "a"}
    refused = await call(service, "SendMessage", members, **{OWN: token})
    assert (refused.status, refused.code) == (400, "InvalidParameterValue")
    assert refused.message.startswith("The header x-holdfast-client-token must have 1 to 128 characters")
    [partition] = service.backend.partitions.values() or [None]
    assert partition is None or not partition.messages
    for _ in range(2):
        ignored = await call(service, "SendMessage", members, **{SDK: token})
        assert ignored.status == 200
    assert stored(service) == 2


async def test_the_same_token_with_another_message_is_refused(service: FrontendService) -> None:
    url = await service.make_queue("q")
    await call(service, "SendMessage", {"QueueUrl": url, "MessageBody": "a"}, **{OWN: "t"})
    others: list[dict[str, Any]] = [
        {"MessageBody": "b"},
        {"MessageBody": "a", "DelaySeconds": 1},
        {"MessageBody": "a", "MessageGroupId": "g"},
        {"MessageBody": "a", "MessageAttributes": {"a": {"DataType": "String", "StringValue": "v"}}},
        {"MessageBody": "a", "MessageSystemAttributes": {"AWSTraceHeader": {"DataType": "String", "StringValue": "v"}}},
    ]
    for other in others:
        refused = await call(service, "SendMessage", {"QueueUrl": url, **other}, **{OWN: "t"})
        assert (refused.status, refused.code) == (400, "IdempotentParameterMismatch"), other
        assert "send this one with a new token" in refused.message
    refused = await form(service, {"Action": "SendMessage", "QueueUrl": url, "MessageBody": "b"}, "t")
    assert (refused.status, refused.code) == (400, "IdempotentParameterMismatch")
    batch = {"QueueUrl": url, "Entries": [{"Id": "1", "MessageBody": "a"}]}
    assert (await call(service, "SendMessageBatch", batch, **{OWN: "t"})).code == "IdempotentParameterMismatch"
    assert stored(service) == 1


async def test_what_says_the_same_is_the_same(service: FrontendService) -> None:
    """The order of members, the form of the queue's URL and the protocol do not matter."""
    url = await service.make_queue("q")
    first = await call(
        service, "SendMessage", {"QueueUrl": url, "MessageBody": "a", "DelaySeconds": 3}, **{OWN: "t"}
    )  # fmt: skip
    again = await call(service, "SendMessage", {"DelaySeconds": 3, "MessageBody": "a", "QueueUrl": "q"}, **{OWN: "t"})
    assert first.content == again.content
    parameters = {"Action": "SendMessage", "QueueUrl": url, "MessageBody": "a", "DelaySeconds": "3"}
    other = await form(service, parameters, "t")
    assert other.text("SendMessageResult/MessageId") == first.json["MessageId"]
    assert stored(service) == 1


@pytest.mark.parametrize("accept", ["*/*", "application/json"])
async def test_in_the_query_protocol_the_repeat_has_the_same_request_id_too(
    service: FrontendService, accept: str
) -> None:
    url = await service.make_queue("q")
    parameters = {"Action": "SendMessage", "QueueUrl": url, "MessageBody": "a"}
    first = await form(service, parameters, UUID, accept)
    again = await form(service, parameters, UUID, accept)
    assert first.status == 200
    assert first.content == again.content
    assert first.headers["x-amzn-requestid"] == again.headers["x-amzn-requestid"]
    assert first.headers["x-amzn-requestid"].encode() in first.content
    other = await form(service, parameters, "another", accept)
    assert other.headers["x-amzn-requestid"] != first.headers["x-amzn-requestid"]


async def test_a_batch_keeps_the_answer_of_each_entry(service: FrontendService) -> None:
    url = await service.make_queue("q", MaximumMessageSize="2000")
    entries = [{"Id": str(at), "MessageBody": "x" * (3000 if at == 1 else 10 + at)} for at in range(4)]
    first = await call(service, "SendMessageBatch", {"QueueUrl": url, "Entries": entries}, **{SDK: UUID})
    assert [entry["Id"] for entry in first.json["Successful"]] == ["0", "2", "3"]
    assert [entry["Id"] for entry in first.json["Failed"]] == ["1"]
    again = await call(service, "SendMessageBatch", {"QueueUrl": url, "Entries": entries}, **{SDK: UUID})
    assert again.content == first.content
    assert stored(service) == 3
    for other in (entries[:3], entries[::-1], [*entries, {"Id": "5", "MessageBody": "x"}]):
        refused = await call(service, "SendMessageBatch", {"QueueUrl": url, "Entries": other}, **{SDK: UUID})
        assert refused.code == "IdempotentParameterMismatch"


async def test_of_a_batch_that_was_cut_in_half_the_rest_is_stored(service: FrontendService) -> None:
    url = await service.make_queue("q")
    batch = {"QueueUrl": url, "Entries": [{"Id": str(at), "MessageBody": f"m{at}"} for at in range(4)]}
    first = await call(service, "SendMessageBatch", batch, **{SDK: UUID})
    [partition] = service.backend.partitions.values()
    for token in list(partition.retries)[2:]:
        _, _, lost = partition.retries.pop(token)
        del partition.messages[lost.message_id]
    again = await call(service, "SendMessageBatch", batch, **{SDK: UUID})
    assert again.json["Successful"][:2] == first.json["Successful"][:2]
    assert len(again.json["Successful"]) == 4
    assert stored(service) == 4


async def test_a_fifo_repeat_has_the_same_sequence_number(service: FrontendService) -> None:
    url = await service.make_queue("q.fifo", FifoQueue="true")
    members = {"QueueUrl": url, "MessageBody": "a", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    first = await call(service, "SendMessage", members, **{OWN: "t"})
    [partition] = service.backend.partitions.values()
    partition.tokens.clear()
    assert (await call(service, "SendMessage", members, **{OWN: "t"})).content == first.content
    refused = await call(service, "SendMessage", {**members, "MessageDeduplicationId": "e"}, **{OWN: "t"})
    assert refused.code == "IdempotentParameterMismatch"


async def test_other_actions_have_no_tokens(service: FrontendService) -> None:
    url = await service.make_queue("q")
    await call(service, "SendMessage", {"QueueUrl": url, "MessageBody": "a"}, **{OWN: "t"})
    bodies = [
        (await call(service, "ReceiveMessage", {"QueueUrl": url}, **{OWN: "bad token", SDK: UUID})).json
        for _ in range(2)
    ]
    assert len(bodies[0]["Messages"]) == 1
    assert not bodies[1]


# --- concurrent repeats ---


def waiting(service: FrontendService) -> int:
    """Number of calls that wait for an earlier call with the same token."""
    ends = service.app.sqs.context.retries._under_way.values()
    return sum(len(end._callbacks or ()) for end in ends if end is not None)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0)


async def test_a_twin_waits_for_the_first_and_gets_its_answer(service: FrontendService) -> None:
    url = await service.make_queue("q")
    members = {"QueueUrl": url, "MessageBody": "a"}
    await call(service, "SendMessage", members)
    backend = service.backend
    backend.sends = 0
    backend.sending.clear()
    twins = [asyncio.create_task(call(service, "SendMessage", members, **{SDK: UUID})) for _ in range(4)]
    other = asyncio.create_task(call(service, "SendMessage", members, **{SDK: "other"}))
    await until(lambda: backend.sends == 2 and waiting(service) == 3)
    twins[2].cancel()
    backend.sending.set()
    answers = [await twins[at] for at in (0, 1, 3)]
    assert waiting(service) == 0
    assert len({answer.content for answer in answers}) == 1
    assert (await other).content != answers[0].content
    assert stored(service) == 3
    for older in ("three", "four"):
        await call(service, "SendMessage", members, **{SDK: "one", OLDER_SDK: older})
    assert stored(service) == 4


async def test_when_the_first_fails_its_twin_tries_itself(service: FrontendService) -> None:
    url = await service.make_queue("q")
    members = {"QueueUrl": url, "MessageBody": "a"}
    await call(service, "SendMessage", members)
    backend = service.backend
    backend.sends = 0
    backend.sending.clear()
    first = asyncio.create_task(call(service, "SendMessage", members, **{SDK: UUID}))
    await until(lambda: backend.sends == 1)
    twin = asyncio.create_task(call(service, "SendMessage", members, **{SDK: UUID}))
    await until(lambda: waiting(service) == 1)
    backend.lost_answers.append(Unavailable("the disk is away"))
    backend.sending.set()
    assert (await first).status == 503
    assert (await twin).status == 200
    assert backend.sends == 2
    assert stored(service) == 2


async def test_a_twin_with_another_message_waits_and_is_refused(service: FrontendService) -> None:
    url = await service.make_queue("q")
    backend = service.backend
    await call(service, "SendMessage", {"QueueUrl": url, "MessageBody": "a"})
    backend.sends = 0
    backend.sending.clear()
    first = asyncio.create_task(call(service, "SendMessage", {"QueueUrl": url, "MessageBody": "a"}, **{SDK: UUID}))
    await until(lambda: backend.sends == 1)
    twin = asyncio.create_task(call(service, "SendMessage", {"QueueUrl": url, "MessageBody": "b"}, **{SDK: UUID}))
    await until(lambda: waiting(service) == 1)
    backend.sending.set()
    assert (await first).status == 200
    assert (await twin).code == "IdempotentParameterMismatch"


# --- settings, and scope of tokens ---


async def test_switched_off(tmp_path: Path) -> None:
    async with running(tmp_path, FrontendSettings(send_retry_window_seconds=0)) as service:
        members = {"QueueUrl": await service.make_queue("q"), "MessageBody": "a"}
        for _ in range(2):
            assert (await call(service, "SendMessage", members, **{OWN: "t", SDK: UUID})).status == 200
        assert stored(service) == 2
        assert all(
            message.new.retry is None for message in next(iter(service.backend.partitions.values())).messages.values()
        )


async def test_the_window_reaches_the_backend(tmp_path: Path) -> None:
    async with running(tmp_path, FrontendSettings(send_retry_window_seconds=7)) as service:
        members = {"QueueUrl": await service.make_queue("q"), "MessageBody": "a"}
        await call(service, "SendMessage", members, **{OWN: "t"})
        [partition] = service.backend.partitions.values()
        assert partition.settings.retry_window_seconds == 7


async def test_tokens_are_the_callers_and_the_queues_own(service: FrontendService) -> None:
    for name in ("q", "r"):
        await service.make_queue(name)
    queues = service.app.sqs.context.queues
    metadata = service.app.services.metadata
    one, other = [queues.view(await metadata.get(KEY.account, name)) for name in ("q", "r")]
    retries = Retries(queues, service.backend, 60)
    members = {"MessageBody": "secret"}

    def of(caller: Principal, view: Any, token: bytes = b"t") -> Retry:
        retry = retries.of({OWN.encode(): token}, caller, view, members)
        assert retry is not None
        return retry

    me, neighbour = KEY.principal, msgspec.structs.replace(KEY.principal, account="000000000002")
    colleague = msgspec.structs.replace(me, principal_id="AIDACOLLEAGUE")
    mine = of(me, one)
    assert mine == of(me, one) == of(colleague, one)
    strangers = [
        of(neighbour, one),
        of(me, other),
        of(me, one, b"u"),
        of(anonymous("192.0.2.1"), one),
        of(anonymous("192.0.2.2"), one),
    ]
    assert len({retry.base for retry in (mine, *strangers)}) == 6
    assert len({retry.digest for retry in (mine, *strangers)}) == 6, "equal messages cannot be told in a journal"
    assert len({mine.of(place) for place in range(10)}) == 10
    assert all(len(mine.of(place)) == 32 for place in range(10))
    with pytest.raises(SqsError):
        of(me, one, b"not a token")

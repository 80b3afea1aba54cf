"""Safe retries at the frontend: tokens, digests, concurrent repeats.  Crash safety is tested with the engine."""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import orjson
import pytest
from msgspec.structs import replace

from auth.principal import Principal, anonymous
from backend.api import Send, Unavailable
from frontend.request.request import Retry
from frontend.request.retries import Retries
from frontend.sqs.protocol.errors import SqsError
from tests.frontend.service import KEY, FrontendAnswer, FrontendService
from tests.servers.waiting import until

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
    counters = partition.fold.counters()
    return counters.visible + counters.in_flight + counters.delayed


async def test_a_batch_that_was_cut_in_half_is_completed_by_its_repeat(service: FrontendService) -> None:
    url = await service.make_queue("q")
    batch = {"QueueUrl": url, "Entries": [{"Id": str(at), "MessageBody": f"m{at}"} for at in range(4)]}
    backend = service.backend

    async def cut_in_half(command: Send) -> None:
        await backend.inside.call(replace(command, messages=command.messages[:2]))
        raise Unavailable("the disk is away")

    backend.replaced[Send] = cut_in_half
    assert (await call(service, "SendMessageBatch", batch, **{SDK: UUID})).status == 503
    del backend.replaced[Send]
    before = [message.message_id for message in await backend.stored()]
    assert len(before) == 2
    again = await call(service, "SendMessageBatch", batch, **{SDK: UUID})
    assert [entry["MessageId"] for entry in again.json["Successful"]][:2] == before
    assert len(again.json["Successful"]) == stored(service) == 4


# --- concurrent repeats ---


def waiting(service: FrontendService) -> int:
    """Number of calls that wait for an earlier call with the same token."""
    ends = service.app.context.retries._under_way.values()
    return sum(len(end._callbacks or ()) for end in ends if end is not None)


async def first_and_twin(
    service: FrontendService, members: Mapping[str, Any], others: Mapping[str, Any]
) -> list[asyncio.Task[FrontendAnswer]]:
    """Begin two sends with one token, the second of which waits for the first; sends are held."""
    service.backend.sends = 0
    service.backend.sending.clear()
    first = asyncio.create_task(call(service, "SendMessage", members, **{SDK: UUID}))
    await until(lambda: service.backend.sends == 1)
    twin = asyncio.create_task(call(service, "SendMessage", others, **{SDK: UUID}))
    await until(lambda: waiting(service) == 1)
    return [first, twin]


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


async def test_a_twin_tries_itself_after_the_first_failed(service: FrontendService) -> None:
    url = await service.make_queue("q")
    members = {"QueueUrl": url, "MessageBody": "a"}
    await call(service, "SendMessage", members)
    backend = service.backend
    first, twin = await first_and_twin(service, members, members)
    backend.lost_answers.append(Unavailable("the disk is away"))
    backend.sending.set()
    assert (await first).status == 503
    assert (await twin).status == 200
    assert backend.sends == 2
    assert stored(service) == 2


async def test_a_twin_with_another_message_waits_and_is_refused(service: FrontendService) -> None:
    members = {"QueueUrl": await service.make_queue("q"), "MessageBody": "a"}
    await call(service, "SendMessage", members)
    first, twin = await first_and_twin(service, members, members | {"MessageBody": "b"})
    service.backend.sending.set()
    assert (await first).status == 200
    assert (await twin).code == "IdempotentParameterMismatch"


# --- settings, and scope of tokens ---


async def test_tokens_are_the_callers_and_the_queues_own(service: FrontendService) -> None:
    for name in ("q", "r"):
        await service.make_queue(name)
    queues = service.app.context.queues
    metadata = service.app.services.metadata
    one, other = [queues.view(await metadata.get(KEY.account, name)) for name in ("q", "r")]
    retries = Retries(queues, 60)
    members = {"MessageBody": "secret"}

    def of(caller: Principal, view: Any, token: bytes = b"t") -> Retry:
        retry = retries.of({OWN.encode(): token}, caller, view, members)
        assert retry is not None
        return retry

    me, neighbour = KEY.principal, replace(KEY.principal, account="000000000002")
    colleague = replace(me, principal_id="AIDACOLLEAGUE")
    own = of(me, one)
    assert own == of(me, one) == of(colleague, one)
    strangers = [
        of(neighbour, one),
        of(me, other),
        of(me, one, b"u"),
        of(anonymous("192.0.2.1"), one),
        of(anonymous("192.0.2.2"), one),
    ]
    assert len({retry.base for retry in (own, *strangers)}) == 6
    assert len({retry.digest for retry in (own, *strangers)}) == 6, "equal messages cannot be told in a journal"
    assert len({own.of(place) for place in range(10)}) == 10
    assert all(len(own.of(place)) == 32 for place in range(10))
    with pytest.raises(SqsError):
        of(me, one, b"not a token")

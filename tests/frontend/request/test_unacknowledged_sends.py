"""Sends to queues of HoldfastAckLevel none: answered at once, within the tenant's limits, and bounded."""

import asyncio
from pathlib import Path
from uuid import UUID

import pytest

from backend.api import Configure, QueueFull, Unavailable
from frontend.request import unacknowledged_sends
from frontend.request.unacknowledged_sends import UnacknowledgedSends
from tests.frontend.request.test_retries import OWN, call, form, stored
from tests.frontend.service import FrontendService, running
from tests.servers.waiting import until


def of(service: FrontendService) -> UnacknowledgedSends:
    return service.app.context.unacknowledged


async def opened(service: FrontendService) -> str:
    """A queue at level none with a first message, so that the backend knows it."""
    url = await service.make_queue("q", HoldfastAckLevel="none")
    await call(service, "SendMessage", {"QueueUrl": url, "MessageBody": "opens the partition"})
    await of(service).drain(10)
    return url


def hold(service: FrontendService) -> None:
    """Let sends take effect, and their answers wait."""
    service.backend.sending.clear()


async def test_the_answer_does_not_wait(service: FrontendService) -> None:
    url = await opened(service)
    hold(service)
    one = await call(service, "SendMessage", {"QueueUrl": url, "MessageBody": "a"})
    entries = [{"Id": name, "MessageBody": name} for name in "bc"]
    batch = await call(service, "SendMessageBatch", {"QueueUrl": url, "Entries": entries})
    ids = [one.json["MessageId"], *(entry["MessageId"] for entry in batch.json["Successful"])]
    assert [entry["Id"] for entry in batch.json["Successful"]] == ["b", "c"]
    assert all(str(UUID(text, version=4)) == text for text in ids)
    assert [one.message_id for one in await service.backend.stored()][1:] == ids
    service.backend.sending.set()
    await of(service).drain(10)
    assert of(service).lost == 0


@pytest.mark.parametrize("level", ["quorum", "leader", "all"])
async def test_at_all_other_levels_it_does(service: FrontendService, level: str) -> None:
    url = await service.make_queue("q", HoldfastAckLevel=level)
    hold(service)
    send = asyncio.create_task(call(service, "SendMessage", {"QueueUrl": url, "MessageBody": "a"}))
    await until(lambda: service.backend.sends > 0)
    await asyncio.sleep(0)
    assert not send.done()
    service.backend.sending.set()
    assert (await send).status == 200
    assert [one.settings.ack_level.name for one in service.backend.calls_of(Configure)] == [level.upper()]


async def test_a_repeat_has_the_first_answer(service: FrontendService) -> None:
    url = await opened(service)
    answers = []
    for wait in (True, False, True):
        if not wait:
            hold(service)
        answers.append(await call(service, "SendMessage", {"QueueUrl": url, "MessageBody": "a"}, **{OWN: "t"}))
        service.backend.sending.set()
        await of(service).drain(10)
    assert len({answer.content for answer in answers}) == 1
    other = await call(service, "SendMessage", {"QueueUrl": url, "MessageBody": "a"}, **{OWN: "u"})
    assert other.json["MessageId"] != answers[0].json["MessageId"]
    assert stored(service) == 3
    entries = {
        f"SendMessageBatchRequestEntry.{place}.{name}": f"{name}{place}"
        for place in (1, 2)
        for name in ("Id", "MessageBody")
    }
    batches = [await form(service, {"Action": "SendMessageBatch", "QueueUrl": url, **entries}, "v") for _ in range(2)]
    assert batches[0].content == batches[1].content
    assert stored(service) == 5


async def test_immediate_refusals_are_reported(service: FrontendService) -> None:
    url = await opened(service)
    await call(service, "SendMessage", {"QueueUrl": url, "MessageBody": "a"}, **{OWN: "t"})
    other = await call(service, "SendMessage", {"QueueUrl": url, "MessageBody": "b"}, **{OWN: "t"})
    assert other.code == "IdempotentParameterMismatch"
    service.backend.fail_with = QueueFull("The queue is full.")
    full = await call(service, "SendMessage", {"QueueUrl": url, "MessageBody": "c"})
    assert full.code == "RequestThrottled"
    assert of(service).lost == 0


async def test_later_losses_are_counted_and_logged(service: FrontendService, caplog: pytest.LogCaptureFixture) -> None:
    url = await opened(service)
    hold(service)
    for _ in range(3):
        service.backend.lost_answers.append(Unavailable("the journal cannot be written"))
        entries = [{"Id": name, "MessageBody": name} for name in "ab"]
        answer = await call(service, "SendMessageBatch", {"QueueUrl": url, "Entries": entries})
        assert len(answer.json["Successful"]) == 2
    service.backend.sending.set()
    await of(service).drain(10)
    assert of(service).lost == 6
    messages = [one.getMessage() for one in caplog.records if one.name == "frontend.request.unacknowledged_sends"]
    assert messages == [
        "2 messages sent to queues of HoldfastAckLevel none were lost, or possibly lost, since the start; "
        "the last: the journal cannot be written"
    ], "once a minute"


async def test_work_in_progress_is_bounded(service: FrontendService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unacknowledged_sends, "CALLS_MAX", 3)
    url = await opened(service)
    hold(service)
    for _ in range(3):
        await call(service, "SendMessage", {"QueueUrl": url, "MessageBody": "a"})
    sends = service.backend.sends
    waiting = asyncio.create_task(call(service, "SendMessage", {"QueueUrl": url, "MessageBody": "a"}))
    await until(lambda: service.backend.sends > sends)
    await asyncio.sleep(0)
    assert not waiting.done()
    service.backend.sending.set()
    assert (await waiting).status == 200
    monkeypatch.setattr(unacknowledged_sends, "CALLS_MAX", 1000)
    monkeypatch.setattr(unacknowledged_sends, "BYTES_MAX", 100_000)
    hold(service)
    await call(service, "SendMessage", {"QueueUrl": url, "MessageBody": "a" * 90_000})
    waiting = asyncio.create_task(call(service, "SendMessage", {"QueueUrl": url, "MessageBody": "a" * 90_000}))
    await until(lambda: service.backend.sends >= sends + 3)
    await asyncio.sleep(0)
    assert not waiting.done()
    service.backend.sending.set()
    assert (await waiting).status == 200


async def test_a_stop_waits_for_it_and_not_for_ever(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        url = await opened(service)
        hold(service)
        await call(service, "SendMessage", {"QueueUrl": url, "MessageBody": "a"})
        settled = asyncio.create_task(service.app.drain())
        await asyncio.sleep(0)
        assert not settled.done()
        service.backend.sending.set()
        await settled
        hold(service)
        await call(service, "SendMessage", {"QueueUrl": url, "MessageBody": "a"})
        await of(service).drain(0.01)
        assert of(service).lost == 1

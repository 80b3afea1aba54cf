"""Sizes of metered calls, and calls that cannot be metered; tests/frontend/cases/metering.yaml has their counts."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from billing.metering.buffers import Buffer, BufferFull
from billing.metering.meter import Meter
from tests.frontend.metered import Metered
from tests.frontend.service import running


@pytest_asyncio.fixture
async def metered(tmp_path: Path) -> AsyncIterator[Metered]:
    folder = tmp_path / "usage"
    meter = Meter.start(folder, "host-1")
    async with running(tmp_path, meter=meter) as service:
        yield Metered(service, meter, folder)
    await meter.close()


async def test_bytes_are_those_of_the_bodies_of_requests_and_answers(metered: Metered) -> None:
    service = metered.service
    queue = {"QueueUrl": await service.make_queue("q")}
    await metered.all()
    answer = await service.json("SendMessage", body=(body := msgspec.json.encode(queue | {"MessageBody": "x" * 100})))
    wrong = await service.json("SendMessage", body=b"{}")
    ((_, counts), (_, others)) = sorted((await metered.all()).items(), key=lambda item: item[0].queue, reverse=True)
    assert (counts["bytes_in"], counts["bytes_out"]) == (len(body), len(answer.content))
    assert (others["bytes_in"], others["bytes_out"]) == (2, len(wrong.content))
    rest = await service.signed("POST", "/v1/queues/q/messages", b"hello", {"Content-Type": "text/plain"})
    ((_, counts),) = (await metered.all()).items()
    assert (counts["bytes_in"], counts["bytes_out"]) == (len(b"hello"), len(rest.content))


async def test_calls_that_cannot_be_counted_are_not_answered_with_success(
    metered: Metered, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = metered.service
    await service.make_queue("q")
    await metered.all()

    def full(*_: object) -> int:
        raise BufferFull

    with monkeypatch.context() as patched:
        patched.setattr(Buffer, "add", full)
        answer = await service.json("SendMessage", {"QueueUrl": service.url("q"), "MessageBody": "x"})
        assert (answer.status, answer.code) == (503, "ServiceUnavailable")
        over_rest = await service.signed("POST", "/v1/queues/q/messages", b"x", {"Content-Type": "text/plain"})
        assert (over_rest.status, over_rest.json["code"]) == (503, "ServiceUnavailable")
    assert (await service.json("SendMessage", {"QueueUrl": service.url("q"), "MessageBody": "x"})).status == 200
    assert [counts["calls"] for counts in (await metered.counted()).values()] == [1]

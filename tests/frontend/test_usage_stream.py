"""Publication of usage records to a topic: at least once, whatever fails in between, and without feeding back."""

import json
import logging
import os
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from backend.api import Unavailable
from backend.stream_commands import AppendBatch
from billing.lake.outbox import Outbox
from billing.metering.buffers import finished
from billing.metering.json_records import encode_calls, encode_storage
from billing.metering.meter import Meter
from billing.metering.storage import StorageKey, StorageRecord
from billing.metering.usage import COUNTS, UsageKey, UsageRecord
from frontend import usage_stream as module
from frontend.streams.partitioner import partition_of_key
from frontend.usage_stream import PUBLISHED, UsageStream
from tests.frontend.service import KEY, FrontendService, running
from tests.servers.waiting import until

TOPIC = "usage"
MINUTE = 1_800_000_000 // 60 * 60
OTHER = "000000000002"


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    return Outbox(tmp_path / "outbox", 1 << 20)


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[FrontendService]:
    async with running(tmp_path) as made:
        yield made


def publisher(service: FrontendService, outbox: Outbox, account: str = KEY.account, partitions: int = 1) -> UsageStream:
    return UsageStream(service.app.services, outbox, account, TOPIC, partitions)


def calls(
    numbers: Iterable[int], account: str = KEY.account, queue: str = "q", action: str = "SendMessage"
) -> list[bytes]:
    """Return records of calls with these sequence numbers."""
    key = UsageKey(account, queue, 7, "stream" if action == "Fetch" else "standard", action)
    return [
        encode_calls(UsageRecord("host", "00" * 8, number, 0, MINUTE, key, (1,) * len(COUNTS))) for number in numbers
    ]


def storage(queue: str, account: str = KEY.account, partition: int = 1) -> bytes:
    key = StorageKey(account, queue, 7, "stream")
    return encode_storage(StorageRecord("host", partition, MINUTE, 1, key, 5, 1, 1, 0, 0, 0, 1, 1))


async def read(service: FrontendService, limit: int = 1000) -> list[dict[str, Any]]:
    """Return all records of the topic."""
    answer = await service.rest("GET", f"/streams/{TOPIC}/records?limit={limit}")
    assert answer.status == 200, answer.content
    found: list[dict[str, Any]] = answer.json["records"]
    return found


async def sequences(service: FrontendService) -> list[int]:
    return [json.loads(one["value"])["sequence"] for one in await read(service)]


async def test_records_are_published_with_their_accounts_as_keys_to_a_topic_that_is_created(
    service: FrontendService, outbox: Outbox
) -> None:
    values = calls([1, 2, 3]) + calls([4, 5], OTHER) + [storage("kept")]
    outbox.add(MINUTE, values)
    before = PUBLISHED.counts[0]
    assert await publisher(service, outbox, partitions=3).publish()
    assert outbox.backlog().files == 0
    found = await read(service)
    assert sorted(one["value"].encode() for one in found) == sorted(values)
    for one in found:
        assert one["key"] == json.loads(one["value"])["account"]
        assert one["partition"] == partition_of_key(one["key"].encode(), 3)
        assert one["timestamp"] == service.clock()
    assert PUBLISHED.counts[0] - before == len(values)


async def test_killed_between_publication_and_removal_records_are_repeated_and_none_is_lost(
    service: FrontendService, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill(*_: Any, **__: Any) -> None:
        raise Killed

    outbox.add(MINUTE, calls([1, 2]))
    outbox.add(MINUTE + 60, calls([3]))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", kill)
        with pytest.raises(Killed):
            await publisher(service, outbox).publish()
    assert await sequences(service) == [1, 2]
    assert await publisher(service, outbox).publish()
    assert await sequences(service) == [1, 2, 1, 2, 3]


async def test_after_a_failure_only_the_records_that_are_missing_are_appended(
    service: FrontendService, outbox: Outbox
) -> None:
    outbox.add(MINUTE, calls([1]) + calls([2], OTHER))
    appended: list[Any] = []

    async def second_fails(command: AppendBatch) -> Any:
        if len(appended) == 1:
            appended.append(None)
            raise Unavailable("the node has ended")
        answer = await service.backend.inside.call(command)
        appended.append(answer)
        return answer

    numbers = partition_of_key(KEY.account.encode(), 7), partition_of_key(OTHER.encode(), 7)
    assert numbers[0] != numbers[1]
    stream = publisher(service, outbox, partitions=7)
    service.backend.replaced[AppendBatch] = second_fails
    assert not await stream.publish()
    assert outbox.backlog().records == 2
    assert await stream.publish()
    assert sorted(await sequences(service)) == [1, 2]
    assert stream._appended == {}


async def test_a_partition_that_cannot_be_written_delays_no_other(service: FrontendService, outbox: Outbox) -> None:
    outbox.add(MINUTE, calls([1]) + calls([2], OTHER))
    stream = publisher(service, outbox, partitions=7)
    assert await stream.publish()
    bad = partition_of_key(KEY.account.encode(), 7)
    topic = await service.app.services.streams.get(KEY.account, "usage")  # type: ignore[union-attr]

    async def one_fails(command: AppendBatch) -> Any:
        if command.target.partition == topic.partition_ids[bad]:
            raise Unavailable("its node has ended")
        return await service.backend.inside.call(command)

    outbox.add(MINUTE + 60, calls([3]) + calls([4], OTHER))
    outbox.add(MINUTE + 120, calls([5]) + calls([6], OTHER))
    service.backend.replaced[AppendBatch] = one_fails
    for _ in range(3):
        assert not await stream.publish()
    assert sorted(await sequences(service)) == [1, 2, 4, 6]
    del service.backend.replaced[AppendBatch]
    assert await stream.publish()
    assert sorted(await sequences(service)) == [1, 2, 3, 4, 5, 6]


async def test_what_cannot_be_published_waits_and_is_logged_once(
    service: FrontendService, outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    outbox.add(MINUTE, calls([1]))
    stream = publisher(service, outbox)
    service.backend.fail_with = Unavailable("no node can be reached")
    assert not await stream.publish()
    outbox.add(MINUTE + 60, calls([2]))
    assert not await stream.publish()
    assert outbox.backlog().records == 2
    service.backend.fail_with = None
    assert await stream.publish()
    assert await sequences(service) == [1, 2]
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "topic 'usage' of account 123456789012 cannot be written: no node can be reached" in caplog.messages[0]


async def test_it_publishes_by_itself_again_after_a_failure_and_when_it_is_woken(
    service: FrontendService, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    outbox.add(MINUTE, calls([1]))
    stream = publisher(service, outbox)
    service.backend.fail_with = Unavailable("no node can be reached")
    stream.start()
    await until(lambda: len(service.backend.commands) > 2)
    service.backend.fail_with = None
    await until(lambda: outbox.backlog().files == 0)
    outbox.add(MINUTE, calls([2]))
    stream.wake()
    await until(lambda: outbox.backlog().files == 0)
    await stream.close()
    assert await sequences(service) == [1, 2]


async def test_storage_of_the_topic_itself_is_left_out_and_nothing_is_counted(tmp_path: Path, outbox: Outbox) -> None:
    spool = tmp_path / "spool"
    meter = Meter.start(spool, "host")
    async with running(tmp_path, meter=meter) as service:
        kept = [storage(TOPIC, OTHER), storage("other"), *calls([1], queue=TOPIC, action="Fetch")]
        outbox.add(MINUTE, [storage(TOPIC), *kept])
        assert await publisher(service, outbox).publish()
        assert sorted(one["value"].encode() for one in await read(service)) == sorted(kept)
        await meter.close()
    (buffer,) = finished(spool)
    assert {record.key.action for record in buffer.records()} == {"Fetch"}, "the test's own read alone"
    buffer.close()


async def test_an_outbox_of_the_topics_own_storage_alone_creates_nothing(
    service: FrontendService, outbox: Outbox
) -> None:
    outbox.add(MINUTE, [storage(TOPIC)])
    assert await publisher(service, outbox).publish()
    assert outbox.backlog().files == 0
    assert (await service.rest("GET", f"/streams/{TOPIC}")).status == 404


async def test_an_account_that_does_not_exist_is_named(
    service: FrontendService, outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    outbox.add(MINUTE, calls([1]))
    assert not await publisher(service, outbox, OTHER).publish()
    assert "set usage_stream_account to an account that exists" in caplog.text
    assert outbox.backlog().records == 1


async def test_records_wait_while_the_topic_takes_only_smaller_ones(
    service: FrontendService, outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    made = await service.rest("POST", "/streams", {"name": TOPIC, "settings": {"max.message.bytes": "100"}})
    assert made.status == 201, made.content
    outbox.add(MINUTE, calls([1]))
    assert not await publisher(service, outbox).publish()
    assert "the topic accepts 100 (max.message.bytes)" in caplog.text
    assert outbox.backlog().records == 1


async def test_more_than_a_batch_is_several_batches_in_order(service: FrontendService, outbox: Outbox) -> None:
    made = await service.rest("POST", "/streams", {"name": TOPIC, "settings": {"max.message.bytes": "2000"}})
    assert made.status == 201, made.content
    outbox.add(MINUTE, calls(range(50)))
    assert await publisher(service, outbox).publish()
    assert await sequences(service) == list(range(50))
    assert len(service.backend.calls_of(AppendBatch)) > 5


async def test_a_deleted_topic_is_created_again(service: FrontendService, outbox: Outbox) -> None:
    stream = publisher(service, outbox)
    outbox.add(MINUTE, calls([1]))
    assert await stream.publish()
    assert (await service.rest("DELETE", f"/streams/{TOPIC}")).status == 204
    outbox.add(MINUTE, calls([2]))
    assert await stream.publish()
    assert await sequences(service) == [2]


async def test_a_value_that_cannot_be_read_is_skipped_and_logged(
    service: FrontendService, outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    outbox.add(MINUTE, [b'{"table":', *calls([1])])
    assert await publisher(service, outbox).publish()
    assert await sequences(service) == [1]
    assert "cannot be read, and is not published" in caplog.text


async def test_a_file_that_another_process_publishes_is_left_to_it(service: FrontendService, outbox: Outbox) -> None:
    outbox.add(MINUTE, calls([1]))
    outbox.add(MINUTE + 60, calls([2]))
    _, file = next(outbox.files())
    assert await publisher(service, outbox).publish()
    assert await sequences(service) == [2]
    os.close(file)


async def test_an_outbox_that_cannot_be_read_is_logged(
    service: FrontendService, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = Outbox(tmp_path / "outbox", 1 << 20)
    outbox.add(MINUTE, calls([1]))

    def fails(_: Any) -> Any:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(module, "_read", fails)
    with caplog.at_level(logging.ERROR):
        assert not await publisher(service, outbox).publish()
    assert "Input/output error" in caplog.text


async def test_an_unexpected_error_is_logged_and_does_not_end_the_publication(
    service: FrontendService, outbox: Outbox, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    outbox.add(MINUTE, calls([1]))
    service.backend.fail_with = ZeroDivisionError("a bug")
    stream = publisher(service, outbox)
    stream.start()
    await until(lambda: "usage records cannot be published" in caplog.text)
    service.backend.fail_with = None
    await until(lambda: outbox.backlog().files == 0)
    await stream.close()

"""Counters of a process, minute by minute."""

import asyncio
import errno
from pathlib import Path

import pytest

from billing.metering.buffers import Buffer, finished
from billing.metering.meter import SLOTS_MIN, Meter, UsageNotCounted
from billing.metering.usage import CALLS, UsageKey, UsageRecord, chunks_of
from tests.servers.waiting import until

SEND = UsageKey("000000000000", "orders", 7, "standard", "SendMessage")


class _Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_050.0

    def __call__(self) -> float:
        return self.now


def count(meter: Meter, name: object, key: UsageKey = SEND) -> None:
    cell = meter.cells_of.get(name)
    if cell is None:
        cell = meter.open(name, key)
    meter.counters[cell + CALLS] += 1


def records(folder: Path) -> list[UsageRecord]:
    found = []
    for buffer in finished(folder):
        found += buffer.records()
        buffer.close()
    return found


async def test_each_minute_has_its_buffer(tmp_path: Path) -> None:
    clock = _Clock()
    meter = Meter.start(tmp_path / "usage", "n", clock)
    for minute in range(3):
        for _ in range(minute + 1):
            count(meter, "a")
        clock.now += 60
        meter.switch()
    await meter.close()
    found = records(tmp_path)
    assert [(record.minute_s, record.counts[CALLS]) for record in found] == [
        (1_700_000_040, 1),
        (1_700_000_100, 2),
        (1_700_000_160, 3),
    ]
    assert len({(record.node, record.boot, record.sequence, record.slot) for record in found}) == 3


async def test_a_minute_without_calls_makes_no_file(tmp_path: Path) -> None:
    clock = _Clock()
    meter = Meter.start(tmp_path, "n", clock)
    for _ in range(5):
        clock.now += 60
        meter.switch()
    count(meter, "a")
    await meter.close()
    (record,) = records(tmp_path)
    assert record.minute_s == 1_700_000_340
    assert record.sequence == 1


async def test_two_starts_have_ids_of_their_own(tmp_path: Path) -> None:
    for _ in range(2):
        meter = Meter.start(tmp_path, "n", _Clock())
        count(meter, "a")
        await meter.close()
    first, second = records(tmp_path)
    assert (first.sequence, first.slot) == (second.sequence, second.slot)
    assert first.boot != second.boot


async def test_many_keys_go_to_further_buffers_of_the_minute(tmp_path: Path) -> None:
    meter = Meter.start(tmp_path, "n", _Clock())
    for number in range(3 * SLOTS_MIN):
        count(meter, number, UsageKey("000000000000", f"q{number}", number, "fifo", "SendMessage"))
        count(meter, number)
    await meter.close()
    found = records(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2  # the second one has room for twice as many
    assert sorted(record.key.queue_id for record in found) == list(range(3 * SLOTS_MIN))
    assert {record.counts[CALLS] for record in found} == {2}
    assert {record.minute_s for record in found} == {1_700_000_040}


@pytest.mark.parametrize("letter", ["x", "ü", "漢", "𝒳"])
async def test_queues_with_as_many_and_as_long_tags_as_there_may_be_are_counted_in_few_buffers(
    tmp_path: Path, letter: str
) -> None:
    tags = tuple((f"{number:02}" + 126 * letter, 256 * letter) for number in range(50))
    actions = ("SendMessage", "ReceiveMessage", "DeleteMessage", "ChangeMessageVisibility", "GetQueueAttributes")
    clock = _Clock()
    meter = Meter.start(tmp_path, "n", clock)
    for minute in range(2):
        for _ in range(20):
            for action in actions:
                count(meter, action, UsageKey("0" * 12, "q" * 80, 2**63 - 1, "standard", action, tags))
        if not minute:
            clock.now += 60
            meter.switch()
    await meter.close()
    found = records(tmp_path)
    assert sum(record.counts[CALLS] for record in found) == 2 * 20 * len(actions)
    assert {record.key.tags for record in found} == {tags}
    assert len(list(tmp_path.iterdir())) <= 4, "each has room for twice as much as the one before"
    assert sum(record.minute_s > 1_700_000_040 for record in found) == len(actions), "one is enough for the next minute"


async def test_without_room_for_another_buffer_the_old_one_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = _Clock()
    meter = Meter.start(tmp_path, "n", clock)
    count(meter, "a")

    def full(*_: object) -> Buffer:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Buffer, "create", full)
        for _ in range(3):
            clock.now += 60
            meter.switch()
            count(meter, "a")
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        for number in range(SLOTS_MIN - 1):
            count(meter, number)
        with pytest.raises(UsageNotCounted, match="no space for another file"):
            count(meter, "one too many")
        count(meter, "a")  # keys that have a slot are still counted
    clock.now += 60
    meter.switch()
    count(meter, "a")
    await meter.close()
    of_send = {record.minute_s: record.counts[CALLS] for record in records(tmp_path) if record.slot == 0}
    assert of_send == {1_700_000_040: 5, 1_700_000_280: 1}


async def test_the_minutes_pass_by_themselves(tmp_path: Path) -> None:
    clock = _Clock()
    clock.now = 1_700_000_099.95
    meter = Meter.start(tmp_path, "n", clock)
    count(meter, "a")
    meter.run()
    await asyncio.sleep(0)  # the task has read the clock
    clock.now += 0.06
    await until(lambda: records(tmp_path))
    assert not meter.cells_of
    count(meter, "a")
    await meter.close()
    assert [record.minute_s for record in records(tmp_path)] == [1_700_000_040, 1_700_000_100]


@pytest.mark.parametrize(
    ("size", "chunks"), [(0, 1), (1, 1), (65_535, 1), (65_536, 1), (65_537, 2), (262_144, 4), (1_048_576, 16)]
)
def test_a_payload_is_billed_by_started_chunks_of_64_kib(size: int, chunks: int) -> None:
    assert chunks_of(size) == chunks

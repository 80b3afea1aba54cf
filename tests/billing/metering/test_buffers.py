"""Counters in mapped files."""

import subprocess
import sys
from pathlib import Path

import pytest

from billing.metering.buffers import KEY_BYTES_MAX, Buffer, BufferDamaged, BufferFull, BufferHeader, finished
from billing.metering.spool import CALLS_SUFFIX
from billing.metering.usage import BYTES_IN, CALLS, COUNTS, UsageKey, UsageRecord

HEAD = BufferHeader("frontend-1", "00112233445566ff", 1, 1_700_000_040)
SEND = UsageKey("000000000000", "orders", 7, "standard", "SendMessage", (("team", "payments"),))
LIST = UsageKey("000000000000", "", 0, "", "ListQueues")


def records(folder: Path) -> list[UsageRecord]:
    found = []
    for buffer in finished(folder):
        found += buffer.records()
        assert not buffer.lost
        buffer.close()
    return found


def test_counts_are_read_with_their_ids(tmp_path: Path) -> None:
    buffer = Buffer.create(tmp_path, HEAD, slots=4)
    send, listed = buffer.add(SEND), buffer.add(LIST)
    unused = buffer.add(SEND)
    for _ in range(3):
        buffer.cells[send + CALLS] += 1
        buffer.cells[send + BYTES_IN] += 300
    buffer.cells[listed + CALLS] += 1
    assert unused > listed > send
    buffer.close()

    counts = dict(zip(COUNTS, [0] * len(COUNTS), strict=True))
    assert records(tmp_path) == [
        UsageRecord(*HEAD[:3], 0, HEAD.minute_s, SEND, tuple((counts | {"calls": 3, "bytes_in": 900}).values())),
        UsageRecord(*HEAD[:3], 1, HEAD.minute_s, LIST, tuple((counts | {"calls": 1}).values())),
    ]


def test_a_buffer_in_use_is_not_uploaded_by_others(tmp_path: Path) -> None:
    buffer = Buffer.create(tmp_path, HEAD, slots=4)
    buffer.cells[buffer.add(SEND)] += 1
    assert records(tmp_path) == []
    buffer.close()
    assert len(records(tmp_path)) == 1


def test_a_buffer_without_keys_leaves_no_file(tmp_path: Path) -> None:
    Buffer.create(tmp_path, HEAD, slots=4).close()
    assert list(tmp_path.iterdir()) == []


def test_a_finished_buffer_is_no_longer_than_what_it_holds(tmp_path: Path) -> None:
    buffer = Buffer.create(tmp_path, HEAD, slots=16)
    reserved = buffer.path.stat().st_size
    buffer.cells[buffer.add(SEND)] += 1
    buffer.close()
    assert buffer.path.stat().st_size < reserved - KEY_BYTES_MAX


def test_it_is_full_when_there_are_as_many_keys_or_as_long_ones(tmp_path: Path) -> None:
    buffer = Buffer.create(tmp_path, HEAD, slots=2)
    buffer.add(SEND)
    buffer.add(LIST)
    with pytest.raises(BufferFull):
        buffer.add(SEND)
    buffer.close()

    long = UsageKey("000000000000", "q", 1, "fifo", "SendMessage", (("name", "x" * (KEY_BYTES_MAX - 1000)),))
    buffer = Buffer.create(tmp_path, HEAD._replace(sequence=2), slots=100)
    assert buffer.add(long)
    with pytest.raises(BufferFull):
        buffer.add(long)
    buffer.close()


def test_the_minute_of_a_buffer_that_counted_nothing_can_change(tmp_path: Path) -> None:
    buffer = Buffer.create(tmp_path, HEAD, slots=4)
    buffer.set_minute(HEAD.minute_s + 60)
    buffer.cells[buffer.add(SEND)] += 1
    buffer.close()
    (record,) = records(tmp_path)
    assert record.minute_s == HEAD.minute_s + 60


COUNTING = """
import sys, time
from pathlib import Path
from billing.metering.buffers import Buffer, BufferHeader
from billing.metering.usage import UsageKey

buffer = Buffer.create(Path(sys.argv[1]), BufferHeader("n", "00112233445566ff", 1, 1_700_000_040), 64)
cell = buffer.add(UsageKey("000000000000", "q", 7, "standard", "SendMessage"))
while True:
    buffer.cells[cell] += 1
    print(buffer.cells[cell], flush=True)
"""


def test_counts_of_a_killed_process_exist(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", COUNTING, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        reported = [int(process.stdout.readline()) for _ in range(50)]
        process.kill()
        reported += map(int, process.stdout.read().splitlines())  # the pipe writes a number whole, or not at all
        process.wait()
    (record,) = records(tmp_path)
    assert reported[-1] <= record.counts[CALLS] <= reported[-1] + 1


@pytest.mark.parametrize(
    ("place", "byte", "message"),
    [(0, b"X", "is not a usage buffer"), (8, b"\x09", "has the format 9"), (24, b"\xff", "the header of")],
)
def test_a_file_that_is_no_buffer_is_reported(tmp_path: Path, place: int, byte: bytes, message: str) -> None:
    buffer = Buffer.create(tmp_path, HEAD, slots=2)
    buffer.add(SEND)
    buffer.close()
    with open(buffer.path, "r+b") as file:
        file.seek(place)
        file.write(byte)
    (damaged,) = finished(tmp_path)
    with pytest.raises(BufferDamaged, match=message):
        damaged.records()
    damaged.close()


def test_an_unreadable_key_loses_its_counts_and_is_reported(tmp_path: Path) -> None:
    buffer = Buffer.create(tmp_path, HEAD, slots=4)
    for key in (SEND, LIST, SEND):
        buffer.cells[buffer.add(key)] += 1
    buffer.close()
    data = buffer.path.read_bytes()
    buffer.path.write_bytes(data.replace(b"ListQueues", b"ListQueuez"))
    (found,) = finished(tmp_path)
    assert [record.key for record in found.records()] == [SEND]
    assert found.lost == ["the keys of slots 1 to 2, of 3"]
    found.close()


def test_an_unfinished_file_of_a_killed_process_is_no_buffer(tmp_path: Path) -> None:
    (tmp_path / "00112233445566ff-00000001.new").write_bytes(b"")
    assert list(finished(tmp_path)) == []
    assert not list(tmp_path.glob(f"*{CALLS_SUFFIX}"))


def test_no_buffer_is_left_when_there_is_no_room_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        Buffer.create(tmp_path, HEAD, slots=4)
    assert list(tmp_path.iterdir()) == []

"""Files of storage records: reading returns what was written, in whole minutes only."""

import os
from pathlib import Path

import pytest

from billing.metering.buffers import BufferDamaged
from billing.metering.spool import STORAGE_SUFFIX, finished_files
from billing.metering.storage import StorageKey, StorageRecord
from billing.metering.storage_file import FinishedStorage, StorageEntry, StorageFile, finished_storage

HOUR = 1_700_000_400 // 3600 * 3600
BOOT = "00112233445566ff"
Minute = tuple[int, int, list[StorageKey], list[StorageEntry]]
KEY = StorageKey("000000000000", "q", 7, "standard")
TAGGED = StorageKey("000000000000", "q", 7, "standard", (("team", "a"),))


def entry(partition: int, byte_ms: int, size: int = 0, *, epoch: int = 1, gone: bool = False) -> StorageEntry:
    """Make an entry of a partition that stores one message of this size, or none."""
    messages = 1 if size else 0
    return StorageEntry(partition, 7, epoch, byte_ms, size, messages, 1, 0, 0, HOUR * 1000 if size else 0, gone)


def create(folder: Path, number: int = 1) -> StorageFile:
    folder.mkdir(exist_ok=True)
    return StorageFile.create(folder, BOOT, number, "host-1")


def write(folder: Path, *minutes: Minute) -> Path:
    """Write a file of minutes: each with its start, its number, the new keys and the entries."""
    file = create(folder)
    for minute in minutes:
        file.append(*minute)
    file.close()
    return file.path


def read(folder: Path) -> list[StorageRecord]:
    records: list[StorageRecord] = []
    for file in finished_storage(folder):
        records += file.records()
        assert file.lost == []
        file.close()
    return records


def spans(records: list[StorageRecord]) -> list[tuple[int, int, int, int]]:
    """Return partition, minute of the hour, minutes and byte-milliseconds of each record."""
    return [(one.partition, (one.minute_s - HOUR) // 60, one.minutes, one.byte_milliseconds) for one in records]


def test_constant_storage_is_one_record_without_an_entry(tmp_path: Path) -> None:
    file = create(tmp_path)
    file.append(HOUR, 1, [KEY], [entry(1, 500, 10), entry(2, 7, 3)])
    for minute in range(1, 30):
        file.append(HOUR + 60 * minute, minute + 1, [], [entry(1, 90, 20)] if minute == 10 else [])
    assert read(tmp_path) == [], "it is locked as long as it is written to"
    file.close()
    found = read(tmp_path)
    assert spans(found) == [
        (1, 0, 1, 500),
        (2, 0, 1, 7),
        (1, 1, 9, 10 * 9 * 60_000),
        (1, 10, 1, 90),
        (2, 1, 29, 3 * 29 * 60_000),
        (1, 11, 19, 20 * 19 * 60_000),
    ]
    assert {one.node for one in found} == {"host-1"}
    assert found[-1].oldest_age_ms == 30 * 60_000


def test_terabytes_that_do_not_change_are_several_records_of_which_each_has_room(tmp_path: Path) -> None:
    size = 5 << 40
    later: list[Minute] = [(HOUR + 60 * minute, minute + 1, [], []) for minute in range(1, 60)]
    write(tmp_path, (HOUR, 1, [KEY], [entry(1, 0, size)]), *later)
    found = spans(read(tmp_path))
    assert [minutes for _, _, minutes, _ in found] == [1, 13, 13, 13, 13, 7]
    assert sum(byte_ms for *_, byte_ms in found) == size * 59 * 60_000
    assert max(byte_ms for *_, byte_ms in found) < 1 << 63


def test_no_record_crosses_the_edge_of_an_hour(tmp_path: Path) -> None:
    later: list[Minute] = [(HOUR - 180 + 60 * number, number, [], []) for number in range(2, 70)]
    write(tmp_path, (HOUR - 120, 1, [KEY], [entry(1, 5, 1)]), *later)
    assert [(minute, minutes) for _, minute, minutes, _ in spans(read(tmp_path))] == [
        (-2, 1),
        (-1, 1),
        (0, 60),
        (60, 7),
    ]


def test_moved_and_empty_partitions_are_no_longer_recorded(tmp_path: Path) -> None:
    write(
        tmp_path,
        (HOUR, 1, [KEY], [entry(1, 5, 1), entry(2, 5, 1)]),
        (HOUR + 60, 2, [], [entry(1, 4, 1, gone=True), entry(2, 9)]),
        (HOUR + 120, 3, [], []),
        (HOUR + 180, 4, [], [entry(1, 3, 1, epoch=3)]),  # owned again
        (HOUR + 240, 5, [], []),
    )
    found = read(tmp_path)
    assert spans(found) == [(1, 0, 1, 5), (2, 0, 1, 5), (1, 1, 1, 4), (2, 1, 1, 9), (1, 3, 1, 3), (1, 4, 1, 60_000)]
    assert [one.epoch for one in found if one.partition == 1] == [1, 1, 3, 3]
    assert [one.sequence for one in found] == [1, 1, 2, 2, 4, 4]


def test_a_minute_that_was_not_written_to_its_end_counts_nothing(tmp_path: Path) -> None:
    file = create(tmp_path)
    file.append(HOUR, 1, [KEY], [entry(1, 5, 1)])
    whole = file.path.stat().st_size
    file.append(HOUR + 60, 2, [], [entry(1, 900, 1), entry(2, 900, 1)])
    written = file.path.stat().st_size
    file.close()
    data = file.path.read_bytes()
    for end in range(whole, written):
        file.path.write_bytes(data[:end])
        for found in finished_storage(tmp_path):
            assert spans(list(found.records())) == [(1, 0, 1, 5)]
            found.close()


def test_a_failed_write_leaves_nothing_and_the_next_attempt_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = create(tmp_path)
    file.append(HOUR, 1, [KEY], [entry(1, 5, 1)])

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", full)
        with pytest.raises(OSError, match="No space"):
            file.append(HOUR + 60, 2, [], [entry(1, 777, 1)])
    file.append(HOUR + 60, 3, [], [entry(1, 6, 1)])
    file.close()
    assert spans(read(tmp_path)) == [(1, 0, 1, 5), (1, 1, 1, 6)]


def test_later_facts_about_a_queue_hold_for_the_whole_file(tmp_path: Path) -> None:
    write(tmp_path, (HOUR, 1, [KEY], [entry(1, 5, 1)]), (HOUR + 60, 2, [TAGGED], []))
    assert {one.key for one in read(tmp_path)} == {TAGGED}


def test_many_partitions_are_written_in_many_frames(tmp_path: Path) -> None:
    keys = [StorageKey("000000000000", f"q{number}", number, "fifo") for number in range(1, 4500)]
    entries = [StorageEntry(number, number, 1, number, 1, 1, 1, 0, 0, 0, False) for number in range(1, 4500)]
    write(tmp_path, (HOUR, 1, keys, entries))
    assert [(one.partition, one.key.queue) for one in read(tmp_path)] == [(n, f"q{n}") for n in range(1, 4500)]


def test_a_file_without_a_minute_vanishes(tmp_path: Path) -> None:
    write(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_damage_in_the_middle_is_reported(tmp_path: Path) -> None:
    file = create(tmp_path)
    file.append(HOUR, 1, [KEY], [entry(1, 5, 1)])
    middle = file.path.stat().st_size
    file.append(HOUR + 60, 2, [], [entry(1, 6, 1)])
    file.close()
    data = bytearray(file.path.read_bytes())
    data[middle + 12] ^= 1
    file.path.write_bytes(data)
    ((path, opened),) = finished_files(tmp_path, STORAGE_SUFFIX)
    found = FinishedStorage(path, opened)
    assert spans(list(found.records())) == [(1, 0, 1, 5)]
    assert found.lost == [f"what follows byte {middle}, of {len(data)}"]
    found.close()


@pytest.mark.parametrize("rubbish", [b"", b"rubbish", b"hfstore1\x04\x00\x00\x00abc"])
def test_an_invalid_file_is_reported(tmp_path: Path, rubbish: bytes) -> None:
    (tmp_path / f"1{STORAGE_SUFFIX}").write_bytes(rubbish)
    (found,) = finished_storage(tmp_path)
    with pytest.raises(BufferDamaged, match=r"1\.storage"):
        list(found.records())
    found.close()


def test_a_killed_process_leaves_its_minutes(tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        file = create(tmp_path)
        file.append(HOUR, 1, [KEY], [entry(1, 5, 1)])
        file.append(HOUR + 60, 2, [], [])
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    assert spans(read(tmp_path)) == [(1, 0, 1, 5), (1, 1, 1, 60_000)]

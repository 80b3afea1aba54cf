"""Outbox of the usage stream: what is uploaded is put there, in bounds, and never at the expense of the upload."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.dataset as ds
import pytest

from billing.lake import lake as lake_module
from billing.lake import outbox as module
from billing.lake import storage_table
from billing.lake.lake import Lake, LakeUnavailable
from billing.lake.outbox import Outbox
from billing.lake.upload import main, upload
from billing.metering.buffers import Finished
from billing.metering.json_records import STORAGE_TABLE, USAGE_TABLE
from billing.metering.spool import waiting
from billing.metering.storage import StorageKey
from billing.metering.storage_file import StorageEntry, StorageFile
from tests.billing.interrupted import run_interrupted
from tests.billing.spools import BOOT, HOUR, count


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    return Outbox(tmp_path / "outbox", 1 << 20)


def values_in(outbox: Outbox) -> list[bytes]:
    """Return the waiting values in their order."""
    return [value for path in waiting_in(outbox) for value in path.read_bytes().splitlines()]


def waiting_in(outbox: Outbox) -> list[Path]:
    found = []
    for path, file in outbox.files():
        os.close(file)
        found.append(path)
    return found


def publish(outbox: Outbox) -> list[bytes]:
    """Take all values out of the outbox."""
    found = values_in(outbox)
    for path in waiting_in(outbox):
        path.unlink()
    return found


def store(spool: Path) -> None:
    """Write a file of storage of one partition, with one message, of an hour and a minute."""
    spool.mkdir(exist_ok=True)
    file = StorageFile.create(spool, BOOT, 1, "host-1")
    key = StorageKey("000000000000", "q", 7, "stream", (("team", "ä"),))
    file.append(HOUR, 1, [key], [StorageEntry(3, 7, 2, 5, 1 << 40, 1, 1, 0, 0, HOUR * 1000, False)])
    for minute in range(1, 61):
        file.append(HOUR + 60 * minute, minute + 1, [], [])
    file.close()


def rows(lake: Lake, table: str) -> list[dict[str, Any]]:
    """Return the records of a table of the lake, as JSON has them."""
    found = ds.dataset(Path(lake.root) / table).to_table().to_pylist()
    return [
        {
            "table": table,
            **row,
            "minute": row["minute"].strftime("%Y-%m-%dT%H:%M:%SZ"),
            "tags": dict(row["tags"]),
        }
        for row in found
    ]


def in_order(found: Iterable[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(one) for one in found)


# --- upload -------------------------------------------------------------------------------------------------


def test_the_tables_have_the_names_of_the_lakes_folders() -> None:
    assert (USAGE_TABLE, STORAGE_TABLE) == (lake_module.TABLE, storage_table.TABLE)


def test_the_outbox_has_the_records_of_the_lake_with_the_same_columns_and_values(
    spool: Path, lake: Lake, outbox: Outbox
) -> None:
    count(spool, 1, HOUR, calls=3, keys=2)
    count(spool, 2, HOUR + 3600)
    store(spool)
    assert upload(spool, lake, outbox).damaged == 0
    found = [json.loads(value) for value in values_in(outbox)]
    expected = rows(lake, "usage") + rows(lake, "storage")
    assert len(expected) >= 3 + 2
    assert in_order(found) == in_order(expected), "names, order of names, and values"


def test_killed_between_any_two_steps_no_record_is_lost(spool: Path, lake: Lake, outbox: Outbox) -> None:
    for sequence in range(1, 4):
        count(spool, sequence, HOUR + 3600 * (sequence % 2), keys=2)
    store(spool)
    published: list[bytes] = []
    steps = (Lake, "write"), (Outbox, "add"), (Finished, "remove")
    runs = run_interrupted(lambda: upload(spool, lake, outbox), *steps, then=lambda: published.extend(publish(outbox)))
    published += publish(outbox)
    assert runs > 6
    assert waiting(spool).files == 0
    expected = rows(lake, "usage") + rows(lake, "storage")
    assert len(published) > len(set(published)), "some were published twice"
    assert in_order(map(json.loads, set(published))) == sorted(set(in_order(expected)))


def test_while_the_lake_is_away_the_outbox_gets_nothing(spool: Path, lake: Lake, outbox: Outbox) -> None:
    count(spool, 1)
    Path(lake.root).write_bytes(b"in the way of the lake")
    with pytest.raises(LakeUnavailable):
        upload(spool, lake, outbox)
    assert values_in(outbox) == []


def test_an_outbox_that_cannot_be_written_does_not_hold_up_the_upload(
    spool: Path, lake: Lake, outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    count(spool, 1, keys=2)
    count(spool, 2, HOUR + 3600)
    outbox.folder.write_bytes(b"in the way of the outbox")
    assert upload(spool, lake, outbox) == (2, 3, 2, 0)
    assert waiting(spool).files == 0
    (message,) = caplog.messages
    assert message.startswith("usage is not in the usage stream: 3 records could not be written")
    assert message.endswith("the lake has them")


def test_the_command_takes_an_outbox(
    spool: Path, lake: Lake, outbox: Outbox, capsys: pytest.CaptureFixture[str]
) -> None:
    count(spool, 1, keys=2)
    assert main(["--outbox", str(outbox.folder), "--outbox-bytes", "1", str(spool), lake.url]) == 0
    assert outbox.backlog() == (0, 0, 0, 2)
    count(spool, 2)
    assert main(["--outbox", str(outbox.folder), str(spool), lake.url]) == 0
    assert len(values_in(outbox)) == 1


# --- files --------------------------------------------------------------------------------------------------


def test_files_are_in_the_order_of_their_minutes_and_hold_a_bounded_number_of_records(outbox: Outbox) -> None:
    with mock.patch.object(module, "FILE_RECORDS_MAX", 2):
        assert outbox.add(HOUR + 60, [b"4"]) == 0
        assert outbox.add(HOUR, [b"1", b"2", b"3"]) == 0
    with mock.patch.object(module, "FILE_BYTES_MAX", 10):
        outbox.add(HOUR + 120, [b"five5", b"six66", b"s" * 100, b"8"])
    assert [path.read_bytes().split() for path in waiting_in(outbox)][2] == [b"4"]
    assert sorted(values_in(outbox)[:3]) == [b"1", b"2", b"3"]
    sizes = [len(path.read_bytes().split()) for path in waiting_in(outbox)]
    assert sizes[2:] == [1, 1, 1, 1, 1]
    assert outbox.backlog().records == 8


def test_the_same_records_make_the_same_file(outbox: Outbox) -> None:
    outbox.add(HOUR, [b"1", b"2"])
    outbox.add(HOUR, [b"1", b"2"])
    outbox.add(HOUR, [b"1"])
    assert outbox.backlog()[:3] == (2, 3, 6)


def test_without_room_the_oldest_are_dropped_and_counted(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox", 100)
    for minute in range(5):
        assert outbox.add(HOUR + 60 * minute, [b"%d" % minute * 9, b"x" * 9]) == 0
    assert outbox.backlog() == (5, 10, 100, 0)
    assert outbox.add(HOUR + 600, [b"y" * 29]) == 4
    assert [value[:1] for value in values_in(outbox)] == [b"2", b"x", b"3", b"x", b"4", b"x", b"y"]
    assert outbox.add(HOUR + 660, [b"z" * 100]) == 1, "what does not fit at all is dropped itself"
    assert Outbox(tmp_path / "outbox", 100).backlog() == (4, 7, 90, 5)


def test_the_number_of_files_is_bounded_too(outbox: Outbox) -> None:
    with mock.patch.object(module, "FILES_MAX", 3):
        for minute in range(5):
            outbox.add(HOUR + 60 * minute, [b"%d" % minute])
    assert values_in(outbox) == [b"2", b"3", b"4"]
    assert outbox.backlog().dropped == 2


def test_a_file_that_another_process_publishes_is_left_out(outbox: Outbox) -> None:
    outbox.add(HOUR, [b"1"])
    outbox.add(HOUR + 60, [b"2"])
    other = Outbox(outbox.folder, 1 << 20)
    held, file = next(other.files())
    assert held.read_bytes() == b"1\n"
    assert values_in(outbox) == [b"2"]
    os.close(file)
    assert values_in(outbox) == [b"1", b"2"]


def test_an_outbox_without_a_folder_is_empty(outbox: Outbox) -> None:
    assert values_in(outbox) == []
    assert outbox.backlog() == (0, 0, 0, 0)

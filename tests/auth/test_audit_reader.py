"""Reading of the audit log, backwards, in steps of bounded size."""

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from auth import audit_reader
from auth.audit import AuditFile
from auth.audit_reader import AuditReader, PlaceGone


def line(number: int, account: str = "a") -> bytes:
    return json.dumps({"number": number, "account": account}).encode()


def written(folder: Path, count: int, **bounds: int) -> Path:
    """Path of a log with lines of these numbers, in files of the given bounds."""
    path = folder / "audit.jsonl"
    file = AuditFile(path, **bounds)
    for number in range(count):
        file.append(line(number, "ab"[number % 2]))
    file.close()
    return path


def anything(_: dict[str, Any]) -> bool:
    return True


def numbers(reader: AuditReader, limit: int, containing: bytes = b"") -> list[list[int]]:
    """Numbers of the lines, page by page."""
    pages, place = [], ""
    while True:
        part = reader.read(place, limit, containing, anything)
        pages.append([one["number"] for one in part.lines])
        if part.next is None:
            return pages
        place = part.next


def test_pages_are_complete_over_rotated_files(tmp_path: Path) -> None:
    path = written(tmp_path, 100, bytes_max=700, files_max=9)
    assert len(list(tmp_path.iterdir())) > 4
    assert numbers(AuditReader(path), 7) == [list(range(99, -1, -1))[at : at + 7] for at in range(0, 100, 7)]
    assert [*chain(*numbers(AuditReader(path), 10, b'"b"'))] == list(range(99, 0, -2))


def test_one_read_looks_through_a_bounded_part(tmp_path: Path) -> None:
    path = written(tmp_path, 100)
    pages = numbers(AuditReader(path, scanned_bytes_max=300), 100, b'"b"')
    assert [*chain(*pages)] == list(range(99, 0, -2))
    assert max(map(len, pages)) < 8


def test_lines_are_longer_than_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_reader, "BLOCK_BYTES", 16)
    assert numbers(AuditReader(written(tmp_path, 30)), 4) == [
        list(range(29, -1, -1))[at : at + 4] for at in range(0, 30, 4)
    ]


def test_a_place_survives_a_rotation_until_its_file_is_gone(tmp_path: Path) -> None:
    path = written(tmp_path, 10)
    reader = AuditReader(path, files_max=3)
    place = reader.read("", 4, b"", anything).next
    assert place is not None
    for number in range(3):
        file = AuditFile(path, bytes_max=1, files_max=3)
        file.append(line(10 + number))
        file.close()
        if number == 0:
            assert [one["number"] for one in reader.read(place, 3, b"", anything).lines] == [5, 4, 3]
    with pytest.raises(PlaceGone):
        reader.read(place, 3, b"", anything)


@pytest.mark.parametrize("place", ["x", "1", "1.1", "-1.5", "9" * 30 + ".1"])
def test_other_texts_are_no_places(tmp_path: Path, place: str) -> None:
    with pytest.raises(PlaceGone):
        AuditReader(written(tmp_path, 3)).read(place, 3, b"", anything)


def test_torn_lines_are_left_out(tmp_path: Path) -> None:
    path = written(tmp_path, 3)
    with path.open("ab") as file:
        file.write(line(3)[:9])
    assert numbers(AuditReader(path), 10) == [[2, 1, 0]]
    log = AuditFile(path)
    log.append(line(4))
    log.close()
    assert numbers(AuditReader(path), 10) == [[4, 2, 1, 0]]


def test_a_log_may_be_absent(tmp_path: Path) -> None:
    assert numbers(AuditReader(tmp_path / "audit.jsonl"), 10) == [[]]

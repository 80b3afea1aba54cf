"""Segments of a log as files of a backup."""

from io import BytesIO

import pytest

from holdfast.backup import rows
from holdfast.backup.manifest import BackupUnusable


def test_rows_are_found_again_and_what_is_cut_off_is_noticed() -> None:
    file = BytesIO()
    rows.write_mark(file)
    stored = {0: b"first", 1: b"", 7: bytes(70_000)}
    for number, data in stored.items():
        rows.add(file, number, data)
    assert {place.number: rows.read(file, place) for place in list(rows.places(file))} == stored
    whole = file.getvalue()
    begins = {place.offset - 8 for place in rows.places(file)} | {len(whole)}
    for size_bytes in (*range(60), len(whole) - 1):
        if size_bytes not in begins:
            with pytest.raises(BackupUnusable):
                list(rows.places(BytesIO(whole[:size_bytes])))

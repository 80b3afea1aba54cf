"""Copies of the SQLite file: their streams, and counters in a restored copy."""

import sqlite3
from contextlib import closing
from pathlib import Path

from metadata_service.sqlite.copy import LOST_IDS, LOST_PRODUCER_IDS, MetadataFile, prepare_restored
from metadata_service.sqlite.schema import STREAMS_SINCE, roll_back
from metadata_service.sqlite.store import SQLiteStore
from tests.metadata_service.conformance import ACCOUNT, create, create_stream


async def test_a_restored_copy_has_the_streams_and_gives_out_no_id_again(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "metadata.sqlite")
    streams = [await create_stream(store, name, 2) for name in "ab"]
    assert await store.streams.allocate_producer_ids(1000) == 1
    file = MetadataFile(tmp_path / "metadata.sqlite")
    assert file.streams() == streams
    file.copy_to(tmp_path / "copy.sqlite")
    file.close()
    await store.close()
    prepare_restored(tmp_path / "copy.sqlite")
    restored = SQLiteStore(tmp_path / "copy.sqlite")
    assert await restored.streams.list_streams(ACCOUNT, limit=10) == streams
    assert (await create_stream(restored, "c")).stream_id == 3 + LOST_IDS
    assert (await create(restored, "c")).queue_id == 4 + LOST_IDS
    assert await restored.streams.allocate_producer_ids(1) == 1001 + LOST_PRODUCER_IDS
    await restored.close()


async def test_a_file_of_the_version_before_has_no_streams(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    await SQLiteStore(path).close()
    roll_back(path, STREAMS_SINCE - 1)
    file = MetadataFile(path)
    assert (file.schema, file.streams()) == (STREAMS_SINCE - 1, [])
    file.close()
    again = SQLiteStore(path)
    stream = await create_stream(again, "logs")
    await again.close()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT partitions FROM streams WHERE stream_id = ?", (stream.stream_id,)).fetchall() == [
            (1,)
        ]

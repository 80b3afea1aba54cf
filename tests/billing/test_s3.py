"""The lake in an object store: a real server of S3's protocol, behind a network that fails for a while."""

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from billing.lake.compact import Compacted, compact
from billing.lake.compact import main as compact_main
from billing.lake.lake import Lake
from billing.lake.upload import upload
from billing.lake.uploader import UsageUploader
from billing.metering.spool import waiting
from tests.billing.s3 import BUCKET, S3, SECRET
from tests.billing.spools import HOUR, count

LATER = datetime.fromtimestamp(HOUR, UTC) + timedelta(hours=5)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with S3(tmp_path_factory.mktemp("s3")) as s3:
        yield s3


def sequences(lake: Lake) -> list[int]:
    """Sequences of all records, each once."""
    tables = [lake.read_table(path) for path in lake.paths("usage")]
    return sorted({number for table in tables for number in table["sequence"].to_pylist()})


def test_files_are_written_read_listed_and_removed(s3: S3) -> None:
    lake = Lake(s3.lake("files"))
    assert lake.paths("live") == []
    assert lake.read_bytes("live/now.json") is None
    lake.write_bytes("live/now.json", b"one")
    lake.write_bytes("live/now.json", b"two")
    assert lake.read_bytes("live/now.json") == b"two"
    table = pa.table({"calls": [3, 4]})
    lake.write_table("live/days/a.parquet", table)
    assert lake.read_table("live/days/a.parquet") == table
    footer = lake.footer("live/days/a.parquet")
    assert footer is not None
    assert footer.num_rows == 2
    lake.write_bytes("live/_begun", b"")
    found = lake.files("live")
    assert [(file.path, file.size_bytes) for file in found][1:] == [("live/now.json", 3)]
    assert abs(datetime.now(UTC) - found[0].modified) < timedelta(minutes=1)
    lake.remove("live/now.json")
    lake.remove("live/now.json")
    assert lake.paths("live") == ["live/days/a.parquet"]
    objects = [key for key in s3.objects("files/") if not key.endswith("/")]  # others mark folders
    assert objects == ["files/live/_begun", "files/live/days/a.parquet"]


def test_a_large_object_is_written_in_parts(s3: S3) -> None:
    lake = Lake(s3.lake("large"))
    data = bytes(range(256)) * (12 << 12)
    lake.write_bytes("live/x", data)
    assert lake.read_bytes("live/x") == data


def test_records_are_brought_and_merged(s3: S3, tmp_path: Path) -> None:
    lake = Lake(s3.lake("merged"))
    for sequence in range(1, 6):
        count(tmp_path / "spool", sequence)
        assert upload(tmp_path / "spool", lake).files == 1
    assert sequences(lake) == [1, 2, 3, 4, 5]
    assert compact(lake, LATER) == Compacted(0, 0), "they have come a moment ago"
    # The server dates its objects now.  Two hours later, an hour that is over by then is merged.
    written = datetime.now(UTC)
    now, hour = written + timedelta(hours=2), written - timedelta(hours=3)
    names = {path.rpartition("/")[2] for path in lake.paths("usage")}
    folder = f"usage/{hour:date=%Y-%m-%d/hour=%H}"
    for path in lake.paths("usage"):
        data = lake.read_bytes(path)
        assert data is not None
        lake.write_bytes(f"{folder}/{path.rpartition('/')[2]}", data)
        lake.remove(path)
    assert compact(lake, now) == Compacted(1, 0)
    assert compact(lake, now) == Compacted(0, 0)
    (merged,) = [path for path in lake.paths("usage") if "merged-" in path]
    assert sequences(lake) == [1, 2, 3, 4, 5]
    assert len(lake.paths("usage")) == len(names) + 1
    assert compact(lake, datetime.now(UTC) + timedelta(hours=7)) == Compacted(0, 5)
    assert lake.paths("usage") == [merged]
    assert sequences(lake) == [1, 2, 3, 4, 5]


async def test_while_it_is_away_everything_waits_and_arrives_when_it_is_back(
    s3: S3, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    spool, url = tmp_path / "spool", s3.lake("away")
    uploader = UsageUploader(spool, url, 60)
    count(spool, 1)
    with caplog.at_level(logging.WARNING):
        s3.network.cut()
        assert not await uploader.upload()
        assert compact_main([url]) == 1
        s3.network.heal()
        count(spool, 2)
        assert waiting(spool)[0] == 2
        assert await uploader.upload()
    assert waiting(spool) == (0, 0, 0)
    assert sequences(Lake(url)) == [1, 2]
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    errors = capsys.readouterr().err
    assert f"the lake at s3://{BUCKET}/away cannot be written" in caplog.text
    assert f"the lake at s3://{BUCKET}/away cannot be read" in errors
    assert SECRET not in caplog.text + errors

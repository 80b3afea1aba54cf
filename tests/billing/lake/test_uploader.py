"""Periodic start of the process that uploads usage to the lake."""

import logging
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import pytest

from billing.lake import uploader as module
from billing.lake.lake import Lake, table_of
from billing.lake.outbox import Outbox
from billing.lake.uploader import UsageUploader
from billing.metering.buffers import Buffer, BufferHeader
from billing.metering.spool import waiting
from tests.billing.spools import count
from tests.servers.waiting import until


async def test_it_reports_when_usage_does_not_reach_the_lake_and_when_it_does_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool, lake = tmp_path / "spool", tmp_path / "lake"
    count(spool, 1)
    lake.write_bytes(b"in the way")
    uploader = UsageUploader(spool, str(lake), 60)
    assert not await uploader.upload()
    assert not await uploader.upload()
    lake.unlink()
    assert await uploader.upload()
    assert waiting(spool) == (0, 0, 0)
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert f"the lake at {lake} cannot be written" in caplog.messages[0]


async def test_lost_usage_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "1.usage").write_bytes(b"rubbish")
    assert await UsageUploader(tmp_path, str(tmp_path / "lake"), 60).upload()
    assert "usage is lost" in caplog.text
    assert "is not a usage buffer" in caplog.text


async def test_lost_usage_is_logged_also_while_the_lake_is_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool, lake = tmp_path / "spool", tmp_path / "lake"
    count(spool, 1)
    lake.write_bytes(b"in the way")
    uploader = UsageUploader(spool, str(lake), 60)
    assert not await uploader.upload()
    (spool / "0.usage").write_bytes(b"rubbish")
    assert not await uploader.upload()
    assert sum("usage is lost" in message for message in caplog.messages) == 1
    assert (spool / "0.usage.damaged").exists()


async def test_the_lakes_keys_are_on_no_command_line(tmp_path: Path) -> None:
    called = tmp_path / "called"
    python = tmp_path / "python"
    python.write_text(
        f"#!{sys.executable}\nimport os, sys\n"
        f"open({str(called)!r}, 'a').write(' '.join(sys.argv[1:]) + ' ' + os.environ['HOLDFAST_USAGE_LAKE'] + '\\n')\n"
    )
    python.chmod(0o700)
    url = "s3://key:secret@bucket/path"
    uploader = UsageUploader(tmp_path, url, 60, (str(python),))
    assert await uploader.upload()
    await uploader.compact()
    assert called.read_text().splitlines() == [
        f"-m billing.lake.upload {tmp_path} {url}",
        f"-m billing.lake.compact {url}",
    ]


@mock.patch.object(module, "WAITING_BYTES_MAX", 0)
async def test_it_continues_by_itself_and_ends_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    count(tmp_path / "spool", 1)
    held = Buffer.create(tmp_path / "spool", BufferHeader("host-1", "00112233445566ff", 2, 1_700_000_100), slots=8)
    uploader = UsageUploader(tmp_path / "spool", str(tmp_path / "lake"), 0.01)
    uploader.start()
    with caplog.at_level(logging.ERROR):
        await until(lambda: "wait for upload" in caplog.text)
    await uploader.close()
    assert "1 usage files" in caplog.text
    assert waiting(tmp_path / "spool")[0] == 1
    held.close()


async def test_usage_that_waits_for_too_long_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    count(tmp_path, 1)
    (path,) = tmp_path.iterdir()
    uploader = UsageUploader(tmp_path, "unused", 60)
    await uploader.check()
    assert not caplog.records
    long_ago = time.time() - module.WAITING_SECONDS_MAX - 61
    os.utime(path, (long_ago, long_ago))
    await uploader.check()
    assert "1 usage files" in caplog.text
    assert "the oldest for 3.0 hours" in caplog.text


async def test_small_files_of_the_lake_are_merged_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMPACT_SECONDS", 0.0)
    yesterday = datetime.now(UTC) - timedelta(days=1)
    folder = yesterday.strftime("date=%Y-%m-%d/hour=%H")
    lake = Lake(str(tmp_path / "lake"))
    for number in range(3):
        path = tmp_path / "lake" / lake.write(folder, f"{number}", table_of([]))
        os.utime(path, (yesterday.timestamp(), yesterday.timestamp()))
    uploader = UsageUploader(tmp_path / "spool", str(tmp_path / "lake"), 0.01)
    (tmp_path / "spool").mkdir()
    uploader.start()
    await until(lambda: [path for path in lake.paths("usage") if "merged-" in path])
    await uploader.close()


async def test_a_process_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT_SECONDS", 0.05)
    hangs = tmp_path / "hangs"
    hangs.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(600)\n")
    hangs.chmod(0o700)
    with pytest.raises(TimeoutError):
        await UsageUploader(tmp_path, str(tmp_path / "lake"), 60, (str(hangs),)).upload()


async def test_records_go_to_the_outbox_too_and_its_publisher_is_woken(tmp_path: Path) -> None:
    outbox, woken = Outbox(tmp_path / "outbox", 1 << 20), 0

    def wake() -> None:
        nonlocal woken
        woken += 1

    count(tmp_path / "spool", 1, keys=2)
    uploader = UsageUploader(tmp_path / "spool", str(tmp_path / "lake"), 60, outbox=outbox, on_uploaded=wake)
    assert await uploader.upload()
    assert (outbox.backlog().records, woken) == (2, 1)


async def test_records_that_are_not_in_the_stream_are_logged_and_the_upload_succeeds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    count(tmp_path / "spool", 1, keys=2)
    outbox = Outbox(tmp_path / "outbox", 1)
    assert await UsageUploader(tmp_path / "spool", str(tmp_path / "lake"), 60, outbox=outbox).upload()
    assert "usage is not in the usage stream: 2 records were dropped" in caplog.text
    assert len(Lake(str(tmp_path / "lake")).paths("usage")) == 1

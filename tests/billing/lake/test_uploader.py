"""Periodic start of the process that uploads usage to the lake."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from billing.lake import uploader as sealing
from billing.lake.lake import Lake, table_of
from billing.lake.uploader import UsageUploader
from billing.metering.buffers import Buffer, BufferHeader
from billing.metering.spool import waiting
from billing.metering.usage import UsageKey


def count(spool: Path, sequence: int) -> None:
    spool.mkdir(exist_ok=True)
    buffer = Buffer.create(spool, BufferHeader("host-1", "00112233445566ff", sequence, 1_700_000_040), slots=8)
    buffer.cells[buffer.add(UsageKey("000000000000", "q", 1, "standard", "SendMessage"))] += 1
    buffer.close()


async def test_it_tells_when_usage_does_not_reach_the_lake_and_when_it_does_again(
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


async def test_what_is_lost_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "1.usage").write_bytes(b"rubbish")
    assert await UsageUploader(tmp_path, str(tmp_path / "lake"), 60).upload()
    assert "usage is lost" in caplog.text
    assert "is no buffer of usage" in caplog.text


async def test_what_is_lost_is_told_also_while_the_lake_is_away(
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
    told = tmp_path / "told"
    python = tmp_path / "python"
    python.write_text(
        f"#!{sys.executable}\nimport os, sys\n"
        f"open({str(told)!r}, 'a').write(' '.join(sys.argv[1:]) + ' ' + os.environ['HOLDFAST_USAGE_LAKE'] + '\\n')\n"
    )
    python.chmod(0o700)
    url = "s3://key:secret@bucket/path"
    uploader = UsageUploader(tmp_path, url, 60, (str(python),))
    assert await uploader.upload()
    await uploader.compact()
    assert told.read_text().splitlines() == [
        f"-m billing.lake.upload {tmp_path} {url}",
        f"-m billing.lake.compact {url}",
    ]


async def test_it_goes_on_by_itself_and_ends_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "WAITING_BYTES_MOST", 0)
    count(tmp_path / "spool", 1)
    held = Buffer.create(tmp_path / "spool", BufferHeader("host-1", "00112233445566ff", 2, 1_700_000_100), slots=8)
    uploader = UsageUploader(tmp_path / "spool", str(tmp_path / "lake"), 0.01)
    uploader.start()
    with caplog.at_level(logging.ERROR):
        async with asyncio.timeout(60):
            while "wait for the lake" not in caplog.text:
                await asyncio.sleep(0.02)
    await uploader.close()
    assert "1 files of usage" in caplog.text
    assert waiting(tmp_path / "spool")[0] == 1
    held.close()


async def test_what_waits_for_too_long_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    count(tmp_path, 1)
    (path,) = tmp_path.iterdir()
    uploader = UsageUploader(tmp_path, "unused", 60)
    await uploader.check()
    assert not caplog.records
    long_ago = time.time() - sealing.WAITING_SECONDS_MOST - 61
    os.utime(path, (long_ago, long_ago))
    await uploader.check()
    assert "1 files of usage" in caplog.text
    assert "the oldest for 3.0 hours" in caplog.text


async def test_small_files_of_the_lake_are_merged_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "COMPACT_SECONDS", 0.0)
    yesterday = datetime.now(UTC) - timedelta(days=1)
    folder = yesterday.strftime("date=%Y-%m-%d/hour=%H")
    lake = Lake(str(tmp_path / "lake"))
    for number in range(3):
        path = tmp_path / "lake" / lake.write(folder, f"{number}", table_of([]))
        os.utime(path, (yesterday.timestamp(), yesterday.timestamp()))
    uploader = UsageUploader(tmp_path / "spool", str(tmp_path / "lake"), 0.01)
    (tmp_path / "spool").mkdir()
    uploader.start()
    async with asyncio.timeout(60):
        while not [path for path in lake.paths("usage") if "merged-" in path]:
            await asyncio.sleep(0.02)
    await uploader.close()


async def test_a_process_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "PATIENCE_SECONDS", 0.05)
    hangs = tmp_path / "hangs"
    hangs.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(600)\n")
    hangs.chmod(0o700)
    with pytest.raises(TimeoutError):
        await UsageUploader(tmp_path, str(tmp_path / "lake"), 60, (str(hangs),)).upload()

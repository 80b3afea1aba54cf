"""The process that brings usage to the lake, as it is started now and then."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

import pytest

from billing import sealer as sealing
from billing.buffers import Buffer, Head, waiting
from billing.sealer import Sealer
from billing.usage import UsageKey


def count(spool: Path, sequence: int) -> None:
    spool.mkdir(exist_ok=True)
    buffer = Buffer.create(spool, Head("host-1", "00112233445566ff", sequence, 1_700_000_040), slots=8)
    buffer.cells[buffer.add(UsageKey("000000000000", "q", 1, "standard", "SendMessage"))] += 1
    buffer.close()


async def test_it_tells_when_usage_does_not_reach_the_lake_and_when_it_does_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool, lake = tmp_path / "spool", tmp_path / "lake"
    count(spool, 1)
    lake.write_bytes(b"in the way")
    sealer = Sealer(spool, str(lake), 60)
    assert not await sealer.seal()
    assert not await sealer.seal()
    lake.unlink()
    assert await sealer.seal()
    assert waiting(spool) == (0, 0)
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert f"the lake at {lake} cannot be written" in caplog.messages[0]


async def test_what_is_lost_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "1.usage").write_bytes(b"rubbish")
    assert await Sealer(tmp_path, str(tmp_path / "lake"), 60).seal()
    assert "usage is lost" in caplog.text
    assert "is no buffer of usage" in caplog.text


async def test_it_goes_on_by_itself_and_ends_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "WAITING_BYTES_MOST", 0)
    count(tmp_path / "spool", 1)
    held = Buffer.create(tmp_path / "spool", Head("host-1", "00112233445566ff", 2, 1_700_000_100), slots=8)
    sealer = Sealer(tmp_path / "spool", str(tmp_path / "lake"), 0.01)
    sealer.start()
    with caplog.at_level(logging.ERROR):
        async with asyncio.timeout(60):
            while "wait for the lake" not in caplog.text:
                await asyncio.sleep(0.02)
    await sealer.close()
    assert "1 files of usage" in caplog.text
    assert waiting(tmp_path / "spool")[0] == 1
    held.close()


async def test_a_process_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "PATIENCE_SECONDS", 0.05)
    hangs = tmp_path / "hangs"
    hangs.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(600)\n")
    hangs.chmod(0o700)
    with pytest.raises(TimeoutError):
        await Sealer(tmp_path, str(tmp_path / "lake"), 60, (str(hangs),)).seal()

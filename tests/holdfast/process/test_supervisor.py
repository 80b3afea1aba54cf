"""The supervisor of several processes, with substitute children."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import cast

import pytest

from holdfast.http.listener import bind
from holdfast.process import supervisor
from holdfast.process.serve import Prepared
from holdfast.settings import Settings


async def test_a_child_that_hangs_before_it_is_ready_is_killed_and_the_start_has_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "holdfast")
    monkeypatch.setattr(supervisor, "STARTS_SECONDS", 1)
    monkeypatch.setattr(supervisor, "python", lambda: ("sh", "-c", "exec sleep 1000"))
    hangs = supervisor.Supervisor(Settings(data=tmp_path, frontends=2), bind("127.0.0.1", 0))
    async with asyncio.timeout(60):
        assert await hangs.run(cast(Prepared, None)) == 1
    assert [record.message.partition(" pid=")[0] for record in caplog.records] == [
        "backend does not answer and is killed",
        "the service cannot go on: backend did not start (killed by SIGKILL)",
    ]

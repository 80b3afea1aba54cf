"""Backups of a data folder with streams."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from backend.extent_ids import ExtentId
from backend.node import Node
from backend.stream_commands import DeleteRecords
from holdfast.backup import restore, take
from holdfast.backup.target import LocalTarget
from metadata_service.models import BackupPin
from metadata_service.sqlite.store import SQLiteStore
from tests.backend.serving.streams.stream_node import StreamNode


class _ServiceNode(StreamNode):
    """A node in a data folder as the service has it."""

    async def start(self) -> None:
        self.store = SQLiteStore(self.folder / "metadata.sqlite")
        self.node = await Node.start(
            self.disk, str(self.folder / "journal"), self.store.entries, self.resolver, settings=self.settings
        )


async def test_a_restored_service_has_the_streams_of_the_moment(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    node = _ServiceNode(data)
    await node.start()
    target, group = await node.stream(7), await node.group(8)
    await node.append(target, b"in an extent")
    await node.bind(target)
    await node.append(target, b"in the log")
    await node.commit(group, "", -1, 1)
    before = node.state(target), node.state(group)
    result = await asyncio.to_thread(take.take, data, LocalTarget(tmp_path / "backups"))
    await node.bind(target)
    await node.append(target, b"later")
    await node.stop()
    restore.restore(LocalTarget(tmp_path / "backups"), result.manifest, tmp_path / "again")
    again = _ServiceNode(tmp_path / "again")
    await again.start()
    assert (again.state(target), again.state(group)) == before
    assert await again.fetch_all(target) == [(0, b"in an extent"), (1, b"in the log")]
    assert (await again.append(target, b"other")).base_offset == 2
    await again.bind(target)
    await again.restart()
    assert [payload for _, payload in await again.fetch_all(target)] == [b"in an extent", b"in the log", b"other"]
    await again.stop()


async def test_extents_stay_while_a_backup_is_in_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = _ServiceNode(tmp_path)
    await node.start()
    target = await node.stream(7)
    await node.append(target)
    await node.bind(target)
    await node.node.call(DeleteRecords(target, 1))
    checkpointer = node.node._checkpointer
    assert checkpointer is not None

    async def in_progress() -> list[BackupPin]:
        return [BackupPin("backup", 1 << 60, ())]

    with monkeypatch.context() as patched:
        patched.setattr(checkpointer, "_backups", in_progress)
        await node.node.checkpoint()
    assert await node.stored_extents() == [ExtentId(7, 1, 1)]
    await node.node.checkpoint()
    assert await node.stored_extents() == []
    await node.stop()

"""Logs without remaining data cost a checkpoint nothing: their entries say so."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from backend.recovery import checkpointer
from metadata_service.models import LogEntry
from metadata_service.sqlite.store import SQLiteStore
from tests.backend.nodes import RestartableNode
from tests.backend.quorum_node import OpenTables, QuorumNode

LOGS = 60


class _Counting(OpenTables):
    """Tables that count the queries for a log's content."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[int] = Counter()

    async def segments(self, log_id: int) -> list[int]:
        self.asked[log_id] += 1
        return await super().segments(log_id)

    async def files(self, log_id: int) -> list[tuple[int, int]]:
        self.asked[log_id] += 1
        return await super().files(log_id)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the time pass after which no request to an ended log can still arrive."""
    monkeypatch.setattr(checkpointer, "LEFT_BEHIND_SECONDS", 0.0)


async def _ended(store: SQLiteStore, node: str) -> LogEntry:
    """Make a log that was started, taken over, and stayed empty."""
    entry = await store.entries.new_incarnation(node)
    entry = await store.entries.update_log(
        msgspec.structs.replace(entry, state="recovering", recovering_by=entry.log_id)
    )
    return await store.entries.update_log(msgspec.structs.replace(entry, state="sealed", sealed_seq=0))


async def _sealed(store: SQLiteStore) -> list[LogEntry]:
    return [entry for entry in await store.entries.logs() if entry.state == "sealed"]


async def test_a_checkpoint_reads_no_empty_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = _Counting()
    cluster = QuorumNode(tmp_path, tables)
    await cluster.start()
    queue = await cluster.queue(1)
    for _ in range(LOGS):
        await _ended(cluster.store, "other")
    await cluster.send(queue, "a")
    await cluster.node.checkpoint()
    assert len(tables.asked) > LOGS, "nobody knows yet that there is nothing"
    own = cluster.node.ownership.log_id
    await cluster.send(queue, "b")
    tables.asked.clear()
    await cluster.node.checkpoint()
    assert tables.asked.keys() == {own}
    assert not any(entry.swept for entry in await _sealed(cluster.store)), "something may be on its way"

    monkeypatch.setattr(checkpointer, "LEFT_BEHIND_SECONDS", 0.0)
    for _ in range(LOGS // checkpointer.MARKS_AT_ONCE + 1):
        await cluster.send(queue, "c")
        tables.asked.clear()
        await cluster.node.checkpoint()
        assert len(tables.asked) <= checkpointer.MARKS_AT_ONCE + 1
    assert all(entry.swept for entry in await _sealed(cluster.store))
    await cluster.restart()
    await cluster.node.checkpoint()
    tables.asked.clear()
    await cluster.send(await cluster.queue(1), "d")
    await cluster.node.checkpoint()
    assert len(tables.asked) <= 2, "its own log, and perhaps that of the incarnation before"
    assert await cluster.payloads(queue) == [b"a", b"b", *[b"c"] * 8]
    await cluster.stop()


async def test_late_writes_to_a_log_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = _Counting()
    cluster = QuorumNode(tmp_path, tables)
    await cluster.start()
    queue = await cluster.queue(1)
    ended = await _ended(cluster.store, "other")

    async def swept() -> bool:
        await cluster.send(queue, "a")
        await cluster.node.checkpoint()
        return next(entry.swept for entry in await cluster.store.entries.logs() if entry.log_id == ended.log_id)

    assert not await swept()
    await tables.add_segment(ended.log_id, 1)
    await tables.put_file(ended.log_id, 1, [b"piece"])
    assert not await swept()
    assert await tables.segments(ended.log_id)
    monkeypatch.setattr(checkpointer, "LEFT_BEHIND_SECONDS", 0.0)
    assert not await swept(), "something was found"
    assert not await tables.segments(ended.log_id)
    assert not await tables.files(ended.log_id)
    assert await swept()
    await cluster.stop()


@pytest.mark.usefixtures("later")
async def test_a_log_in_which_a_message_lives_is_not_called_swept(tmp_path: Path) -> None:
    for cluster in (RestartableNode(tmp_path / "files"), QuorumNode(tmp_path / "tables", OpenTables())):
        cluster.folder.mkdir()
        await cluster.start()
        queue = await cluster.queue(1)
        await cluster.send(queue, "a", "b")
        for _ in range(3):
            await cluster.restart()
            queue = await cluster.queue(1)
            await cluster.send(queue, "c")
            await cluster.node.checkpoint()
        first, *others = await _sealed(cluster.store)
        assert not first.swept
        await cluster.delete(queue, *(await cluster.receive(queue)))
        for _ in range(2):
            await cluster.node.checkpoint()
            await cluster.send(queue, "d")
        assert all(entry.swept for entry in await _sealed(cluster.store)), others
        assert len(await cluster.receive(queue)) == 2
        await cluster.stop()

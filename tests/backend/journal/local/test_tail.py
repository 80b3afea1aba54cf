"""Finding the end of a log that another process writes."""

from pathlib import Path

import pytest

from backend.journal.interface import Log
from backend.journal.local.segments import segment_name
from backend.journal.local.tail import LogTail, stand_still
from tests.backend.nodes import RestartableNode


@pytest.fixture
async def cluster(tmp_path: Path) -> RestartableNode:
    cluster = RestartableNode(tmp_path, segment_bytes=64 << 10, checkpoint_segments=1000)
    await cluster.start()
    return cluster


def _end(log: Log) -> tuple[int, int]:
    """Position of the next row according to the writer."""
    batch = log._batch  # type: ignore[attr-defined]
    return batch.segment.number, batch.offset


async def test_it_follows_the_writer_through_its_segments(cluster: RestartableNode, tmp_path: Path) -> None:
    target = await cluster.queue(1)
    log = cluster.node._serving().log
    tail = LogTail(str(tmp_path / "journal" / "node-1"), log.log_id)
    for number in range(60):
        moved = number > 0
        await cluster.send(target, "x" * (100 * number))
        assert tail.has_moved() or not moved
        tail.catch_up()
        assert (tail.segment, tail.offset) == _end(log)
        assert not tail.has_moved()
    assert tail.segment > 2
    late = LogTail(str(tmp_path / "journal" / "node-1"), log.log_id, tail.segment)
    late.catch_up()
    assert (late.segment, late.offset) == (tail.segment, tail.offset)
    for one in (tail, late):
        one.close()
    await cluster.stop()


async def test_bytes_that_are_no_row_belong_to_the_log_up_to_its_end(cluster: RestartableNode, tmp_path: Path) -> None:
    """Recovery decides whether these bytes were torn or damaged, so none may be left out."""
    target = await cluster.queue(1)
    await cluster.send(target, "one", "two")
    await cluster.stop()
    folder = tmp_path / "journal" / "node-1"
    segment = max(path for path in folder.glob("*.log") if any(path.read_bytes()[:8]))
    tail = LogTail(str(folder), 1, int(segment.stem))
    tail.catch_up()
    whole = tail.offset
    data = bytearray(segment.read_bytes().ljust(64 << 10, b"\0"))
    data[whole : whole + 511] = b"HfRo" + bytes(500) + b"the end"
    segment.write_bytes(data)
    assert tail.has_moved()
    tail.catch_up()
    assert tail.offset == (whole + 511 + 7) & ~7
    assert not tail.has_moved()
    (folder / segment_name(tail.segment + 1)).write_bytes(b"the next one")
    assert tail.has_moved()
    tail.catch_up()
    assert tail.segment == int(segment.stem) + 1
    tail.close()


class Restless(LogTail):
    """A log that grows whenever others are read."""

    def __init__(self, moves: int) -> None:
        self.moves = moves
        self.followed = 0
        self.at_end = False

    def catch_up(self) -> None:
        self.at_end = True
        self.followed += 1

    def has_moved(self) -> bool:
        return not self.at_end

    def write(self) -> None:
        if self.moves:
            self.moves -= 1
            self.at_end = False


class Disturbing(Restless):
    """A log whose read lets the others grow."""

    def __init__(self, others: list[Restless]) -> None:
        super().__init__(0)
        self._others = others

    def catch_up(self) -> None:
        super().catch_up()
        for other in self._others:
            other.write()


def test_a_moment_is_one_at_which_no_log_has_moved() -> None:
    first = Restless(3)
    assert stand_still([first, Disturbing([first])], 4)
    assert first.followed == 4
    assert not stand_still([first := Restless(4), Disturbing([first])], 4)

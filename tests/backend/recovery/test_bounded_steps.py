"""Background work and read-ahead hold the event loop only for steps of bounded size, however long a queue is."""

from collections.abc import Sequence
from typing import Any

import pytest

from backend import api
from backend.engine.blocks import BLOCK_BITS
from backend.recovery import checkpointer, compaction
from backend.recovery.checkpointer import CHANGED_FEW, Checkpointer
from backend.serving.payload_cache import PREFETCH_EACH_MIN, PREFETCH_MESSAGES
from backend.serving.writer import PartitionWriter
from tests.backend.nodes import RestartableNode, node_with

GROUPS = 1 << BLOCK_BITS
BLOCKS = 6
"""A group has a message in each of the first blocks."""


async def a_fifo_queue(cluster: RestartableNode) -> api.Target:
    """Fill a queue whose groups take turns, so that each block has messages of each group."""
    queue = await cluster.queue(1, fifo=True)
    for start in range(0, (BLOCKS << BLOCK_BITS) - 100, 100):
        groups = [f"g{number % GROUPS}" for number in range(start, start + 100)]
        await cluster.node.call(api.Send(queue, [api.NewMessage(b"x", group=group) for group in groups]))
    return queue


async def test_a_checkpoint_leaves_few_chunks_for_its_instant(
    cluster: RestartableNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receive of one group changes all blocks, after the first pass has written them."""
    queue = await a_fifo_queue(cluster)
    blocks = cluster.incarnation.partitions[1].fold.blocks
    changed = False
    written: list[tuple[int, int]] = []
    capture = Checkpointer._capture

    class Steps:
        async def step(self) -> None:
            nonlocal changed
            if not changed and all(block.ref for block in blocks.values()):
                changed = True
                assert len({message.group for message in await cluster.receive(queue)}) == 2

    def measured(self: Checkpointer, one: Any, writer: Any) -> None:
        before = len(one.fresh)
        capture(self, one, writer)
        written.append((before, len(one.fresh) - before))

    monkeypatch.setattr(checkpointer, "PacedSlices", Steps)
    monkeypatch.setattr(Checkpointer, "_capture", measured)
    await cluster.node.checkpoint()
    (ahead, at_once) = max(written)
    assert ahead >= 2 * BLOCKS, "the changed blocks are written again"
    assert at_once <= CHANGED_FEW


async def test_a_checkpoint_ends_though_every_block_changes_all_the_time(
    cluster: RestartableNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await a_fifo_queue(cluster)

    received: list[api.ReceivedMessage] = []

    class Steps:
        async def step(self) -> None:
            if changing:
                received.extend(await cluster.receive(queue))

    monkeypatch.setattr(checkpointer, "PacedSlices", Steps)
    changing = True
    await cluster.node.checkpoint()
    changing = False
    await cluster.restart()
    assert len(received) > GROUPS
    assert (await cluster.count(queue)).in_flight == len(received)


async def test_a_receive_of_a_group_reads_few_messages_ahead(
    cluster: RestartableNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages are far apart, and behind each one are those of other groups."""
    queue = await a_fifo_queue(cluster)
    await cluster.restart()
    log = cluster.incarnation.log
    read_many = log.read_many
    sizes: list[int] = []

    async def counted(positions: Sequence[int]) -> Any:
        sizes.append(len(positions))
        return await read_many(positions)

    monkeypatch.setattr(log, "read_many", counted)
    groups = [message.group for message in await cluster.receive(queue)]
    assert groups == ["g0"] * BLOCKS + ["g1"] * (10 - BLOCKS)
    for _ in range(PREFETCH_EACH_MIN // 2):
        assert len(await cluster.receive(queue)) == 10
    assert len(sizes) < PREFETCH_EACH_MIN // 2, "what was read ahead is received next"
    assert all(size <= 10 + max(PREFETCH_MESSAGES, 10 * PREFETCH_EACH_MIN) for size in sizes)


@node_with(checkpoint_segments=1000)
async def test_compaction_may_pause_after_each_message(
    cluster: RestartableNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await cluster.queue(1)
    for _ in range(40):
        await cluster.send(queue, *["x" * 5000] * 10)
    log = cluster.incarnation.log
    events: list[str] = []
    write = PartitionWriter.write

    class Steps:
        async def step(self) -> None:
            events.append("step")

    def noted(self: PartitionWriter, *arguments: Any, **options: Any) -> None:
        events.append("write")
        write(self, *arguments, **options)

    monkeypatch.setattr(compaction, "LIVE_SHARE", 0)  # every segment counts as sparse
    monkeypatch.setattr(compaction, "Slices", Steps)
    monkeypatch.setattr(PartitionWriter, "write", noted)
    assert cluster.node._checkpointer is not None
    assert await cluster.node._checkpointer._compaction.run(log.log_id, log.next_segment, eager=True)
    assert events.count("write") > 100
    assert "write write" not in " ".join(events)

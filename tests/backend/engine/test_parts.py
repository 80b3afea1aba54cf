"""Single parts of the engine: timers, tokens, ids, memory, snapshots."""

import random
import tracemalloc
import uuid
from typing import Any

import msgspec
import pytest

from backend.engine import records, snapshot
from backend.engine.blocks import Block
from backend.engine.fold import SEGMENT_SHIFT, Fold
from backend.engine.ids import message_id, message_ids, pack_id, salt_of, unpack_id
from backend.engine.receipt_handles import Handles
from backend.engine.records import Message, UnknownRecord, decode_head, encode_head
from backend.engine.timers import NEVER, Timers
from backend.engine.tokens import Tokens
from tests.backend.engine.machine import MemoryChunks, PartitionMachine, holding


def test_timers_fire_in_order_and_never_early() -> None:
    rng = random.Random(1)
    timers = Timers()
    expected = sorted((rng.randrange(100_000), number) for number in range(2000))
    for due, number in rng.sample(expected, len(expected)):
        timers.add(due, number)
    fired: list[tuple[int, int]] = []
    now = 0
    while timers.next_due() != NEVER:
        now = max(now + rng.randrange(1, 700), timers.next_due())
        batch = list(timers.pop_due(now))
        assert all(due <= now for due, _ in batch)
        fired += batch
        assert timers.next_due() > now
    assert fired == expected
    assert timers.count == 0


def test_timers_added_while_others_fire() -> None:
    timers = Timers()
    timers.add(10, 1)
    fired = []
    for due, number in timers.pop_due(1000):
        fired.append((due, number))
        if number < 5:
            timers.add(due + 100, number + 1)
    assert fired == [(10, 1), (110, 2), (210, 3), (310, 4), (410, 5)]


def test_tokens_are_forgotten_to_the_millisecond() -> None:
    tokens = Tokens()
    for number in range(3000):
        tokens.remember(number.to_bytes(16, "big"), number + 1, 1000 + number)
    tokens.expire(999)
    assert len(tokens) == 3000
    tokens.expire(2999)
    assert len(tokens) == 1000
    assert tokens.get((1999).to_bytes(16, "big"), 2999) is None
    assert tokens.get((2000).to_bytes(16, "big"), 2999) == 2001
    assert tokens.get((2000).to_bytes(16, "big"), 3000) is None
    assert tokens.next_expiry == 3000
    tokens.expire(10_000)
    assert len(tokens) == 0
    assert not tokens.chunks()


def test_a_token_that_is_looked_up_late_has_expired_without_a_sweep() -> None:
    tokens = Tokens()
    tokens.remember(b"a" * 16, 1, 1000, b"1" * 16)
    tokens.remember(b"b" * 16, 2, 2000, b"2" * 16)
    assert tokens.find(b"a" * 16, 999) == (1, b"1" * 16)
    assert tokens.find(b"a" * 16, 1000) is None
    tokens.remember(b"a" * 16, 3, 3000, b"3" * 16)
    tokens.expire(2000)
    assert tokens.find(b"a" * 16, 2999) == (3, b"3" * 16)
    assert len(tokens) == 1


def test_tokens_that_arrive_out_of_order_expire_each_at_its_own_time() -> None:
    tokens = Tokens()
    ends = random.Random(3).sample(range(1000, 4000), 3000)
    for end in ends:
        tokens.remember(end.to_bytes(16, "big"), end, end)
    for now in (999, 1000, 2500, 3998):
        tokens.expire(now)
        live = {end for end in ends if tokens.get(end.to_bytes(16, "big"), now) is not None}
        assert live == {end for end in ends if end > now}
    tokens.expire(3999)
    assert not tokens.chunks()


def test_message_ids_are_of_their_queue() -> None:
    """Two services may use the same partition and message numbers; their queues' keys differ."""
    salts = [salt_of(key) for key in (b"a" * 16, b"b" * 16)]
    own, others = ({message_id(1, number, salt) for number in range(1, 1000)} for salt in salts)
    assert len(own) == 999
    assert not own & others


@pytest.mark.parametrize(
    ("partition", "number", "text"),
    [
        (1, 1, "39f0d581-c5f1-48f3-96a8-813885866ffa"),
        (7, (3 << 40) + 5, "48e3f672-9423-45c2-be16-671eee0699a0"),
        ((1 << 63) - 1, (1 << 64) - 1, "12ce09b9-bd5d-4e14-a957-7ec785866ffb"),
    ],
)
def test_message_ids_stay_the_same(partition: int, number: int, text: str) -> None:
    """A receive computes the id again that an earlier release has answered."""
    assert message_id(partition, number, salt_of(b"k" * 16)) == text


def test_ids_of_several_messages_are_those_of_each() -> None:
    salt = salt_of(b"k" * 16)
    numbers = [1, 2, (3 << 40) + 5, (1 << 63) + 7, (1 << 64) - 1]
    for partition in (1, 7, (1 << 63) - 1):
        for count in range(1, len(numbers) + 1):
            assert message_ids(partition, numbers[:count], salt) == [
                message_id(partition, number, salt) for number in numbers[:count]
            ]


def test_receipt_handles_stay_the_same() -> None:
    """A handle that an earlier release has issued is still valid."""
    handles, text = Handles(7, b"k" * 16), "AQAAAAAAAAAHAAADAAAAAAUAAAACAAABi8/laAAwGkEyKWMsQCalIx0I"
    assert handles.issue((3 << 40) + 5, 2, 1_700_000_000_000) == text
    assert handles.read(text) == ((3 << 40) + 5, 2, 1_700_000_000_000)


def test_message_ids_are_uuids_that_never_repeat() -> None:
    seen = set()
    for partition in (1, 2, 1 << 40):
        for number in [*range(1, 2000), *((epoch << 40) + 1 for epoch in range(1, 2000))]:
            text = message_id(partition, number, salt_of(b"k" * 16))
            assert uuid.UUID(text).version == 4
            assert uuid.UUID(text).variant == uuid.RFC_4122
            assert unpack_id(pack_id(text)) == text
            seen.add(text)
    assert len(seen) == 3 * 2 * 1999


@pytest.mark.parametrize(
    "record",
    [
        Message(7, 5, 6, "g", b"t" * 16, b"i" * 16, "arn", 3, 4, 2, b"r" * 32),
        records.RetryAnswered(7, b"r" * 32),
        records.MessagesReceived([1, 2], 9, "attempt"),
        records.VisibilityChanged([(1, 2)]),
        records.TransferOut([(1, 2)], 3, 4, True),
        records.MoveTaskEnded("t", "FAILED", "why"),
    ],
)
def test_heads_survive_their_bytes(record: records.Record) -> None:
    assert decode_head(record.KIND, encode_head(record)) == record


def test_a_later_version_may_append_members() -> None:
    longer = msgspec.msgpack.encode([[1, 2], 99, None, "something new"])
    assert decode_head(records.MessagesReceived.KIND, longer) == records.MessagesReceived([1, 2], 99)
    with pytest.raises(UnknownRecord):
        decode_head(99, longer)
    with pytest.raises(UnknownRecord):
        decode_head(records.MessagesReceived.KIND, b"\xc1")


@pytest.mark.parametrize(("fifo", "bytes_max"), [(False, 40), (True, 80)])
def test_a_waiting_message_costs_bytes_not_objects(fifo: bool, bytes_max: int) -> None:
    queue = PartitionMachine(fifo=fifo)
    fold = queue.fold
    count = 200_000
    fold.open(1)
    tracemalloc.start()
    for place in range(count):
        group = f"g{place % 1000}" if fifo else None
        fold.apply(Message(fold.next_number, queue.now, group=group), queue.now, queue.position + place)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used / count <= bytes_max


@pytest.mark.parametrize("fifo", [False, True])
async def test_a_snapshot_reads_back_as_what_it_was(fifo: bool) -> None:
    rng = random.Random(3)
    queue = PartitionMachine(fifo=fifo, retention_seconds=3600)
    for step in range(3000):
        queue.pass_time(rng.random())
        choice = rng.random()
        if choice < 0.5:
            group = f"g{rng.randrange(7)}" if fifo or rng.random() < 0.3 else None
            token = rng.randbytes(16) if rng.random() < 0.5 else None
            queue.send(f"m{step}", group=group, token=token, delay=None if fifo else rng.choice([0, 0, 30]))
        elif choice < 0.8:
            claims = queue.claim(rng.randrange(1, 11), rng.randrange(0, 60), attempt=f"a{step}" if fifo else None)
            for claim in claims:
                if rng.random() < 0.6:
                    queue.delete(claim)
                elif rng.random() < 0.3:
                    queue.change(claim, rng.randrange(0, 100))
    queue.fold.advance(queue.now)
    fold = await MemoryChunks().copy(queue.fold)
    assert snapshot.describe(fold) == snapshot.describe(queue.fold)
    assert snapshot.describe(queue.replayed()) == snapshot.describe(queue.fold)
    assert fold.due <= queue.fold.due or fold.due > queue.now
    for _ in range(40):
        queue.now += 5000
        for one in (fold, queue.fold):
            one.advance(queue.now)
        assert snapshot.describe(fold) == snapshot.describe(queue.fold)


@pytest.mark.parametrize("grouped", [False, True])
async def test_blocks_that_wait_as_a_whole_are_read_alike(grouped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks restored together have the same lists and sums as those restored one by one."""
    queue = PartitionMachine(retention_seconds=3600)
    for step in range(5000):
        queue.position += (step % 1500 == 0) << SEGMENT_SHIFT  # blocks within a segment, and across its end
        queue.send("x" * (step % 7), group="g" if grouped and step < 1023 else None)
        queue.pass_time(0.01)
    if not grouped:  # with groups, the first whole block has to be unchanged when they start to take turns
        for claim in queue.claim(3, 30):
            queue.delete(claim)

    def in_order(fold: Fold) -> list[int]:
        found = list(fold.order.candidates(queue.now))
        return sorted(found) if grouped else found  # groups take turns, and a restored queue may start with any

    whole: list[int] = []
    together = snapshot._restore_waiting

    def noted(fold: Fold, block: Block) -> None:
        whole.append(block.base)
        together(fold, block)

    monkeypatch.setattr(snapshot, "_restore_waiting", noted)
    fold = await MemoryChunks().copy(queue.fold)
    assert len(whole) >= 3, "else nothing is tested"
    assert snapshot.describe(fold) == snapshot.describe(queue.fold)
    assert (fold.visible, fold.stored_bytes, fold.segments) == (
        queue.fold.visible,
        queue.fold.stored_bytes,
        queue.fold.segments,
    )
    assert fold.default_lane.live == queue.fold.default_lane.live
    assert {base: (block.live, block.oldest) for base, block in fold.blocks.items()} == {
        base: (block.live, min(block.sent[at] for at, state in enumerate(block.states) if state))
        for base, block in queue.fold.blocks.items()
    }
    assert in_order(fold) == in_order(queue.fold)
    for number in range(queue.fold.next_number - 3000, queue.fold.next_number - 1000, 7):  # from the middle of lists
        for one in (fold, queue.fold):
            one.apply(records.Deleted([number]), queue.now)
    assert in_order(fold) == in_order(queue.fold)
    assert snapshot.describe(fold) == snapshot.describe(queue.fold)


async def test_a_snapshot_of_a_version_that_counted_no_bytes_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = holding("old")
    real = snapshot._encoded_block

    def older(fold: Fold, block: Block) -> list[Any]:
        piece = list(msgspec.structs.astuple(real(fold, block)))
        del piece[piece.index(block.sizes.tobytes()) :]
        return piece

    with monkeypatch.context() as patch:
        patch.setattr(snapshot, "_encoded_block", older)
        fold = await MemoryChunks().copy(queue.fold)
    assert (fold.visible, fold.stored_bytes) == (1, 0)
    number = fold.next_number
    fold.apply(Message(number, queue.now), queue.now, queue.position, 5)
    assert fold.stored_bytes == 5
    fold.apply(records.Copied(number - 1, queue.now), queue.now, queue.position, 3)
    assert fold.stored_bytes == 8, "counted from when the cleaner writes it again"
    fold.apply(records.Deleted([number - 1, number]), queue.now)
    assert fold.stored_bytes == 0


async def test_a_snapshot_writes_only_what_has_changed() -> None:
    queue = PartitionMachine()
    for _ in range(50):
        queue.send(*("x" * 10 for _ in range(100)))
    before = MemoryChunks()
    await before.copy(queue.fold)
    assert len(before.stored) >= 5
    queue.send("one more")
    fresh: list[Any] = []
    chunks = MemoryChunks()
    snapshot.capture(queue.fold, chunks.add, fresh)
    assert len(chunks.stored) == 2, "one block, and the partition's own piece"
    assert [holder for holder, _ in fresh] == [max(queue.fold.blocks.values(), key=lambda block: block.base)]
    snapshot.capture(queue.fold, chunks.add, fresh)
    assert len(chunks.stored) == 3, "nothing has changed: the partition's own piece only"


async def test_chunks_written_ahead_are_written_again_only_if_changed() -> None:
    queue = PartitionMachine()
    for _ in range(50):
        queue.send(*("x" * 10 for _ in range(100)))
    chunks = MemoryChunks()
    fresh: list[Any] = []
    for step, _ in enumerate(snapshot.capture_ahead(queue.fold, chunks.add, fresh)):
        if step == 3:  # during the snapshot: blocks already written, not yet written, and new
            queue.delete(*queue.claim(10, 60))
            queue.send("late")
    written = len(chunks.stored)
    ref, _ = snapshot.capture(queue.fold, chunks.add, fresh)
    assert len(chunks.stored) - written == 2, "the first block has changed since, and the partition's own piece"
    assert len(fresh) == len(chunks.stored) - 1
    fold, _ = await snapshot.read(await snapshot.own_chunk(ref, chunks.fetch), chunks.fetch)
    assert snapshot.describe(fold) == snapshot.describe(queue.fold)


def test_timers_that_mean_nothing_any_more_are_thrown_away() -> None:
    queue = holding("a")
    for _ in range(20_000):
        (claim,) = queue.claim(visibility=3600)
        queue.change(claim, 0)
    assert queue.fold.timers.count < 10_000

"""Retry tokens: a repeated send stores nothing and gets the first one's answer, whatever happened in between."""

import msgspec
import pytest

from backend.api import NewMessage, TokenReused
from backend.engine.queue import QueueCommands
from backend.engine.receipt_handles import Handles
from backend.engine.records import Message, decode_head
from backend.engine.snapshot import describe
from backend.engine.tokens import CHUNK_TOKENS
from tests.backend.engine.machine import KEY, SALT, MemoryChunks, PartitionMachine
from tests.backend.engine.test_cases import retry


def test_the_same_token_with_another_call_is_refused_and_changes_nothing() -> None:
    queue = PartitionMachine()
    queue.send("a", retry=retry(1))
    before, state = len(queue.journal), describe(queue.fold)
    with pytest.raises(TokenReused):
        queue.send_all([NewMessage(b"new", retry=retry(2)), NewMessage(b"other", retry=retry(1, b"other"))])
    assert len(queue.journal) == before
    assert describe(queue.fold) == state
    assert not queue.send("new", retry=retry(2))[0].duplicate


def test_of_a_call_that_was_cut_in_half_the_missing_ones_are_stored() -> None:
    queue = PartitionMachine()
    messages = [NewMessage(b"%d" % at, retry=retry(at)) for at in range(5)]
    first = queue.send_all(messages[:2])
    answers = queue.send_all(messages)
    assert [answer.duplicate for answer in answers] == [True, True, False, False, False]
    assert [answer.number for answer in answers[:2]] == [answer.number for answer in first]
    assert queue.receive() == ["0", "1", "2", "3", "4"]


def test_deduplication_ids_and_retry_tokens_do_not_meet() -> None:
    queue = PartitionMachine(fifo=True)
    same = (1).to_bytes(16, "big")
    queue.send("a", group="g", token=same)
    assert not queue.send("b", group="g", token=b"d" * 16, retry=retry(1))[0].duplicate
    assert not queue.send("c", group="g", token=b"e" * 16, retry=b"d" * 16 + bytes(16))[0].duplicate


async def test_a_checkpoint_holds_the_tokens_and_writes_full_chunks_once() -> None:
    queue = PartitionMachine()
    count = 2 * CHUNK_TOKENS + 10
    answers = [queue.send("x", retry=retry(at, b"%d" % at))[0] for at in range(count)]
    chunks = MemoryChunks()
    fold = await chunks.copy(queue.fold)
    full = [chunk.ref for chunk in queue.fold.retries.chunks()[:2]]
    assert describe(fold) == describe(queue.fold)
    fold.open(2)
    after = QueueCommands(fold, Handles(1, KEY), SALT)
    for at in (0, CHUNK_TOKENS - 1, CHUNK_TOKENS, count - 1):
        written, (again,) = after.send([NewMessage(b"x", retry=retry(at, b"%d" % at))], queue.now)
        assert not written
        assert again.number == answers[at].number
        with pytest.raises(TokenReused):
            after.send([NewMessage(b"y", retry=retry(at, b"another"))], queue.now)
    queue.send("y", retry=retry(count))
    await chunks.copy(queue.fold)
    assert [chunk.ref for chunk in queue.fold.retries.chunks()[:2]] == full


def test_expired_tokens_leave_nothing_behind() -> None:
    queue = PartitionMachine()
    for at in range(3 * CHUNK_TOKENS // 2):
        queue.send("x", retry=retry(at))
        queue.pass_time(0.01)
    queue.pass_time(61)
    queue.fold.advance(queue.now)
    assert len(queue.fold.retries) == 0
    assert not queue.fold.retries.chunks()
    assert describe(queue.replayed()) == describe(queue.fold)


def test_expired_tokens_are_removed_while_many_arrive() -> None:
    queue = PartitionMachine()
    for at in range(2_000):
        queue.send("x", retry=retry(at))
        queue.pass_time(0.1)
        assert len(queue.fold.retries) <= 602  # those of a minute, plus one step's


def test_heads_of_before_there_were_retry_tokens_are_read() -> None:
    old = msgspec.msgpack.encode([7, 5, 6, "g", b"t" * 16, None, None, 0, 0, 0])
    assert decode_head(Message.KIND, old) == Message(7, 5, 6, "g", b"t" * 16)

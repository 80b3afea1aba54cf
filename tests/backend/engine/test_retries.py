"""Retry tokens: a repeated send stores nothing and gets the first one's answer, whatever happened in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import msgspec
import pytest

from backend.api import DeadLetter, NewMessage, TokenReused
from backend.engine import snapshot
from backend.engine.blocks import Ref
from backend.engine.fold import Fold
from backend.engine.queue import QueueCommands
from backend.engine.receipt_handles import Handles
from backend.engine.records import Dropped, Message, decode_head
from backend.engine.snapshot import describe
from backend.engine.tokens import CHUNK_TOKENS
from tests.backend.engine.machine import KEY, SALT, PartitionMachine


def retry(token: int, call: bytes = b"first") -> bytes:
    return token.to_bytes(16, "big") + call.ljust(16)


@pytest.mark.parametrize("fifo", [False, True])
def test_a_repeat_is_answered_with_the_first_answer(fifo: bool) -> None:
    queue = PartitionMachine(fifo=fifo)
    group = "g" if fifo else None
    (first,) = queue.send("a", group=group, retry=retry(1))
    queue.pass_time(59.999)
    (again,) = queue.send("a", group=group, retry=retry(1))
    assert (again.message_id, again.number) == (first.message_id, first.number)
    assert again.duplicate
    assert not first.duplicate
    assert queue.receive() == ["a"]
    assert queue.counters() == (0, 1, 0)


def test_the_window_begins_with_the_first_send() -> None:
    queue = PartitionMachine(retry_window_seconds=60)
    queue.send("a", retry=retry(1))
    queue.pass_time(40)
    queue.send("a", retry=retry(1))
    queue.pass_time(19.999)
    assert queue.send("a", retry=retry(1))[0].duplicate
    queue.pass_time(0.001)
    assert not queue.send("a", retry=retry(1))[0].duplicate
    assert queue.receive() == ["a", "a"]


def test_the_window_is_the_one_of_the_settings() -> None:
    queue = PartitionMachine(retry_window_seconds=5, token_window_seconds=300)
    queue.send("a", retry=retry(1))
    queue.write(queue.queue.configure(msgspec.structs.replace(queue.settings, version=2, retry_window_seconds=20)))
    queue.pass_time(5)
    (second,) = queue.send("a", retry=retry(1))
    assert not second.duplicate
    queue.pass_time(19.999)
    assert queue.send("a", retry=retry(1))[0].number == second.number


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


async def _read(ref: Ref, fetch: snapshot.Fetch) -> tuple[Fold, list[Ref]]:
    return await snapshot.read(ref, fetch)


def _deleted(queue: PartitionMachine) -> None:
    queue.delete(*queue.claim())


def _purged(queue: PartitionMachine) -> None:
    queue.write(queue.queue.purge(1))


def _expired(queue: PartitionMachine) -> None:
    queue.write(
        queue.queue.configure(msgspec.structs.replace(queue.settings, version=2, retention_seconds=1))
    )  # fmt: skip
    queue.pass_time(10)


def _dead(queue: PartitionMachine) -> None:
    dead = PartitionMachine(partition=2, fifo=queue.settings.fifo)
    (claim,) = queue.claim()
    queue.change(claim, 0)
    queue.claim(dead_letter=DeadLetter(1, dead.target, queue.settings.fifo))
    queue.hand_over(dead)
    assert dead.receive() == ["a"]


@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("what_happens", [_deleted, _purged, _expired, _dead])
@pytest.mark.parametrize("replayed", [False, True])
def test_whatever_has_become_of_the_message(
    fifo: bool, what_happens: Callable[[PartitionMachine], None], replayed: bool
) -> None:
    queue = PartitionMachine(fifo=fifo)
    group, token = ("g", b"d" * 16) if fifo else (None, None)
    (first,) = queue.send("a", group=group, token=token, retry=retry(1))
    what_happens(queue)
    if replayed:
        queue.fold = queue.replayed()
        queue.queue = QueueCommands(queue.fold, Handles(1, KEY), SALT)
    before = len(queue.journal)
    (again,) = queue.send("a", group=group, token=token, retry=retry(1))
    assert (again.message_id, again.number) == (first.message_id, first.number)
    assert len(queue.journal) == before
    assert queue.receive() == []


def test_a_twin_by_deduplication_id_keeps_its_answer_beyond_that_ids_window() -> None:
    queue = PartitionMachine(fifo=True, token_window_seconds=300)
    (first,) = queue.send("a", group="g", token=b"d" * 16, retry=retry(1))
    queue.pass_time(299)
    (twin,) = queue.send("a", group="g", token=b"d" * 16, retry=retry(2))
    assert (twin.number, twin.duplicate) == (first.number, True)
    queue.pass_time(2)
    assert queue.send("a", group="g", token=b"d" * 16, retry=retry(2)) == [twin]
    assert not queue.send("a", group="g", token=b"d" * 16)[0].duplicate
    assert describe(queue.replayed()) == describe(queue.fold)


def test_deduplication_ids_and_retry_tokens_do_not_meet() -> None:
    queue = PartitionMachine(fifo=True)
    same = (1).to_bytes(16, "big")
    queue.send("a", group="g", token=same)
    assert not queue.send("b", group="g", token=b"d" * 16, retry=retry(1))[0].duplicate
    assert not queue.send("c", group="g", token=b"e" * 16, retry=b"d" * 16 + bytes(16))[0].duplicate


def test_a_checkpoint_holds_the_tokens_and_writes_full_chunks_once() -> None:
    queue = PartitionMachine()
    count = 2 * CHUNK_TOKENS + 10
    answers = [queue.send("x", retry=retry(at, b"%d" % at))[0] for at in range(count)]
    pieces: list[bytes] = []

    def add(piece: bytes) -> Ref:
        pieces.append(piece)
        return (1, 1, len(pieces) - 1, len(piece), 0)

    async def fetch(refs: list[Ref]) -> AsyncGenerator[bytes, None]:
        for ref in refs:
            yield pieces[ref[2]]

    ref, hanging = snapshot.take(queue.fold, add, [])
    full = [chunk.ref for chunk in queue.fold.retries.chunks()[:2]]
    fold, refs = asyncio.run(_read(ref, fetch))
    assert describe(fold) == describe(queue.fold)
    assert sorted(refs) == sorted(hanging)
    fold.open(2)
    after = QueueCommands(fold, Handles(1, KEY), SALT)
    for at in (0, CHUNK_TOKENS - 1, CHUNK_TOKENS, count - 1):
        written, (again,) = after.send([NewMessage(b"x", retry=retry(at, b"%d" % at))], queue.now)
        assert not written
        assert again.number == answers[at].number
        with pytest.raises(TokenReused):
            after.send([NewMessage(b"y", retry=retry(at, b"another"))], queue.now)
    queue.send("y", retry=retry(count))
    snapshot.take(queue.fold, add, [])
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


def test_tokens_that_come_fast_are_thrown_out_while_more_come() -> None:
    queue = PartitionMachine()
    for at in range(2_000):
        queue.send("x", retry=retry(at))
        queue.pass_time(0.1)
        assert len(queue.fold.retries) <= 602  # those of a minute, plus one step's


def test_a_dropped_queue_forgets_its_tokens() -> None:
    queue = PartitionMachine()
    queue.send("a", retry=retry(1))
    queue.write([Dropped(1)])
    assert len(queue.fold.retries) == 0


def test_heads_of_before_there_were_retry_tokens_are_read() -> None:
    old = msgspec.msgpack.encode([7, 5, 6, "g", b"t" * 16, None, None, 0, 0, 0])
    assert decode_head(Message.KIND, old) == Message(7, 5, 6, "g", b"t" * 16)

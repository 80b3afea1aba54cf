"""Limits of a queue's length."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from backend.api import DeadLetter, NewMessage, QueueFull
from backend.engine.snapshot import describe
from tests.backend.engine.machine import PartitionMachine


def test_no_more_messages_than_the_limit_are_taken() -> None:
    queue = PartitionMachine(messages_most=3)
    queue.send("a", "b")
    with pytest.raises(QueueFull, match=r"^The queue stores 2 messages, and its HoldfastMaximumMessages is 3\.$"):
        queue.send("c", "d")
    assert queue.counters() == (2, 0, 0), "nothing of a call that is refused is stored"
    queue.send("c", delay=60)
    (claim,) = queue.claim(most=1)
    with pytest.raises(QueueFull):
        queue.send("d")
    queue.delete(claim)
    queue.send("d")
    assert queue.counters() == (2, 0, 1)


def test_bytes_are_taken_until_the_limit_is_reached() -> None:
    queue = PartitionMachine(bytes_most=1000)
    queue.send("x" * 5000)
    with pytest.raises(QueueFull, match=r"^The queue stores 5000 bytes, and its HoldfastMaximumBytes is 1000\.$"):
        queue.send("y")
    (claim,) = queue.claim()
    queue.delete(claim)
    queue.send("x" * 999)
    with pytest.raises(QueueFull):
        queue.send("y", "z")
    queue.send("y")
    with pytest.raises(QueueFull):
        queue.send("z")


def test_a_repeat_is_answered_by_a_full_queue_too() -> None:
    queue = PartitionMachine(fifo=True, messages_most=1)
    message = NewMessage(b"a", None, "g", b"t" * 16, retry=b"r" * 32)
    (first,) = queue.send_all([message])
    (second,) = queue.send_all([message])
    assert (second.duplicate, second.number) == (True, first.number)
    twin = NewMessage(b"a", None, "g", b"t" * 16, retry=b"s" * 32)
    (third,) = queue.send_all([twin])
    assert (third.duplicate, third.number) == (True, first.number)
    with pytest.raises(QueueFull):
        queue.send("b", group="g", token=b"u" * 16)


def test_dead_letters_pass_the_limits() -> None:
    dead = PartitionMachine(partition=2, messages_most=1, bytes_most=1)
    dead.send("there already")
    queue = PartitionMachine()
    queue.send("a", "b")
    queue.claim(visibility=0)
    assert queue.claim(dead_letter=DeadLetter(1, dead.target)) == []
    queue.hand_over(dead)
    assert dead.counters() == (3, 0, 0)
    with pytest.raises(QueueFull, match="stores 3 messages"):
        dead.send("c")


def test_limits_change_with_the_settings_and_survive_a_restart() -> None:
    queue = PartitionMachine()
    queue.send("a", "b", "c")
    queue.write(queue.queue.configure(replace(queue.settings, version=2, messages_most=3)))
    with pytest.raises(QueueFull):
        queue.send("d")
    again = queue.replayed()
    assert again.limited
    assert describe(again) == describe(queue.fold)
    queue.write(queue.queue.configure(replace(queue.settings, version=3)))
    queue.send("d")

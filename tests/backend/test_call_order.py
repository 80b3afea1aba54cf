"""The order of calls for one partition of which some have to wait."""

from __future__ import annotations

import asyncio

import pytest

from backend.call_order import CallOrder, Turn


class _Calls:
    """Calls that note when they begin, and end when the test says so."""

    def __init__(self) -> None:
        self.order = CallOrder()
        self.begun: list[str] = []
        self.refusals: dict[str, asyncio.Event] = {}
        self.ends: dict[str, asyncio.Event] = {}
        self.tasks: list[asyncio.Task[None]] = []

    def start(self, name: str, partition: int = 1, *, holds: bool = False, seconds: float | None = None) -> None:
        """Start a call; it may be refused at first, and may have to begin within some time."""
        self.refusals[name], self.ends[name] = asyncio.Event(), asyncio.Event()
        self.tasks.append(asyncio.create_task(self._call(name, partition, holds, seconds)))

    async def _call(self, name: str, partition: int, holds: bool, seconds: float | None) -> None:
        deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
        with self.order.turn(partition) as turn:
            if turn.is_blocked:
                await turn.wait(deadline)
            self.begun.append(name)
            if holds:
                await self.refusals[name].wait()
                await turn.hold(deadline)
                self.begun.append(f"{name} again")
            await self.ends[name].wait()

    async def settled(self) -> list[str]:
        """Let everything happen that can happen now; return the attempts so far."""
        for _ in range(20):
            await asyncio.sleep(0)
        return self.begun

    async def refuse(self, name: str) -> list[str]:
        self.refusals[name].set()
        return await self.settled()

    async def end(self, name: str) -> list[str]:
        self.ends[name].set()
        return await self.settled()


@pytest.fixture
def calls() -> _Calls:
    return _Calls()


async def test_calls_begin_at_once_and_end_in_any_order(calls: _Calls) -> None:
    for name in "abc":
        calls.start(name)
    assert await calls.settled() == ["a", "b", "c"]
    for name in "bca":
        assert calls.order.is_busy(1)
        await calls.end(name)
    assert not calls.order.is_busy(1)


async def test_no_call_begins_behind_one_that_is_repeated(calls: _Calls) -> None:
    calls.start("a")
    calls.start("b", holds=True)
    calls.start("c", holds=True)
    assert await calls.settled() == ["a", "b", "c"]
    await calls.refuse("c")
    await calls.refuse("b")
    calls.start("d")
    calls.start("e")
    assert await calls.settled() == ["a", "b", "c"], "b waits for a, c for b, and both let nobody pass"
    assert (await calls.end("a"))[3:] == ["b again"]
    assert (await calls.end("b"))[4:] == ["c again"]
    calls.start("f")
    assert (await calls.end("c"))[5:] == ["d", "e", "f"], "from here on calls are under way together"


async def test_another_partition_is_not_concerned(calls: _Calls) -> None:
    calls.start("a", holds=True)
    await calls.settled()
    await calls.refuse("a")
    calls.start("b")
    calls.start("c", partition=2)
    assert await calls.settled() == ["a", "a again", "c"]


async def test_a_call_that_was_woken_is_not_overtaken_by_one_that_arrives(calls: _Calls) -> None:
    calls.start("a", holds=True)
    await calls.settled()
    await calls.refuse("a")
    calls.start("b")
    await calls.settled()
    calls.ends["a"].set()
    while calls.order._lines[1].held > 1:
        await asyncio.sleep(0)  # until the turn of "b" is woken, and has not run
    calls.start("c")
    assert (await calls.settled())[2:] == ["b", "c"]


async def test_a_call_may_fail_or_give_up(calls: _Calls) -> None:
    calls.start("a", holds=True)
    await calls.settled()
    await calls.refuse("a")
    calls.start("b")
    calls.start("late", seconds=0.0)
    calls.start("c")
    await calls.settled()
    with pytest.raises(TimeoutError):
        await calls.tasks[2]
    calls.tasks[1].cancel()
    calls.tasks[0].cancel()
    assert (await calls.settled())[2:] == ["c"]
    await calls.end("c")
    assert not calls.order.is_busy(1)


async def test_a_failure_is_reported_to_later_calls_only() -> None:
    order = CallOrder()
    with order.turn(1) as first, order.turn(1) as second, order.turn(1) as third, order.turn(2) as other:
        second.fail_later()
        assert [one.is_after_failure for one in (first, second, third, other)] == [False, False, True, False]
        with order.turn(1) as fourth:
            assert not fourth.is_after_failure, "its caller can know"


async def test_the_first_one_holds_its_turn_without_a_wait(calls: _Calls) -> None:
    with calls.order.turn(1) as turn:
        await turn.hold(deadline=0.0)
        assert isinstance(turn, Turn)
        with calls.order.turn(1) as later:
            assert later.is_blocked


async def test_a_call_to_another_receiver_waits_for_those_under_way() -> None:
    """The owner of a shard may become known while an earlier call is on its way to the former one."""
    order, former, successor = CallOrder(), object(), object()
    first = order.turn(1)
    assert first.calls(former)
    with order.turn(1) as second:
        assert second.calls(former)
    with order.turn(1) as third:
        assert not third.calls(successor)
        held = asyncio.create_task(third.hold())
        await asyncio.sleep(0)
        assert not held.done()
        first.__exit__(None, None, None)
        await held
        assert third.calls(successor)
    assert not order.is_busy(1)

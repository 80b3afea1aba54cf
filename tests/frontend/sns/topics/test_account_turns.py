"""Turns of accounts: rounds, cancelled waits, and the bound on those that wait."""

import asyncio

import pytest

from frontend.sns.topics import account_turns
from frontend.sns.topics.account_turns import AccountTurns
from frontend.sqs.protocol.errors import REQUEST_THROTTLED, SqsError


class Turns:
    """Turns that are taken in the order of their grants, and ended one by one."""

    def __init__(self, turns: int) -> None:
        self.turns = AccountTurns(turns)
        self.granted: list[str] = []
        self._ends: list[asyncio.Future[None]] = []

    async def wait(self, names: str) -> list[asyncio.Task[None]]:
        """Let accounts with these letters wait for turns."""
        tasks = [asyncio.create_task(self._turn(name)) for name in names]
        await asyncio.sleep(0)
        return tasks

    async def _turn(self, name: str) -> None:
        async with self.turns.turn(name):
            self.granted.append(name)
            end = asyncio.get_running_loop().create_future()
            self._ends.append(end)
            await end

    async def end(self, count: int = 1) -> str:
        """End turns; returns the accounts that have got one since."""
        before = len(self.granted)
        for _ in range(count):
            self._ends.pop(0).set_result(None)
            for _ in range(3):  # the end of one, and the start of the next
                await asyncio.sleep(0)
        return "".join(self.granted[before:])


async def test_each_account_has_one_turn_in_a_round() -> None:
    turns = Turns(1)
    await turns.wait("aaaaabbc")
    assert await turns.end(7) == "bcabaaa"


async def test_an_account_that_joins_waits_for_one_turn_of_each_other() -> None:
    turns = Turns(1)
    await turns.wait("aaaa")
    assert await turns.end() == "a"
    await turns.wait("b")
    assert await turns.end() == "b"
    assert await turns.end(2) == "aa"


async def test_accounts_that_return_at_once_delay_no_other_for_more_than_a_turn() -> None:
    turns = Turns(1)
    await turns.wait("bca")
    assert await turns.end(2) == "ca"
    await turns.wait("abc")
    for _ in range(5):
        assert sorted(await turns.end(3)) == ["a", "b", "c"]
        await turns.wait("bca")


async def test_several_turns_at_once() -> None:
    turns = Turns(2)
    await turns.wait("aaab")
    assert turns.granted == ["a", "a"]
    assert await turns.end(4) == "ba"
    await turns.wait("cc")
    assert turns.granted[-2:] == ["c", "c"]


async def test_a_cancelled_wait_passes_its_turn_on() -> None:
    turns = Turns(1)
    _, second, third, _ = await turns.wait("abcd")
    second.cancel()
    turns._ends.pop(0).set_result(None)
    while turns.turns._waiting[0][2].done() or len(turns.turns._waiting) > 1:
        await asyncio.sleep(0)
    third.cancel()  # it was granted its turn, and has not begun it
    await asyncio.wait([second, third])
    await asyncio.sleep(0)
    assert turns.granted == ["a", "d"]
    assert not turns.turns._counts
    assert await turns.end() == ""
    await turns.wait("e")
    assert turns.granted[-1] == "e"


async def test_few_of_an_account_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account_turns, "WAITING_MAX", 2)
    turns = Turns(1)
    await turns.wait("aaa")
    (refused,) = await turns.wait("a")
    with pytest.raises(SqsError, match="2 publications to topics of the account a are waiting") as raised:
        await refused
    assert raised.value.kind is REQUEST_THROTTLED
    await turns.wait("b")
    assert await turns.end(3) == "baa"

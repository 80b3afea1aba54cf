"""A client with broken connections, servers that leave or hang, and callers that cancel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from backend.api import WAIT_ENDS, NewMessage, Receive, ReceivedMessage, Unavailable
from backend.rpc.client import ClientLimits, RemoteBackend
from backend.rpc.connection import Link, NotSent
from backend.rpc.server import ServerLimits
from tests.backend.wired import SECRET, TARGET, House, until

SERVER = ServerLimits(heartbeat_seconds=0.02)
CLIENT = ClientLimits(heartbeat_seconds=0.02)
POLL = Receive(1, 30, 20)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = House(SERVER, CLIENT)
    await house.open()
    await house.connect()
    yield house
    await house.close()


def link_of(house: House) -> Link:
    assert house.remote._link is not None
    return house.remote._link


async def test_a_call_under_way_on_a_lost_connection_has_no_known_outcome(house: House) -> None:
    house.inside.hold = True
    call = asyncio.create_task(house.send("a"))
    await until(lambda: house.inside.held)
    for connection in list(house.server.connections):
        connection.cut()
    with pytest.raises(Unavailable, match="whether the call took effect is not known") as raised:
        await call
    assert not isinstance(raised.value, NotSent)
    house.inside.hold = False
    assert await house.send("b"), "another connection is made"
    assert house.inside.asked == ["send", "send"], "nothing is repeated by itself"


async def test_a_call_waits_for_a_server_that_starts(house: House) -> None:
    port = house.address.port
    await house.server.close()
    await until(lambda: not house.remote.connected)
    call = asyncio.create_task(house.send("a"))
    await asyncio.sleep(0.02)
    assert not call.done()
    await house.open(port)
    assert await call
    assert house.inside.asked == ["send"]


async def test_a_call_that_could_not_be_sent_in_time_says_so() -> None:
    house = House(SERVER, CLIENT._replace(call_seconds=0.05))
    await house.open()
    address = house.address
    await house.server.close()
    remote = await RemoteBackend.connect(address, secret=SECRET, limits=house.client_limits)
    with pytest.raises(NotSent, match="cannot be reached"):
        await remote.send(TARGET, [NewMessage(b"a")])
    with pytest.raises(NotSent):
        await remote.ready(0.05)
    await remote.close()
    with pytest.raises(NotSent, match="closed here"):
        await remote.send(TARGET, [NewMessage(b"a")])


async def test_a_call_of_a_turn_in_which_the_connection_is_lost_is_made_on_the_next(house: House) -> None:
    call = asyncio.create_task(house.send("a"))
    await asyncio.sleep(0)
    link_of(house).cut("the test has cut it")
    assert await call
    assert house.inside.asked == ["send"]


async def test_a_call_that_is_not_answered_in_time_is_cancelled_there() -> None:
    house = House(SERVER, CLIENT._replace(call_seconds=0.05))
    await house.open()
    await house.connect()
    house.inside.hold = True
    with pytest.raises(Unavailable, match="no answer in time"):
        await house.send("a")
    await until(lambda: house.inside.cancelled == 1)
    await until(lambda: link_of(house).under_way_bytes == 0)
    await house.close()


async def test_a_receive_may_take_its_wait_beside_the_time_of_a_call() -> None:
    house = House(SERVER, CLIENT._replace(call_seconds=0.05))
    await house.open()
    await house.connect()
    house.inside.hold = True
    poll = asyncio.create_task(house.remote.receive(TARGET, POLL))
    with pytest.raises(Unavailable):
        await house.send("a")
    assert not poll.done()
    house.inside.unblock()
    assert len(await poll) == 1
    await house.close()


async def waiting(house: House, command: Receive = POLL) -> asyncio.Task[list[ReceivedMessage]]:
    """Start a receive that the backend holds."""
    house.inside.hold = True
    poll = asyncio.create_task(house.remote.receive(TARGET, command))
    await until(lambda: house.inside.held)
    return poll


async def answered_but_unread(house: House, command: Receive = POLL) -> asyncio.Task[list[ReceivedMessage]]:
    """Start a receive whose answer was sent, and which its caller reads only after it resumes reading."""
    poll = await waiting(house, command)
    link_of(house)._transport.pause_reading()
    house.inside.unblock()
    (connection,) = house.server.connections
    await until(lambda: not connection._running)
    return poll


async def test_a_caller_that_leaves_cancels_its_call_there(house: House) -> None:
    poll = await waiting(house)
    poll.cancel()
    with pytest.raises(asyncio.CancelledError):
        await poll
    await until(lambda: house.inside.cancelled == 1)
    await until(lambda: link_of(house).under_way_bytes == 0)
    assert house.inside.released == []


async def test_messages_that_come_when_their_caller_has_left_are_given_back(house: House) -> None:
    """The answer and the cancellation cross on the network."""
    poll = await answered_but_unread(house)
    poll.cancel()
    with pytest.raises(asyncio.CancelledError):
        await poll
    link_of(house)._transport.resume_reading()
    await until(lambda: house.inside.released)
    assert house.inside.released == ["handle-1"]


async def test_messages_that_come_though_the_wait_has_ended_are_taken(house: House) -> None:
    poll = await answered_but_unread(house)
    poll.cancel(WAIT_ENDS)
    link_of(house)._transport.resume_reading()
    assert [message.handle for message in await poll] == ["handle-1"]
    assert house.inside.released == []


async def test_a_caller_may_leave_after_its_wait_has_ended(house: House) -> None:
    poll = await answered_but_unread(house)
    poll.cancel(WAIT_ENDS)
    await asyncio.sleep(0)
    poll.cancel()
    with pytest.raises(asyncio.CancelledError):
        await poll
    link_of(house)._transport.resume_reading()
    await until(lambda: house.inside.released)


async def test_a_wait_that_ends_as_its_connection_breaks_ends_with_nothing(house: House) -> None:
    poll = await waiting(house)
    link_of(house)._transport.pause_reading()
    poll.cancel(WAIT_ENDS)
    await asyncio.sleep(0)
    for connection in list(house.server.connections):
        connection.cut()
    link_of(house).cut("the test ends it")
    with pytest.raises(asyncio.CancelledError):
        await poll


async def test_messages_that_came_but_were_not_taken_are_given_back(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, poll = link_of(house), asyncio.create_task(house.remote.receive(TARGET, POLL))
    answered = link._answered

    def deliver(number: int, payload: memoryview) -> None:
        answered(number, payload)
        poll.cancel()
        monkeypatch.undo()

    monkeypatch.setattr(link, "_answered", deliver)
    with pytest.raises(asyncio.CancelledError):
        await poll
    await until(lambda: house.inside.released)


async def test_messages_that_come_as_the_wait_ends_are_taken(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    link, poll = link_of(house), asyncio.create_task(house.remote.receive(TARGET, POLL))
    answered = link._answered

    def deliver(number: int, payload: memoryview) -> None:
        poll.cancel(WAIT_ENDS)
        answered(number, payload)
        monkeypatch.undo()

    monkeypatch.setattr(link, "_answered", deliver)
    assert len(await poll) == 1
    assert house.inside.released == []


async def test_the_claims_of_an_attempt_wait_for_its_repetition(house: House) -> None:
    command = Receive(1, 30, 20, None, "attempt")
    poll = await answered_but_unread(house, command)
    poll.cancel()
    with pytest.raises(asyncio.CancelledError):
        await poll
    link_of(house)._transport.resume_reading()
    house.inside.hold = False
    await house.send("a")
    assert house.inside.released == []


async def test_a_server_that_hangs_is_noticed(house: House) -> None:
    house.inside.hold = True
    call = asyncio.create_task(house.send("a"))
    await until(lambda: house.inside.held)
    (connection,) = house.server.connections
    connection._transport.pause_reading()
    assert connection._timer is not None
    connection._timer.cancel()
    with pytest.raises(Unavailable, match="nothing was heard for"):
        await call


async def test_nobody_notices_when_a_server_is_replaced(house: House) -> None:
    """During a rolling restart callers see no error, and each call takes effect once."""
    stop, answers = False, 0

    async def keep_sending() -> None:
        nonlocal answers
        while not stop:
            await house.send("a")
            answers += 1

    callers = [asyncio.create_task(keep_sending()) for _ in range(8)]
    for _ in range(3):
        enough = answers + 100
        await until(lambda enough=enough: answers >= enough)
        port = house.address.port
        await house.server.drain(30)
        await house.open(port)
    enough = answers + 100
    await until(lambda: answers >= enough)
    stop = True
    await asyncio.gather(*callers)
    assert len(house.inside.asked) == answers


async def test_what_is_under_way_when_a_server_drains_is_answered(house: House) -> None:
    house.inside.hold = True
    call = asyncio.create_task(house.send("a"))
    await until(lambda: house.inside.held)
    draining = asyncio.create_task(house.server.drain(30))
    await until(lambda: not house.remote.connected)
    later = asyncio.create_task(house.send("b"))
    house.inside.unblock()
    assert (await call)[0].message_id == "id-1"
    await draining
    assert not later.done(), "a new call waits for the next server"
    later.cancel()
    with pytest.raises(asyncio.CancelledError):
        await later


async def test_a_drain_does_not_wait_for_ever(house: House) -> None:
    house.inside.hold = True
    call = asyncio.create_task(house.send("a"))
    await until(lambda: house.inside.held)
    await house.server.drain(0.05)
    with pytest.raises(Unavailable, match="not known"):
        await call


async def test_calls_beyond_what_may_be_under_way_wait_their_turn() -> None:
    house = House(SERVER._replace(under_way_bytes=2000), CLIENT)
    await house.open()
    await house.connect()
    house.inside.hold = True
    calls = [asyncio.create_task(house.send("a")) for _ in range(30)]
    await until(lambda: house.inside.held)
    started_at = len(house.inside.held)
    assert started_at < 10
    leaver = calls.pop(started_at)
    leaver.cancel()
    house.inside.hold = False
    house.inside.unblock()
    await asyncio.gather(*calls)
    with pytest.raises(asyncio.CancelledError):
        await leaver
    assert len(house.inside.asked) == 29
    await house.close()


async def test_calls_that_wait_for_room_move_to_the_next_connection() -> None:
    house = House(SERVER._replace(under_way_bytes=200), CLIENT)
    await house.open()
    await house.connect()
    poll = await waiting(house)
    calls = [asyncio.create_task(house.send("a")) for _ in range(5)]
    await until(lambda: len(link_of(house)._room) == 5)
    house.inside.hold = False
    link_of(house).cut("the test has cut it")
    await asyncio.gather(*calls)
    with pytest.raises(Unavailable):
        await poll
    assert house.inside.asked.count("send") == 5
    await house.close()


async def test_a_call_for_which_there_is_no_room_in_time_was_not_sent() -> None:
    house = House(SERVER._replace(under_way_bytes=200), CLIENT._replace(call_seconds=0.05))
    await house.open()
    await house.connect()
    poll = await waiting(house)
    with pytest.raises(NotSent, match="too much to do"):
        await house.send("a")
    poll.cancel()
    await asyncio.wait([poll])
    await house.close()


@pytest.mark.parametrize(
    "harm",
    [
        lambda connection: connection._say(b"\0" * 20),
        lambda connection: connection._say(b"x" * 20),
        lambda connection: connection._flush() or connection._transport.write(b"\xff" * 13),
    ],
)
async def test_a_server_that_says_nonsense_loses_the_connection_and_nothing_else(
    house: House, harm: Callable[[Any], None]
) -> None:
    house.inside.hold = True
    call = asyncio.create_task(house.send("a"))
    await until(lambda: house.inside.held)
    (connection,) = house.server.connections
    harm(connection)
    with pytest.raises(Unavailable, match="the other side sent"):
        await call
    house.inside.hold = False
    assert await house.send("b")


async def test_closing_ends_the_calls_under_way(house: House) -> None:
    house.inside.hold = True
    call = asyncio.create_task(house.send("a"))
    await until(lambda: house.inside.held)
    await house.remote.close()
    with pytest.raises(Unavailable, match="closed here"):
        await call
    await until(lambda: house.inside.cancelled == 1)


async def test_numbers_of_calls_begin_anew_and_pass_over_those_in_use(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.inside.hold = True
    first = asyncio.create_task(house.send("a"))
    await until(lambda: house.inside.held)
    link_of(house)._last = (1 << 32) - 1
    second = asyncio.create_task(house.send("b"))
    await until(lambda: len(house.inside.held) == 2)
    assert sorted(link_of(house)._calls) == [1, 2]
    house.inside.unblock()
    assert {(await first)[0].number, (await second)[0].number} == {1, 2}

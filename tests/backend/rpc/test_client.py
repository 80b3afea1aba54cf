"""A client with broken connections, servers that leave or hang, and callers that cancel."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from backend.api import WAIT_ENDS, Receive, ReceivedMessage, ReceiveOptions, SendResult, Unavailable
from backend.rpc.client import ClientLimits, RemoteBackend
from backend.rpc.connection import BackendConnection, NotSent
from backend.rpc.server import CallerConnection, ServerLimits
from tests.backend.calls import send
from tests.backend.wired import SECRET, TARGET, House
from tests.servers.waiting import until

SERVER = ServerLimits(heartbeat_seconds=0.02)
CLIENT = ClientLimits(heartbeat_seconds=0.02)
POLL = ReceiveOptions(1, 30, 20)


@pytest.fixture
async def house(request: pytest.FixtureRequest) -> AsyncIterator[House]:
    house = House(*getattr(request, "param", (SERVER, CLIENT)))
    await house.open()
    await house.connect()
    yield house
    await house.close()


def with_limits(server: ServerLimits = SERVER, client: ClientLimits = CLIENT) -> pytest.MarkDecorator:
    """Set the limits of the house of a test."""
    return pytest.mark.parametrize("house", [(server, client)], indirect=True, ids=["limits"])


def client_connection(house: House) -> BackendConnection:
    assert house.remote._connection is not None
    return house.remote._connection


def connection_of(house: House) -> CallerConnection:
    """Return the server's side of the connection."""
    (connection,) = house.server.connections
    return connection


async def held_call(house: House) -> asyncio.Task[list[SendResult]]:
    """Start a send that the backend holds."""
    house.inside.hold = True
    call = asyncio.create_task(house.send("a"))
    await until(lambda: house.inside.held)
    return call


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a call, and wait until its caller has left."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_call_under_way_on_a_lost_connection_has_no_known_outcome(house: House) -> None:
    call = await held_call(house)
    connection_of(house).cut()
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


async def test_the_error_of_a_call_that_was_not_sent_in_time() -> None:
    house = House(SERVER, CLIENT._replace(call_seconds=0.05))
    await house.open()
    address = house.address
    await house.server.close()
    remote = await RemoteBackend.connect(address, secret=SECRET, limits=house.client_limits)
    with pytest.raises(NotSent, match="cannot be reached"):
        await send(remote, TARGET, b"a")
    with pytest.raises(NotSent):
        await remote.ready(0.05)
    await remote.close()
    with pytest.raises(NotSent, match="closed here"):
        await send(remote, TARGET, b"a")


async def test_a_call_of_a_turn_in_which_the_connection_is_lost_is_made_on_the_next(house: House) -> None:
    call = asyncio.create_task(house.send("a"))
    await asyncio.sleep(0)
    client_connection(house).cut("the test has cut it")
    assert await call
    assert house.inside.asked == ["send"]


@with_limits(client=CLIENT._replace(call_seconds=0.05))
async def test_a_call_that_is_not_answered_in_time_is_cancelled_there(house: House) -> None:
    house.inside.hold = True
    with pytest.raises(Unavailable, match="no answer in time"):
        await house.send("a")
    await until(lambda: house.inside.cancelled == 1)
    await until(lambda: client_connection(house).under_way_bytes == 0)


@with_limits(client=CLIENT._replace(call_seconds=0.05))
async def test_a_receive_may_take_its_wait_beside_the_time_of_a_call(house: House) -> None:
    house.inside.hold = True
    poll = asyncio.create_task(house.remote.call(Receive(TARGET, POLL)))
    with pytest.raises(Unavailable):
        await house.send("a")
    assert not poll.done()
    house.inside.unblock()
    assert len(await poll) == 1


async def waiting(house: House, command: ReceiveOptions = POLL) -> asyncio.Task[list[ReceivedMessage]]:
    """Start a receive that the backend holds."""
    house.inside.hold = True
    poll = asyncio.create_task(house.remote.call(Receive(TARGET, command)))
    await until(lambda: house.inside.held)
    return poll


async def answered_but_unread(house: House, command: ReceiveOptions = POLL) -> asyncio.Task[list[ReceivedMessage]]:
    """Start a receive whose answer was sent, and which its caller reads only after it resumes reading."""
    poll = await waiting(house, command)
    client_connection(house)._transport.pause_reading()
    house.inside.unblock()
    await until(lambda: not connection_of(house)._running)
    return poll


async def test_a_caller_that_leaves_cancels_its_call_there(house: House) -> None:
    poll = await waiting(house)
    await cancelled(poll)
    await until(lambda: house.inside.cancelled == 1)
    await until(lambda: client_connection(house).under_way_bytes == 0)
    assert house.inside.released == []


async def test_messages_that_arrive_after_their_caller_has_left_are_released(house: House) -> None:
    """The answer and the cancellation cross on the network."""
    poll = await answered_but_unread(house)
    await cancelled(poll)
    client_connection(house)._transport.resume_reading()
    await until(lambda: house.inside.released)
    assert house.inside.released == ["handle-1"]


async def test_messages_that_arrive_after_the_wait_has_ended_are_accepted(house: House) -> None:
    poll = await answered_but_unread(house)
    poll.cancel(WAIT_ENDS)
    client_connection(house)._transport.resume_reading()
    assert [message.handle for message in await poll] == ["handle-1"]
    assert house.inside.released == []


async def test_a_caller_may_leave_after_its_wait_has_ended(house: House) -> None:
    poll = await answered_but_unread(house)
    poll.cancel(WAIT_ENDS)
    await asyncio.sleep(0)
    await cancelled(poll)
    client_connection(house)._transport.resume_reading()
    await until(lambda: house.inside.released)


async def test_a_wait_that_ends_as_its_connection_breaks_ends_with_nothing(house: House) -> None:
    poll = await waiting(house)
    client_connection(house)._transport.pause_reading()
    poll.cancel(WAIT_ENDS)
    await asyncio.sleep(0)
    connection_of(house).cut()
    client_connection(house).cut("the test ends it")
    with pytest.raises(asyncio.CancelledError):
        await poll


@pytest.mark.parametrize("wait_ends", [False, True], ids=["the caller leaves", "the wait ends"])
async def test_messages_that_arrive_as_their_caller_disconnects(
    house: House, wait_ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, poll = client_connection(house), asyncio.create_task(house.remote.call(Receive(TARGET, POLL)))
    answered = connection._answered

    def deliver(number: int, payload: memoryview) -> None:
        if wait_ends:
            poll.cancel(WAIT_ENDS)
        answered(number, payload)
        if not wait_ends:
            poll.cancel()
        monkeypatch.undo()

    monkeypatch.setattr(connection, "_answered", deliver)
    if wait_ends:
        assert len(await poll) == 1
        assert house.inside.released == []
    else:
        with pytest.raises(asyncio.CancelledError):
            await poll
        await until(lambda: house.inside.released)


async def test_the_claims_of_an_attempt_wait_for_its_repetition(house: House) -> None:
    command = ReceiveOptions(1, 30, 20, None, "attempt")
    poll = await answered_but_unread(house, command)
    await cancelled(poll)
    client_connection(house)._transport.resume_reading()
    house.inside.hold = False
    await house.send("a")
    assert house.inside.released == []


async def test_a_server_that_hangs_is_noticed(house: House) -> None:
    call = await held_call(house)
    connection = connection_of(house)
    connection._transport.pause_reading()
    assert connection._timer is not None
    connection._timer.cancel()
    with pytest.raises(Unavailable, match="nothing was received for"):
        await call


async def test_callers_do_not_notice_the_replacement_of_a_server(house: House) -> None:
    """During a rolling restart callers see no error, and each call takes effect once."""
    stop, answers = False, 0

    async def keep_sending() -> None:
        nonlocal answers
        while not stop:
            await house.send("a")
            answers += 1

    async def hundred_more() -> None:
        enough = answers + 100
        await until(lambda: answers >= enough)

    callers = [asyncio.create_task(keep_sending()) for _ in range(8)]
    for _ in range(3):
        await hundred_more()
        port = house.address.port
        await house.server.drain(30)
        await house.open(port)
    await hundred_more()
    stop = True
    await asyncio.gather(*callers)
    assert len(house.inside.asked) == answers


async def test_calls_in_progress_are_answered_during_a_drain(house: House) -> None:
    call = await held_call(house)
    draining = asyncio.create_task(house.server.drain(30))
    await until(lambda: not house.remote.connected)
    later = asyncio.create_task(house.send("b"))
    house.inside.unblock()
    assert (await call)[0].message_id == "id-1"
    await draining
    assert not later.done(), "a new call waits for the next server"
    await cancelled(later)


async def test_a_drain_does_not_wait_for_ever(house: House) -> None:
    call = await held_call(house)
    await house.server.drain(0.05)
    with pytest.raises(Unavailable, match="not known"):
        await call


@with_limits(server=SERVER._replace(under_way_bytes=2000))
async def test_calls_beyond_what_may_be_under_way_wait_their_turn(house: House) -> None:
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


@with_limits(server=SERVER._replace(under_way_bytes=200))
async def test_calls_that_wait_for_room_move_to_the_next_connection(house: House) -> None:
    poll = await waiting(house)
    calls = [asyncio.create_task(house.send("a")) for _ in range(5)]
    await until(lambda: len(client_connection(house)._capacity_waiters) == 5)
    house.inside.hold = False
    client_connection(house).cut("the test has cut it")
    await asyncio.gather(*calls)
    with pytest.raises(Unavailable):
        await poll
    assert house.inside.asked.count("send") == 5


@with_limits(server=SERVER._replace(under_way_bytes=200), client=CLIENT._replace(call_seconds=0.05))
async def test_a_call_for_which_there_is_no_room_in_time_was_not_sent(house: House) -> None:
    poll = await waiting(house)
    with pytest.raises(NotSent, match="too many calls"):
        await house.send("a")
    poll.cancel()
    await asyncio.wait([poll])
    await house.remote.close()  # before the server has answered that it is cancelled


@pytest.mark.parametrize(
    "harm",
    [
        lambda connection: connection._send_soon(b"\0" * 20),
        lambda connection: connection._send_soon(b"x" * 20),
        lambda connection: connection._flush() or connection._transport.write(b"\xff" * 13),
    ],
)
async def test_a_connection_is_closed_after_an_invalid_answer(house: House, harm: Callable[[Any], None]) -> None:
    call = await held_call(house)
    harm(connection_of(house))
    with pytest.raises(Unavailable, match="the other side sent"):
        await call
    house.inside.hold = False
    assert await house.send("b")


async def test_closing_ends_the_calls_under_way(house: House) -> None:
    call = await held_call(house)
    await house.remote.close()
    with pytest.raises(Unavailable, match="closed here"):
        await call
    await until(lambda: house.inside.cancelled == 1)


async def test_numbers_of_calls_wrap_and_skip_those_in_use(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.inside.hold = True
    first = asyncio.create_task(house.send("a"))
    await until(lambda: house.inside.held)
    client_connection(house)._last = (1 << 32) - 1
    second = asyncio.create_task(house.send("b"))
    await until(lambda: len(house.inside.held) == 2)
    assert sorted(client_connection(house)._calls) == [1, 2]
    house.inside.unblock()
    assert {(await first)[0].number, (await second)[0].number} == {1, 2}

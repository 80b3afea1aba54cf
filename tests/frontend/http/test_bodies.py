"""Reading of bodies: bounded memory for unauthenticated callers on many connections."""

import asyncio
from typing import Any

import pytest

from frontend.http.asgi import AsgiReceive, ClientGone
from frontend.http.bodies import FREE_BYTES, Room, arrived, read_body
from frontend.sqs.protocol.errors import REQUEST_TOO_LARGE, SERVICE_UNAVAILABLE, SqsError

BYTES_MAX = 1 << 20


class _Sender:
    """A client that sends a body in parts."""

    def __init__(self) -> None:
        self._parts: asyncio.Queue[Any] = asyncio.Queue()

    async def receive(self) -> Any:
        return await self._parts.get()

    def send(self, length: int, *, more: bool = True) -> None:
        self._parts.put_nowait({"type": "http.request", "body": bytes(length), "more_body": more})

    def leave(self) -> None:
        self._parts.put_nowait({"type": "http.disconnect"})


async def read(receive: AsgiReceive, room: Room) -> int:
    return len(await read_body(receive, None, BYTES_MAX, room))


async def test_bodies_that_arrive_share_their_room() -> None:
    room = Room(1000)
    slow, second, small = _Sender(), _Sender(), _Sender()
    slow.send(FREE_BYTES + 300)
    slow.send(400)
    reading = asyncio.ensure_future(read(slow.receive, room))
    await asyncio.sleep(0)
    second.send(FREE_BYTES)
    second.send(301)
    with pytest.raises(SqsError) as refused:
        await read(second.receive, room)
    assert refused.value.kind is SERVICE_UNAVAILABLE
    small.send(100)
    small.send(FREE_BYTES - 100)
    small.send(100_000, more=False)  # arrives complete, and is being returned
    assert await read(small.receive, room) == FREE_BYTES + 100_000
    slow.send(0, more=False)
    assert await reading == FREE_BYTES + 700
    room.take(1000)


async def test_the_space_of_a_body_is_always_released() -> None:
    room = Room(BYTES_MAX)
    gone, long = _Sender(), _Sender()
    gone.send(FREE_BYTES + 1000)
    gone.leave()
    with pytest.raises(ClientGone):
        await read(gone.receive, room)
    long.send(BYTES_MAX - 1)
    long.send(2)
    with pytest.raises(SqsError):
        await read(long.receive, room)
    room.take(BYTES_MAX)


class Whole(_Sender):
    """Our own server's extensions to ASGI."""

    async def __call__(self) -> Any:
        return await self.receive()

    def whole_body(self) -> bytes | None:
        return b"whole"


def test_arrivals_are_bounded_as_well() -> None:
    assert arrived(_Sender().receive, BYTES_MAX) is None
    assert arrived(Whole(), 5) == b"whole"
    with pytest.raises(SqsError) as refused:
        arrived(Whole(), 4)
    assert refused.value.kind is REQUEST_TOO_LARGE

"""Calls of a backend, as most tests make them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from backend import api

T = TypeVar("T")


async def send(backend: api.Backend, target: api.Target, *payloads: bytes) -> list[api.SendResult]:
    return await backend.call(api.Send(target, [api.NewMessage(payload) for payload in payloads]))


async def receive(
    backend: api.Backend,
    target: api.Target,
    messages_max: int = 10,
    visibility: int = 30,
    wait: float = 0,
    *more: Any,
    **named: Any,
) -> list[api.ReceivedMessage]:
    """Receive; further options are those of :class:`~backend.api.ReceiveOptions`."""
    return await backend.call(api.Receive(target, api.ReceiveOptions(messages_max, visibility, wait, *more, **named)))


async def delete(backend: api.Backend, target: api.Target, *messages: api.ReceivedMessage) -> list[api.HandleOutcome]:
    return await backend.call(api.Delete(target, [message.handle for message in messages]))


async def count_messages(backend: api.Backend, target: api.Target) -> api.Counters:
    return await backend.call(api.CountMessages(target))


async def peek(backend: api.Backend, target: api.Target, messages_max: int, after: int = 0) -> list[api.Peeked]:
    return await backend.call(api.PeekMessages(target, messages_max, after))


async def payloads(backend: api.Backend, target: api.Target, *options: Any) -> list[bytes]:
    """Receive; returns the messages' payloads."""
    return [message.payload for message in await receive(backend, target, *options)]


async def all_payloads(backend: api.Backend, target: api.Target) -> list[bytes]:
    """Receive all visible messages, which are in flight afterwards; returns their payloads."""
    found: list[bytes] = []
    while page := await payloads(backend, target, 10, 600):
        found += page
    return found


async def until_equal(call: Callable[[], Awaitable[T]], expected: T) -> None:
    """Repeat a call until its answer is this."""
    while await call() != expected:
        await asyncio.sleep(0.005)


async def until_visible(backend: api.Backend, target: api.Target, number: int) -> None:
    while (await count_messages(backend, target)).visible != number:
        await asyncio.sleep(0.005)


async def until_move(backend: api.Backend, target: api.Target, status: str) -> int:
    """Wait until the latest move task of a queue has this status; returns how many messages it has moved."""
    while True:
        task = (await backend.call(api.ListMoves(target)))[0]
        if task.status == status:
            return task.moved
        await asyncio.sleep(0.005)

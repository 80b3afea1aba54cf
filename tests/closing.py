"""Closing what a test has opened."""

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar


class AsyncClosable(Protocol):
    def close(self) -> Awaitable[Any]: ...


Opened = TypeVar("Opened", bound=AsyncClosable)


@asynccontextmanager
async def closing(opened: Opened) -> AsyncIterator[Opened]:
    """Close it at the end, as :class:`contextlib.closing` does where that needs no ``await``."""
    try:
        yield opened
    finally:
        await opened.close()

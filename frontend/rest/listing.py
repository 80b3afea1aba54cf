"""Lists of what a key may be used for: names that begin with one of its prefixes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def list_permitted(
    read: Callable[[str, int], Awaitable[list[T]]], prefixes: tuple[str, ...], prefix: str, limit: int
) -> list[T]:
    """At most ``limit`` items whose names begin with ``prefix`` and with one of ``prefixes`` (empty: any), in order.

    ``read`` returns at most so many items whose names begin with a prefix, in order.
    """
    wanted = {max(prefix, one, key=len) for one in prefixes if prefix.startswith(one) or one.startswith(prefix)}
    if not prefixes:
        wanted = {prefix}
    found: list[T] = []
    for one in sorted(wanted):
        if any(one != other and one.startswith(other) for other in wanted):
            continue  # included in those of the shorter prefix
        found += await read(one, limit - len(found))
        if len(found) >= limit:
            break
    return found

"""Steps at which a server is ended, and functions that end it there."""

from __future__ import annotations

from tests.faults.tools.hooks import PlannedFault
from tests.faults.tools.process import FaultyServer
from tests.faults.tools.traffic import Traffic

_WRITE = ("before", "half", "after")
_CALL = ("before", "after")


def _all(*moments_of: tuple[str, tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(f"{step}.{moment}" for step, moments in moments_of for moment in moments)


COMMIT = _all(("commit.write", _WRITE), ("commit.sync", _CALL))
SEGMENT = _all(("segment.create", _CALL), ("preallocate.write", _WRITE), ("preallocate.sync", _CALL))
CHECKPOINT = _all(
    ("piece.create", _CALL),
    ("piece.write", _WRITE),
    ("piece.sync", _CALL),
    ("folder.sync", _CALL),
    ("shards.update", _CALL),
)
CLEANING = _all(("log.update", _CALL), ("segment.unlink", _CALL), ("piece.unlink", _CALL), ("metadata.commit", _CALL))
WHILE_SERVING = {"commit": COMMIT, "segment": SEGMENT, "checkpoint": CHECKPOINT, "cleaning": CLEANING}
"""Steps of a serving server."""

AT_START = {
    "claim": _all(("incarnation.new", _CALL), ("log.update", _CALL), ("metadata.commit", _CALL)),
    "seal": _all(("tail.write", _WRITE), ("tail.sync", _CALL), ("trim.truncate", _CALL), ("trim.sync", _CALL)),
    "open": _all(
        ("segment.create", _CALL), ("preallocate.write", _WRITE), ("folder.sync", _CALL), ("shards.update", _CALL)
    ),
}
"""Steps of a server that recovers its predecessor's data."""

FIRST_AFTER_START = {
    "metadata.commit": 12,
    "folder.sync": 8,
    "segment.create": 4,
    "preallocate.write": 4,
    "preallocate.sync": 8,
}
"""Approximate number of times that a start goes through these steps."""


def while_serving(moment: str, nth: int, action: str) -> PlannedFault:
    """Make a fault that ends the server at the ``nth`` occurrence of this moment after its start."""
    step = moment.rpartition(".")[0]
    return PlannedFault(moment, action, nth + FIRST_AFTER_START.get(step, 0))


async def end_while_serving(server: FaultyServer, traffic: Traffic, moment: str, nth: int, action: str) -> None:
    """Start the server, let it serve until it ends at this moment, and leave it down."""
    await server.start_with([while_serving(moment, nth, action)], dies=True)
    await traffic.until(lambda: server.process is None or server.ended(), f"the server ended at {moment}")


async def end_at_start(server: FaultyServer, moment: str, nth: int, action: str) -> bool:
    """Start the server, which is down, and end it at this moment of its start; returns whether it got there."""
    await server.start_with([PlannedFault(moment, action, nth)], dies=True)
    came = server.process is None
    server.kill()
    return came


async def serve_and_kill(server: FaultyServer, traffic: Traffic) -> None:
    """Let the server, which is down, serve for a moment, so that the next start has something to recover."""
    await server.start_with()
    await traffic.answered(20)
    server.kill()

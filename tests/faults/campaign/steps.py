"""Steps at which a server is ended, and functions that end it there."""

from collections.abc import Mapping

from tests.faults.tools.hooks import PlannedFault
from tests.faults.tools.process import FaultyServer
from tests.faults.tools.traffic import Traffic


def _moments(groups: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the moments of all steps of each group: before and after, and within a write."""
    return {
        group: tuple(
            f"{step}.{moment}"
            for step in steps.split()
            for moment in ("before", "half", "after")
            if moment != "half" or step.endswith(".write")
        )
        for group, steps in groups.items()
    }


WHILE_SERVING = _moments(
    {
        "commit": "commit.write commit.sync",
        "segment": "preallocate.write preallocate.sync spare.rename",
        "checkpoint": "piece.create piece.write piece.sync folder.sync shards.update",
        "cleaning": "log.update segment.rename piece.unlink metadata.commit",
    }
)
"""Steps of a serving server."""

AT_START = _moments(
    {
        "claim": "incarnation.new log.update metadata.commit",
        "seal": "tail.write tail.sync trim.truncate trim.sync",
        "open": "segment.create preallocate.write folder.sync shards.update",
    }
)
"""Steps of a server that recovers its predecessor's data."""

FIRST_AFTER_START = {
    "metadata.commit": 12,
    "folder.sync": 8,
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

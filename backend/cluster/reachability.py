"""Reachability of live nodes by the callers of the cluster.

A node whose heartbeat advances can reach the metadata.  That proves nothing about the network between it and its
callers.  By heartbeats alone, such a node would keep its shards although no caller can call it.  Callers (frontends,
managers, nodes of other clusters) connect to every node of a cluster, and each heartbeat names the callers connected to
its node.  A node is unreachable if most of the callers connected to other nodes are not connected to it.

An unreachable node is not fenced: it is treated like one that drains, and hands its shards over, for which metadata and
journal suffice.  A wrong guess costs some moves.  Pure: observations and times are passed in.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from backend.cluster.failure_detector import GAP_SECONDS
from metadata_service.models import Heartbeat

SAMPLE_MAX: Final = 32
"""Maximum number of callers that a heartbeat names: those with the lowest hashes of their names, so that all nodes
choose the same sample.
"""
UNREACHABLE_SECONDS: Final = 5.0
"""Time for which a node must be unreachable, because a starting caller or node makes one connection after the other."""
BACK_SECONDS: Final = 10.0
"""Time for which a node must be reachable again before it gets shards, so that unstable connections do not move shards
back and forth.  A node that has just started gets them at once when its callers connect.
"""


def sample(names: Iterable[str]) -> tuple[int, ...]:
    """Return the hashes of the callers that a heartbeat names."""
    return tuple(sorted({_hash(name) for name in names})[:SAMPLE_MAX])


def _hash(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=4, person=b"holdfast caller").digest(), "big")


class Reachability:
    """Set of live nodes that are unreachable."""

    def __init__(self) -> None:
        self.unreachable: frozenset[str] = frozenset()
        self._contrary: dict[str, float] = {}
        """By node: time in seconds for which its observed state has differed from :attr:`unreachable`."""
        self._reached: set[int] = set()
        """Logs of the nodes that have been reachable since they started."""
        self._checked_at: float | None = None

    def update(self, live: Iterable[Heartbeat], now: float) -> None:
        """Update the state with the heartbeats of the live nodes.  ``now`` in seconds of a monotonic clock."""
        passed = 0.0 if self._checked_at is None else now - self._checked_at
        if passed > GAP_SECONDS:
            passed = 0.0  # nothing is known about the time since then
        self._checked_at = now
        beats = list(live)
        seen = missed(beats)
        contrary: dict[str, float] = {}
        unreachable: set[str] = set()
        for beat in beats:
            was = beat.node in self.unreachable
            for_seconds = self._contrary.get(beat.node, 0.0) + passed if (beat.node in seen) != was else 0.0
            back_seconds = BACK_SECONDS if beat.log_id in self._reached else 0.0
            changes = (beat.node in seen) != was and for_seconds >= (back_seconds if was else UNREACHABLE_SECONDS)
            if was != changes:
                unreachable.add(beat.node)
            contrary[beat.node] = 0.0 if changes else for_seconds
        self.unreachable, self._contrary = frozenset(unreachable), contrary
        self._reached &= {beat.log_id for beat in beats}
        self._reached |= {beat.log_id for beat in beats if beat.node not in seen}


def missed(live: Iterable[Heartbeat]) -> set[str]:
    """Return the nodes to which more than half of the callers of other nodes are not connected."""
    nodes = {beat.node: set(beat.callers) for beat in live}
    members = {_hash(name) for name in nodes}
    found = set()
    for name, callers in nodes.items():
        # The heartbeat does not name callers with higher hashes.
        highest_named = max(callers) if len(callers) >= SAMPLE_MAX else None
        others = {
            caller
            for other, their_callers in nodes.items()
            if other != name
            for caller in their_callers - members
            if highest_named is None or caller <= highest_named
        }
        if 2 * len(others - callers) > len(others):
            found.add(name)
    return found

"""Reachability of live nodes by the callers of the cluster.

A node whose heartbeat advances can reach the metadata.  That proves nothing about the network between it and its
callers: without reachability, no node would serve its shards or take them over.  Callers (frontends, managers, nodes of
other clusters) connect to every node of a cluster, and each heartbeat names the callers connected to its node.  A node
is unreachable (*cut off*) if most of the callers connected to other nodes are not connected to it.

Nothing is fenced because of that: an unreachable node is treated like one that drains, and hands its shards over, for
which metadata and journal suffice.  A wrong guess costs some moves.  Pure: observations and times are passed in.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from backend.cluster.failure_detector import GAP_SECONDS
from metadata_service.models import Heartbeat

SAMPLE_MOST: Final = 32
"""Maximum number of callers that a heartbeat names: those with the lowest hashes of their names, so that all nodes
choose the same sample.
"""
CUT_OFF_SECONDS: Final = 5.0
"""Time for which a node must be unreachable: a starting caller or node makes one connection after the other."""
BACK_SECONDS: Final = 10.0
"""Time for which a node must be reachable again before it gets shards, so that unstable connections do not move shards
back and forth.  A node that has just started gets them at once when its callers connect.
"""


def sample(names: Iterable[str]) -> tuple[int, ...]:
    """Return the hashes of the callers that a heartbeat names."""
    return tuple(sorted({_hash(name) for name in names})[:SAMPLE_MOST])


def _hash(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=4, person=b"holdfast caller").digest(), "big")


class Reach:
    """Set of live nodes that are unreachable."""

    def __init__(self) -> None:
        self.cut_off: frozenset[str] = frozenset()
        self._contrary: dict[str, float] = {}
        """By node: time in seconds for which its observed state has differed from :attr:`cut_off`."""
        self._reached: set[int] = set()
        """Logs of the nodes that have been reachable since they started."""
        self._looked_at: float | None = None

    def update(self, live: Iterable[Heartbeat], now: float) -> None:
        """Update the state with the heartbeats of the live nodes.  ``now`` in seconds of a monotonic clock."""
        passed = 0.0 if self._looked_at is None else now - self._looked_at
        if passed > GAP_SECONDS:
            passed = 0.0  # nothing is known about the time between
        self._looked_at = now
        beats = list(live)
        seen = missed(beats)
        contrary: dict[str, float] = {}
        cut_off: set[str] = set()
        for beat in beats:
            was = beat.node in self.cut_off
            for_seconds = self._contrary.get(beat.node, 0.0) + passed if (beat.node in seen) != was else 0.0
            back_seconds = BACK_SECONDS if beat.log_id in self._reached else 0.0
            changes = (beat.node in seen) != was and for_seconds >= (back_seconds if was else CUT_OFF_SECONDS)
            if was != changes:
                cut_off.add(beat.node)
            contrary[beat.node] = 0.0 if changes else for_seconds
        self.cut_off, self._contrary = frozenset(cut_off), contrary
        self._reached &= {beat.log_id for beat in beats}
        self._reached |= {beat.log_id for beat in beats if beat.node not in seen}


def missed(live: Iterable[Heartbeat]) -> set[str]:
    """Return the nodes to which more than half of the callers of other nodes are not connected."""
    nodes = {beat.node: set(beat.callers) for beat in live}
    members = {_hash(name) for name in nodes}
    found = set()
    for name, callers in nodes.items():
        # The heartbeat does not name callers with higher hashes.
        told = max(callers) if len(callers) >= SAMPLE_MOST else None
        others = {
            caller
            for other, theirs in nodes.items()
            if other != name
            for caller in theirs - members
            if told is None or caller <= told
        }
        if 2 * len(others - callers) > len(others):
            found.add(name)
    return found

"""Which nodes live, and yet are not reached by those who call the cluster.

A node whose heartbeat moves reaches the metadata.  Nothing is said by that of the network between it and its callers:
its shards would be served by nobody, and taken over by nobody.  Callers (frontends, managers, nodes of other clusters)
connect to every node of a cluster, and each heartbeat says who is connected to its node.  So a node to which most of
those are not connected that are connected to others is *cut off*.

Nothing is fenced because of that: a node that is cut off is treated as one that drains, and hands its shards over,
which takes the metadata and the journal alone.  A wrong guess costs some moves.  Pure: it is told what was seen, and
when.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from backend.watch import GAP_SECONDS
from metadata_service.models import Heartbeat

SAMPLE_MOST: Final = 32
"""So many callers a heartbeat names: those whose names have the lowest hashes, which makes it the same sample for all
nodes."""
CUT_OFF_SECONDS: Final = 5.0
"""So long it has to be so: a caller or a node that starts connects to one after the other."""
BACK_SECONDS: Final = 10.0
"""So long a node has to be reached again before it gets shards: where connections come and go, they are not to.  One
that has just started, and that its callers come to late, gets them at once."""


def sample(names: Iterable[str]) -> tuple[int, ...]:
    """What a heartbeat says of who is connected to its node."""
    return tuple(sorted({_hash(name) for name in names})[:SAMPLE_MOST])


def _hash(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=4, person=b"holdfast caller").digest(), "big")


class Reach:
    """Which of the nodes that live are cut off."""

    def __init__(self) -> None:
        self.cut_off: frozenset[str] = frozenset()
        self._contrary: dict[str, float] = {}
        """By node: for how many seconds it has looked otherwise than :attr:`cut_off` has it."""
        self._reached: set[int] = set()
        """Logs of the nodes that have been reached since they live."""
        self._looked_at: float | None = None

    def look(self, live: Iterable[Heartbeat], now: float) -> None:
        """What the heartbeats of the live nodes say now.  ``now`` in seconds of a monotonic clock."""
        passed = 0.0 if self._looked_at is None else now - self._looked_at
        if passed > GAP_SECONDS:
            passed = 0.0  # who knows what went on
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
    """The nodes to which more than half of those callers are not connected that are connected to others."""
    nodes = {beat.node: set(beat.callers) for beat in live}
    members = {_hash(name) for name in nodes}
    found = set()
    for name, callers in nodes.items():
        told = max(callers) if len(callers) >= SAMPLE_MOST else None  # of those above, its heartbeat says nothing
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

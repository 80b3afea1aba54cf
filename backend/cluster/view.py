"""State of a backend cluster as one read of a member found it."""

from __future__ import annotations

from typing import NamedTuple

from metadata_service.models import ClusterEntry, Heartbeat, LogEntry, ShardEntry


class View(NamedTuple):
    """The entries of the cluster, and its live nodes."""

    cluster: ClusterEntry
    logs: dict[int, LogEntry]
    shards: dict[int, ShardEntry]
    live: dict[str, Heartbeat]
    """By name, nodes that are known to be alive: their log is open, and their heartbeat advances."""
    silent: dict[str, Heartbeat]
    """By name, all other nodes that ever existed."""
    unreachable: frozenset[str] = frozenset()
    """Live nodes that are unreachable for callers (:mod:`backend.cluster.reachability`)."""

    def owner(self, shard: int) -> str | None:
        """Return the live node that owns a shard; None: it has no owner, or its owner has ended."""
        name = self.had(shard)
        # A restarted node takes the shards of its earlier logs without an assignment.
        return name if name in self.live else None

    def had(self, shard: int) -> str | None:
        """Return the node that owns a shard, or owned it until it ended; None: there was none."""
        entry = self.shards.get(shard)
        log = self.logs.get(entry.owner_log) if entry is not None else None
        return log.node if log is not None else None

    def wanted(self, shard: int) -> str | None:
        """Return the live node to which a shard is assigned; None: it is to be assigned."""
        name = self.cluster.assignment[shard] if shard < len(self.cluster.assignment) else ""
        return name if name in self.live else None

    def can_take(self, shard: int, log_id: int) -> bool:
        """Return whether the writer of this log may take a shard now: it was handed over to it, or has no owner."""
        entry = self.shards.get(shard)
        if entry is None or entry.owner_log == log_id:
            return True
        owner = self.logs.get(entry.owner_log)
        return owner is not None and owner.state == "sealed"

    def leaving(self, name: str) -> bool:
        """Return whether a node's shards are to move to others: it drains, or is unreachable, and another node is
        neither draining nor unreachable.
        """
        if name not in self.unreachable:
            return self.draining(name)
        return any(other not in self.unreachable and not self.draining(other) for other in self.live)

    def draining(self, name: str) -> bool:
        """Return whether the node is to hand over all its shards and get none."""
        return name in self.cluster.draining or name in self.cluster.drained

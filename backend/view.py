"""What a member of a backend cluster has read in one look."""

from __future__ import annotations

from typing import NamedTuple

from metadata_service.models import ClusterEntry, Heartbeat, LogEntry, ShardEntry


class View(NamedTuple):
    """The entries of the cluster, and which of its nodes live."""

    cluster: ClusterEntry
    logs: dict[int, LogEntry]
    shards: dict[int, ShardEntry]
    live: dict[str, Heartbeat]
    """By name, the nodes of which it is known that they live: their log is open, and their heartbeat moves."""
    silent: dict[str, Heartbeat]
    """The other nodes that there ever were, by name."""
    cut_off: frozenset[str] = frozenset()
    """Live nodes that callers do not reach (:mod:`backend.reach`)."""

    def owner(self, shard: int) -> str | None:
        """The live node that has a shard; None: nobody, or one that has ended."""
        name = self.had(shard)
        # A node that has started anew takes what its earlier logs own by itself.
        return name if name in self.live else None

    def had(self, shard: int) -> str | None:
        """The node that has a shard, or had it until it ended; None: there was none."""
        entry = self.shards.get(shard)
        log = self.logs.get(entry.owner_log) if entry is not None else None
        return log.node if log is not None else None

    def wanted(self, shard: int) -> str | None:
        """The live node that is to have it; None: that is to be decided."""
        name = self.cluster.assignment[shard] if shard < len(self.cluster.assignment) else ""
        return name if name in self.live else None

    def can_take(self, shard: int, log_id: int) -> bool:
        """Whether the writer of this log may have a shard now: it was given to it, or nobody has it."""
        entry = self.shards.get(shard)
        if entry is None or entry.owner_log == log_id:
            return True
        owner = self.logs.get(entry.owner_log)
        return owner is not None and owner.state == "sealed"

    def leaving(self, name: str) -> bool:
        """Whether its shards are to go to others: it drains, or is cut off while there is one that is neither."""
        if name not in self.cut_off:
            return self.draining(name)
        return any(other not in self.cut_off and not self.draining(other) for other in self.live)

    def draining(self, name: str) -> bool:
        """Whether the node is to give up all that it has, and to get nothing."""
        return name in self.cluster.draining or name in self.cluster.drained

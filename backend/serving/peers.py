"""Calls of a node's workers to partitions of this node and of others."""

from __future__ import annotations

from backend.api import NotOwner, Peer, shard_of
from backend.serving.shards import Shards


class Peers:
    """Access of a node's workers to this node and to the others."""

    def __init__(self, shards: Shards, local: Peer, remote: Peer | None) -> None:
        self.local = local
        """This node."""
        self.remote = remote
        """Access to the nodes that own the other shards; None: there are none, or they cannot be called."""
        self._shards = shards

    def owner_of(self, partition: int) -> Peer:
        """Return the node to call for a partition.  Raises :class:`NotOwner`."""
        return self.local if self._shards.owns(partition) else self.remote_owner_of(partition)

    def remote_owner_of(self, partition: int) -> Peer:
        """Return the access to a partition of another node.  Raises :class:`NotOwner` if there is none."""
        if self.remote is None:
            shard = shard_of(partition)
            raise NotOwner(shard, self._shards.owners.get(shard))
        return self.remote

"""The records of the metadata service.

All are immutable; every one that can change carries ``version``, which the store raises by one on each
change.  A change names the version it was computed from, so that two writers never overwrite each other
unseen.  Units are part of the names: ``_s`` seconds and ``_ms`` milliseconds since the Unix epoch.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Literal

import msgspec

LOG_ID_LIMIT = 1 << 20
"""Log ids are smaller than this: a position in a log keeps its log's id in 20 bits."""

LogState = Literal["open", "recovering", "sealed"]


class Partition(msgspec.Struct, frozen=True, array_like=True):
    """One part of a queue and the backend cluster that has it.  Ids are never reused."""

    id: int
    cluster: str = "local"


class Queue(msgspec.Struct, frozen=True):
    """One incarnation of a queue: deleted and made anew, it has another ``queue_id``."""

    queue_id: int
    account: str
    name: str
    version: int
    """Starts at 1; raised by every change of attributes, tags or purge."""
    attributes: dict[str, str]
    """Canonical values that were set; what is missing has its default."""
    tags: dict[str, str]
    created_s: int
    modified_s: int
    """When attributes were last set; tags and purges leave it alone."""
    partitions: tuple[Partition, ...]
    handle_key: bytes
    """16 random bytes, made with the queue: its receipt handles are authenticated with it."""
    purge_id: int = 0
    """Number of purges so far: partitions apply the latest."""
    purged_ms: int = 0
    """When the latest purge was asked for."""


def new_queue(
    queue_id: int,
    partition_id: int,
    account: str,
    name: str,
    attributes: Mapping[str, str],
    tags: Mapping[str, str],
    now_ms: int,
) -> Queue:
    """A queue as it begins: one partition, and a handle key of its own."""
    return Queue(
        queue_id=queue_id,
        account=account,
        name=name,
        version=1,
        attributes=dict(attributes),
        tags=dict(tags),
        created_s=now_ms // 1000,
        modified_s=now_ms // 1000,
        partitions=(Partition(partition_id),),
        handle_key=secrets.token_bytes(16),
    )


class LogEntry(msgspec.Struct, frozen=True):
    """What one incarnation of a backend node writes, and whether it still may.

    Never deleted, but when nothing is left of a log, no file and no mention of it, a new incarnation of its node may
    take over the entry, and with it the id: so restarts do not use the ids up.
    """

    log_id: int
    """Unique in the cluster, 1 <= log_id < LOG_ID_LIMIT."""
    node: str
    incarnation: int
    """1 for the node's first start, and so on."""
    state: LogState = "open"
    recovering_by: int | None = None
    """Log id of the incarnation that recovers this log."""
    sealed_seq: int | None = None
    """The last row that exists, once sealed."""
    floor_segment: int = 0
    floor_seq: int = 0
    """Below the floor no shard replays anything."""
    version: int = 1
    accepted: bool = False
    """An operator has accepted that this log is damaged: it ends where it can be read to."""


class Heartbeat(msgspec.Struct, frozen=True):
    """A sign of life of a backend node's incarnation.  It detects failures: nothing about data is decided by it."""

    node: str
    log_id: int
    """Of the log that the incarnation writes."""
    incarnation: int
    count: int
    """Rises with each heartbeat of the incarnation."""
    time_ms: int
    """The node's clock."""
    address: str = ""
    """Where the node is reached."""


class ClusterEntry(msgspec.Struct, frozen=True):
    """Which node is to have which shard, and who decides so.  A former manager's change comes from an old version."""

    manager: int = 0
    """Log id of the incarnation that manages the cluster; 0: nobody."""
    assignment: tuple[str, ...] = ()
    """By shard: name of the node that is to have it.  Who has it, its entry says."""
    draining: tuple[str, ...] = ()
    """Nodes that are to give up all they have."""
    version: int = 0
    """0: not stored yet."""


class PieceRef(msgspec.Struct, frozen=True, array_like=True):
    """Where a piece of a checkpoint lies, and the CRC of its bytes."""

    log_id: int
    file: int
    offset: int
    length: int
    crc: int


class StoppedPartition(msgspec.Struct, frozen=True, array_like=True):
    """A partition that cannot be served, because what it rests on is damaged: where all that is left of it lies.

    Kept apart, so that the rest of its shard goes on.  It ends when its loss is accepted or its queue is deleted.
    """

    partition: int
    queue_id: int
    """0: not known."""
    checkpoint: PieceRef | None
    """Its own piece in the last checkpoint that held it."""
    chain: tuple[tuple[int, int, int], ...]
    """As :attr:`ShardEntry.chain`: what is folded on top of that."""
    live: tuple[tuple[int, int], ...]
    """As :attr:`ShardEntry.live`."""


class ShardEntry(msgspec.Struct, frozen=True):
    """Who owns a shard, and what its state is folded from."""

    shard: int
    owner_log: int
    epoch: int
    checkpoint: PieceRef | None = None
    checkpoint_log: int = 0
    checkpoint_seq: int = 0
    """The checkpoint holds everything up to this row of ``checkpoint_log``."""
    chain: tuple[tuple[int, int, int], ...] = ()
    """(log id, epoch, from seq) of each ownership since the checkpoint, oldest first."""
    live: tuple[tuple[int, int], ...] = ()
    """(log id, segment) of each segment that the checkpoint points into."""
    version: int = 0
    """0: not stored yet."""
    accepted: tuple[str, ...] = ()
    """Marks of damage whose loss an operator has accepted: it is passed over when the shard is folded."""
    stopped: tuple[StoppedPartition, ...] = ()
    """Partitions that neither ``checkpoint`` nor ``chain`` is of, for they cannot be served."""
    files: tuple[tuple[int, int], ...] | None = None
    """(log id, file) of each file of pieces that the checkpoint rests on; None: not known, it is an older entry."""

    def logs(self) -> set[int]:
        """Logs that the shard, or a stopped partition of it, is folded from."""
        chains = (self.chain, *(one.chain for one in self.stopped))
        return {log_id for chain in chains for log_id, _, _ in chain}

    def mentions(self) -> set[int]:
        """All logs that anything here refers to."""
        pieces = (self.checkpoint, *(one.checkpoint for one in self.stopped))
        marked = {int(mark[4:].partition(":")[0]) for mark in self.accepted if mark.startswith("row ")}
        return {
            self.owner_log,
            self.checkpoint_log,
            *self.logs(),
            *marked,
            *(log_id for log_id, _ in self.segments()),
            *(log_id for log_id, _ in self.files or ()),
            *(piece.log_id for piece in pieces if piece is not None),
        }

    def segments(self) -> set[tuple[int, int]]:
        """(log id, segment) of each segment that a checkpoint of it points into."""
        return {segment for live in (self.live, *(one.live for one in self.stopped)) for segment in live}


class _RedrivePolicy(msgspec.Struct):
    target: str = msgspec.field(name="deadLetterTargetArn")


def dead_letter_arn(attributes: Mapping[str, str]) -> str | None:
    """ARN of the queue's dead-letter queue: stores keep it beside the queue, so that its sources can be listed."""
    policy = attributes.get("RedrivePolicy")
    return msgspec.json.decode(policy, type=_RedrivePolicy).target if policy else None

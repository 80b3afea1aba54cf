"""The records of the metadata service.

All are immutable; every one that can change carries ``version``, which the store increments on each change.  A
change names the version it was computed from, so that concurrent writers never overwrite each other unnoticed.
Names end in their units: ``_s`` seconds and ``_ms`` milliseconds since the Unix epoch.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

LOG_ID_LIMIT = 1 << 20
"""Exclusive upper limit of log ids: a position in a log stores the log's id in 20 bits."""
CLUSTER_BITS = 12
CLUSTERS_MAX = 1 << CLUSTER_BITS
"""Exclusive upper limit of backend cluster numbers."""
SERIAL_BITS = 40
"""Bits of a partition id's serial number; the bits above it are the number of its cluster."""
FIRST_CLUSTER = "local"
"""Name of backend cluster 0, the only one of an installation that named none."""

LogState = Literal["open", "recovering", "sealed"]
PartitionState = Literal["open", "draining"]
ClusterState = Literal["serving", "retiring"]


def partition_id(cluster: int, serial: int) -> int:
    """Compose the id of the ``serial``-th partition created in a backend cluster."""
    assert 0 <= cluster < CLUSTERS_MAX
    assert 0 < serial < 1 << SERIAL_BITS
    return cluster << SERIAL_BITS | serial


def cluster_of(partition: int) -> int:
    """Number of the backend cluster that holds the partition for all its life."""
    return partition >> SERIAL_BITS & CLUSTERS_MAX - 1  # above: bits of a consumer group's id


def partition_counter(cluster: int) -> str:
    """Name of the counter of partitions created in a cluster."""
    return f"partition/{cluster}" if cluster else "partition"


class Partition(msgspec.Struct, frozen=True, array_like=True):
    """One part of a queue.  Ids are never reused, and contain the backend cluster (:func:`cluster_of`)."""

    id: int
    cluster: str = FIRST_CLUSTER
    """Reserved element of the stored array: the id contains the cluster."""
    state: PartitionState = "open"
    """State; a ``draining`` partition gets no sends, and is removed when it is empty."""
    slot: int = 0
    """Slot of the partition.  A send's token or message group selects the slot; each slot has one open partition."""
    pending_token_sources: tuple[int, ...] = ()
    """Partitions whose tokens must be handed over before this one accepts a send with a token."""


class Queue(msgspec.Struct, frozen=True):
    """One incarnation of a queue: recreated after a deletion it has another ``queue_id``."""

    queue_id: int
    account: str
    name: str
    version: int
    """Version, from 1; incremented by every change of attributes, tags or purge."""
    attributes: dict[str, str]
    """Canonical values of the attributes that were set; others have their defaults."""
    tags: dict[str, str]
    created_s: int
    modified_s: int
    """Time when attributes were last set; tags and purges do not change it."""
    partitions: tuple[Partition, ...]
    handle_key: bytes
    """16 random bytes created with the queue; they authenticate its receipt handles."""
    purge_id: int = 0
    """Number of purges so far: partitions apply the latest."""
    purged_ms: int = 0
    """Time when the latest purge was requested."""
    map_version: int = 0
    """Version of the queue that introduced the current open partitions; 0: those it was created with."""
    retired: tuple[int, ...] = ()
    """Ids of the queue's most recently removed partitions."""


class NewQueue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A queue to be created."""

    account: str
    name: str
    attributes: dict[str, str]
    tags: dict[str, str]
    now_ms: int
    hold_seconds: float
    """Time for which the name of a deleted queue cannot be used."""
    queues_max: int | None = msgspec.field(default=None, name="queues_most")
    """Maximum number of queues of the account; None: no limit."""
    clusters: tuple[int, ...] = (0,)
    """Backend cluster of each partition."""

    def made(self, queue_id: int, partition_ids: Iterable[int]) -> Queue:
        """Build the queue, with these partitions and a random handle key."""
        return Queue(
            queue_id=queue_id,
            account=self.account,
            name=self.name,
            version=1,
            attributes=self.attributes,
            tags=self.tags,
            created_s=self.now_ms // 1000,
            modified_s=self.now_ms // 1000,
            partitions=tuple(Partition(number, slot=slot) for slot, number in enumerate(partition_ids)),
            handle_key=secrets.token_bytes(16),
        )


class LogEntry(msgspec.Struct, frozen=True):
    """Metadata of the log that one incarnation of a backend node writes, with its state.

    Never deleted, and log ids are never reused: a position in a log is unambiguous for ever.
    """

    log_id: int
    """Id, unique in the cluster, 1 <= log_id < LOG_ID_LIMIT."""
    node: str
    incarnation: int
    """Incarnation of the node, from 1 at its first start."""
    state: LogState = "open"
    recovering_by: int | None = None
    """Log id of the incarnation that recovers this log."""
    sealed_seq: int | None = None
    """Sequence number of the last row, once sealed."""
    floor_segment: int = 0
    floor_seq: int = 0
    """Floor: no shard replays anything below it."""
    version: int = 1
    accepted: bool = False
    """True if an operator has accepted that this log is damaged: it ends at the last readable row."""
    held: str = ""
    """Name of the process that determines the log's end.  While the log is held its writer answers nothing; any
    other change of the entry ends the hold."""
    swept: bool = False
    """True if no segment and no checkpoint file of the log is left, so that sweeps skip it."""


class BusyPartition(msgspec.Struct, frozen=True, array_like=True):
    """One of a node's busiest partitions."""

    partition: int
    queue_id: int
    rate: float
    """Messages per second, sent and received together."""


class Heartbeat(msgspec.Struct, frozen=True):
    """Heartbeat of a backend node's incarnation, for failure detection only: no decision about data depends on it."""

    node: str
    log_id: int
    """Id of the log that the incarnation writes."""
    incarnation: int
    count: int
    """Number of the heartbeat; increases within the incarnation."""
    time_ms: int
    """Time of the node's clock."""
    address: str = ""
    """Address of the node."""
    cpu: float = 0.0
    storage: float = 0.0
    """Used parts of the node's CPU and storage, from 0 to 1 (:mod:`backend.cluster.load`)."""
    busy: tuple[BusyPartition, ...] = ()
    """The node's busiest partitions."""
    shard_time_ms: int = 0
    """Time that the node uses: the cluster's time, as far as known; 0: not reported."""
    leads: tuple[tuple[int, int], ...] = ()
    """(shard, milliseconds) of shards whose time is so far ahead of the node's."""
    callers: tuple[int, ...] = ()
    """Callers connected to the node (:func:`backend.cluster.reachability.sample`)."""
    release: str = ""
    """Holdfast release of the node; empty: not reported."""


class BackupPin(msgspec.Struct, frozen=True, array_like=True):
    """Protects what a backup is copying from deletion."""

    name: str
    """Name of the backup."""
    until_ms: int
    """Expiry of the pin, by the clock of the machine that makes the backup, which extends it while it copies.
    A backup does not depend on the pin: it fails if something it copies is missing."""
    logs: tuple[tuple[int, int, int], ...]
    """(log id, segment, checkpoint file): in these logs, nothing up to this segment and file is deleted."""


class Takeover(msgspec.Struct, frozen=True, array_like=True):
    """A node whose log was sealed because it was silent; informs operators only."""

    node: str
    log_id: int
    """Log of the silent incarnation."""
    time_ms: int
    """Time by the clock of the cluster's manager."""
    owners: tuple[str, ...] = ()
    """Names of the nodes that its shards were then assigned to."""


class ClusterEntry(msgspec.Struct, frozen=True):
    """Assignment of shards to nodes, and the manager that decides it.  A replaced manager's changes conflict by
    version."""

    manager: int = 0
    """Log id of the incarnation that manages the cluster; 0: none."""
    assignment: tuple[str, ...] = ()
    """Name of the node that is to have each shard, by shard number.  The shard's own entry names its current owner."""
    draining: tuple[str, ...] = ()
    """Nodes that are to give up all shards."""
    version: int = 0
    """Version; 0: not stored yet."""
    drained: tuple[str, ...] = ()
    """Nodes drained by an operator (:attr:`BackendCluster.drained`): this outlasts a restart of the node."""
    pins: tuple[BackupPin, ...] = ()
    """Pins of the backups in progress."""
    takeovers: tuple[Takeover, ...] = ()
    """The latest takeover of each node that has not returned since, oldest first."""


class BackendCluster(msgspec.Struct, frozen=True):
    """A registered backend cluster.  Never deleted, because its number is part of partition ids."""

    name: str
    number: int
    """Number: 0 for :data:`FIRST_CLUSTER`, others from 1 in order of registration."""
    weight: float = 1.0
    """Weight for the share of new queues that it gets."""
    state: ClusterState = "serving"
    """State; a ``retiring`` cluster gets no new queues, and its queues move away."""
    drained: tuple[str, ...] = ()
    """Nodes of the cluster that are to have no shards, until an operator changes it."""
    version: int = 1
    emptied: bool = False
    """True if the cluster is being retired and holds no queue any more."""


class ReportedNode(msgspec.Struct, frozen=True):
    """State of a node as seen by its cluster's manager."""

    name: str
    address: str = ""
    """Address of the node."""
    live: bool = True
    """True while its heartbeats advance."""
    incarnation: int = 0
    silent_ms: int = 0
    """Time since its heartbeat last advanced."""
    shards: int = 0
    cpu: float = 0.0
    """Used part of the CPU available to its process."""
    storage: float = 0.0
    """Used part of the scarcer of disk and memory for messages."""
    draining: bool = False
    unreachable: bool = msgspec.field(default=False, name="cut_off")
    """True if most callers of the cluster are not connected to the node."""
    release: str = ""
    """Holdfast release of the node; empty: not reported."""
    gone: bool = False
    """True if the node is dead and its log sealed: it has no shards any more, provided there is another node."""
    taken_over_ms: int = 0
    """Time of the takeover, by the clock of the cluster's manager then; 0: not known."""
    owners: tuple[str, ...] = ()
    """Nodes that its shards were then assigned to."""


class ClusterReport(msgspec.Struct, frozen=True):
    """Report of a backend cluster's manager, every other second.  No decision about data depends on it."""

    cluster: int
    """Number of the cluster."""
    term: int
    """Version of the cluster's entry: a replaced manager knows an older one."""
    count: int
    """Number of the report; increases for each manager."""
    time_ms: int
    """Time of the manager's clock."""
    utilisation: float
    """The nodes' mean CPU utilisation or the storage utilisation of the fullest node, whichever is higher."""
    manager: str = ""
    """Name of the managing node."""
    nodes: tuple[ReportedNode, ...] = ()
    moving: int = 0
    """Number of shards being handed over."""
    unassigned: int = 0
    """Number of shards without a live owner."""
    busy: tuple[BusyPartition, ...] = ()


class ManagerDecision(msgspec.Struct, frozen=True):
    """A decision of the out-cluster manager, or its outcome."""

    time_ms: int
    text: str
    """The decision and its reason."""


class Pin(msgspec.Struct, frozen=True, array_like=True):
    """A number of partitions that an operator has set for a queue."""

    queue_id: int
    partitions: int


class Candidate(msgspec.Struct, frozen=True, array_like=True):
    """A process that is, was or may become the out-cluster manager."""

    name: str
    start: str
    """Random id of the process's start."""
    time_ms: int
    """Time of its last report, by its clock."""
    gone_ms: int = 0
    """Time when another process replaced it, by that process's clock; 0: not replaced."""
    successor: str = ""
    """Name of the process that replaced it."""


class ManagerEntry(msgspec.Struct, frozen=True):
    """The process that is the out-cluster manager; it increments ``beats`` every other second."""

    manager: str = ""
    """Name of the process; empty: none."""
    start: str = ""
    """Random id of the process's start."""
    decisions: tuple[ManagerDecision, ...] = ()
    """Latest decisions, oldest first."""
    pins: tuple[Pin, ...] = ()
    """Queues whose number of partitions an operator has set; changed on the operator's behalf."""
    time_ms: int = 0
    """Time of the manager's last update, by its clock; informative only."""
    version: int = 0
    """Version; 0: not stored yet."""
    beats: int = 0
    """Heartbeat counter of the manager; unlike the version it does not count the candidates' reports."""
    candidates: tuple[Candidate, ...] = ()
    """The manager, processes standing by, and those that recently ended without resigning."""


_CLUSTER_NAME = re.compile(r"[a-z][a-z0-9_]{0,23}\Z")


def check_cluster_name(name: str) -> str:
    """Return the name if it can be part of a keyspace's name.  Raises ``ValueError``."""
    if not _CLUSTER_NAME.match(name):
        raise ValueError(
            f"a backend cluster cannot have the name {name!r}: it has to be 1 to 24 lower-case letters, digits and"
            " underscores, with a letter first"
        )
    return name


class ChunkRef(msgspec.Struct, frozen=True, array_like=True):
    """Location of a checkpoint chunk, and the CRC of its bytes."""

    log_id: int
    file: int
    offset: int
    length: int
    crc: int


class StoppedPartition(msgspec.Struct, frozen=True, array_like=True):
    """A partition that cannot be served because its data are damaged, with the location of what is left of it.

    Kept apart, so that the rest of its shard is served.  Removed when its loss is accepted or its queue is
    deleted.
    """

    partition: int
    queue_id: int
    """Queue of the partition; 0: not known, or the partition is not a queue's."""
    checkpoint: ChunkRef | None
    """Its own chunk in the last checkpoint that contained it."""
    chain: tuple[tuple[int, int, int], ...]
    """Ownerships to be folded on top of that, as in :attr:`ShardEntry.chain`."""
    live: tuple[tuple[int, int], ...]
    """Segments it points into, as in :attr:`ShardEntry.live`."""


class ShardEntry(msgspec.Struct, frozen=True):
    """Owner of a shard, and the data its state is folded from."""

    shard: int
    owner_log: int
    epoch: int
    checkpoint: ChunkRef | None = None
    checkpoint_log: int = 0
    checkpoint_seq: int = 0
    """Sequence number in ``checkpoint_log``: the checkpoint contains everything up to this row."""
    chain: tuple[tuple[int, int, int], ...] = ()
    """(log id, epoch, from seq) of each ownership since the checkpoint, oldest first."""
    live: tuple[tuple[int, int], ...] = ()
    """(log id, segment) of each segment that the checkpoint points into."""
    version: int = 0
    """Version; 0: not stored yet."""
    accepted: tuple[str, ...] = ()
    """Marks of damage whose loss an operator has accepted: it is skipped when the shard is folded."""
    stopped: tuple[StoppedPartition, ...] = ()
    """Partitions excluded from ``checkpoint`` and ``chain``, because they cannot be served."""
    files: tuple[tuple[int, int], ...] | None = None
    """(log id, file) of each checkpoint file that the checkpoint uses; None: not known, in an older entry."""

    @property
    def files_unknown(self) -> bool:
        """True if the checkpoint may use any checkpoint file."""
        return self.files is None and self.checkpoint is not None

    def logs(self) -> set[int]:
        """Logs from which the shard or one of its stopped partitions is folded."""
        chains = (self.chain, *(one.chain for one in self.stopped))
        return {log_id for chain in chains for log_id, _, _ in chain}

    def mentions(self) -> set[int]:
        """All logs that this entry refers to."""
        refs = (self.checkpoint, *(one.checkpoint for one in self.stopped))
        marked = {int(mark[4:].partition(":")[0]) for mark in self.accepted if mark.startswith("row ")}
        return {
            self.owner_log,
            self.checkpoint_log,
            *self.logs(),
            *marked,
            *(log_id for log_id, _ in self.segments()),
            *(log_id for log_id, _ in self.files or ()),
            *(ref.log_id for ref in refs if ref is not None),
        }

    def segments(self) -> set[tuple[int, int]]:
        """(log id, segment) of each segment that one of its checkpoints points into."""
        return {segment for live in (self.live, *(one.live for one in self.stopped)) for segment in live}


class _RedrivePolicy(msgspec.Struct):
    target: str = msgspec.field(name="deadLetterTargetArn")


class _TaggedRecord(msgspec.Struct):
    tags: dict[str, str]


_decode_tagged = msgspec.json.Decoder(_TaggedRecord).decode


def tags_in(record: str) -> dict[str, str]:
    """Tags in a stored record of a queue, decoded without the rest of it."""
    return _decode_tagged(record).tags


def dead_letter_arn(attributes: Mapping[str, str]) -> str | None:
    """ARN of the queue's dead-letter queue; stores keep it beside the queue, so that its sources can be listed."""
    policy = attributes.get("RedrivePolicy")
    return msgspec.json.decode(policy, type=_RedrivePolicy).target if policy else None

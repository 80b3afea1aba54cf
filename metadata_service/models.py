"""The records of the metadata service.

All are immutable; every one that can change carries ``version``, which the store raises by one on each
change.  A change names the version it was computed from, so that two writers never overwrite each other
unseen.  Units are part of the names: ``_s`` seconds and ``_ms`` milliseconds since the Unix epoch.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

LOG_ID_LIMIT = 1 << 20
"""Log ids are smaller than this: a position in a log keeps its log's id in 20 bits."""
CLUSTERS_MOST = 1 << 12
"""Numbers of backend clusters are smaller than this."""
SERIAL_BITS = 40
"""Of a partition's id; what is above them is the number of its cluster."""
FIRST_CLUSTER = "local"
"""The backend cluster with the number 0: all there is in an installation that never named one."""

LogState = Literal["open", "recovering", "sealed"]
PartitionState = Literal["open", "draining"]
ClusterState = Literal["serving", "retiring"]


def partition_id(cluster: int, serial: int) -> int:
    """The id of a partition: the ``serial``-th that was made in the backend cluster of this number."""
    assert 0 <= cluster < CLUSTERS_MOST
    assert 0 < serial < 1 << SERIAL_BITS
    return cluster << SERIAL_BITS | serial


def cluster_of(partition: int) -> int:
    """The number of the backend cluster that has the partition, from its beginning to its end."""
    return partition >> SERIAL_BITS


def partition_counter(cluster: int) -> str:
    """What counts the partitions that were made in a cluster."""
    return f"partition/{cluster}" if cluster else "partition"


class Partition(msgspec.Struct, frozen=True, array_like=True):
    """One part of a queue.  Ids are never reused, and name the backend cluster (:func:`cluster_of`)."""

    id: int
    cluster: str = FIRST_CLUSTER
    """Says nothing: earlier versions wrote it before clusters had numbers."""
    state: PartitionState = "open"
    """``draining``: nothing is sent to it any more, and when it is empty it goes."""
    slot: int = 0
    """What is sent goes to a slot by its token or message group; each has one open partition."""
    awaits: tuple[int, ...] = ()
    """Partitions that have to hand their tokens over before this one takes a send with a token."""


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
    map_version: int = 0
    """The version with which the queue got the partitions that sends go to by now; 0: those it was made with."""
    retired: tuple[int, ...] = ()
    """Partitions that the queue had and that have gone, empty: the last ones of them."""


def new_queue(
    queue_id: int,
    partition_ids: Iterable[int],
    account: str,
    name: str,
    attributes: Mapping[str, str],
    tags: Mapping[str, str],
    now_ms: int,
) -> Queue:
    """A queue as it begins: with these partitions, and a handle key of its own."""
    return Queue(
        queue_id=queue_id,
        account=account,
        name=name,
        version=1,
        attributes=dict(attributes),
        tags=dict(tags),
        created_s=now_ms // 1000,
        modified_s=now_ms // 1000,
        partitions=tuple(Partition(number, slot=slot) for slot, number in enumerate(partition_ids)),
        handle_key=secrets.token_bytes(16),
    )


class LogEntry(msgspec.Struct, frozen=True):
    """What one incarnation of a backend node writes, and whether it still may.

    Never deleted, and no other log ever has its id: a position in it means this log for ever.
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
    held: str = ""
    """Name of who finds out where the log ends.  Until it is taken away its writer answers nothing; any other change of
    the entry takes it away."""
    swept: bool = False
    """Nothing is left of it, no segment and no file of pieces: no sweep looks for any."""


class BusyPartition(msgspec.Struct, frozen=True, array_like=True):
    """One of the partitions with the most to do."""

    partition: int
    queue_id: int
    rate: float
    """Messages a second, sent and received together."""


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
    cpu: float = 0.0
    storage: float = 0.0
    """What the node uses of these, as parts of what it has (:mod:`backend.load`)."""
    busy: tuple[BusyPartition, ...] = ()
    """The partitions with the most to do."""
    shard_time_ms: int = 0
    """At which its shards are served: its clock, or where that is on the way to the cluster's time; 0: it has none."""
    callers: tuple[int, ...] = ()
    """Who is connected to the node (:func:`backend.reach.sample`)."""
    release: str = ""
    """Of Holdfast, that the node runs; empty: one that did not say so yet."""
    can_be_held: bool = False
    """The node lets its answers wait while its log is held (:attr:`LogEntry.held`); earlier programs do not."""
    read_ahead: tuple[tuple[int, int], ...] | None = None
    """(shard, version of its entry): what the entry's checkpoint names was read, as far as there is room for it, since
    the shard is on its way to the node; None: a program that does not say so."""


class BackupPin(msgspec.Struct, frozen=True, array_like=True):
    """Keeps what a backup is copying from being dropped."""

    name: str
    """Of the backup."""
    until_ms: int
    """By the clock of the machine that makes the backup, which puts it off while it copies; then the pin is void.  No
    backup rests on this: one that does not find what it is to copy fails."""
    logs: tuple[tuple[int, int, int], ...]
    """(log id, segment, file of pieces): of these logs, nothing up to this segment and this file goes."""


class Takeover(msgspec.Struct, frozen=True, array_like=True):
    """A node whose log was sealed because it was silent; for operators, nothing is decided by it."""

    node: str
    log_id: int
    """Log of the incarnation that was silent."""
    time_ms: int
    """By the clock of the node that managed the cluster."""
    owners: tuple[str, ...] = ()
    """Names of the nodes that its shards were assigned to, then."""


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
    drained: tuple[str, ...] = ()
    """The same, by an operator's word (:attr:`BackendCluster.drained`): it outlasts a start of the node."""
    pins: tuple[BackupPin, ...] = ()
    """Of the backups that are being made."""
    takeovers: tuple[Takeover, ...] = ()
    """The latest of each node that has not come back since, oldest first."""


class BackendCluster(msgspec.Struct, frozen=True):
    """A backend cluster, as it is registered.  Never deleted, for its number is in the ids of partitions."""

    name: str
    number: int
    """0 for :data:`FIRST_CLUSTER`, others from 1 on, as they were registered."""
    weight: float = 1.0
    """How many of the new queues it gets beside others."""
    state: ClusterState = "serving"
    """``retiring``: it gets no new queues, and those that it has move away."""
    drained: tuple[str, ...] = ()
    """Nodes of it that are to have no shards, until an operator says otherwise."""
    version: int = 1
    emptied: bool = False
    """It is being retired, and no queue is there any more."""


class ReportedNode(msgspec.Struct, frozen=True):
    """A node, as the manager of its cluster sees it."""

    name: str
    address: str = ""
    """Where it is reached."""
    live: bool = True
    """Its heartbeat moves."""
    incarnation: int = 0
    silent_ms: int = 0
    """Since its heartbeat moved last."""
    shards: int = 0
    cpu: float = 0.0
    """As a part of what its process can use."""
    storage: float = 0.0
    """Of what it has least of, disk or memory for messages, as a part of the whole."""
    draining: bool = False
    cut_off: bool = False
    """Most of those who call the cluster are not connected to it."""
    release: str = ""
    """Of Holdfast, that it runs; empty: one that did not say so yet."""
    gone: bool = False
    """It does not live, and its log was sealed: it has no shards any more, if there is another node."""
    taken_over_ms: int = 0
    """Time of that, by the clock of the node that managed the cluster then; 0: not known."""
    owners: tuple[str, ...] = ()
    """The nodes that its shards were assigned to, then."""


class ClusterReport(msgspec.Struct, frozen=True):
    """What the manager of a backend cluster says of it every other second.  Nothing about data is decided by it."""

    cluster: int
    """Its number."""
    term: int
    """Version of the cluster's entry: a manager that was replaced knows an older one."""
    count: int
    """Rises with each report of one manager."""
    time_ms: int
    """The manager's clock."""
    utilisation: float
    """The nodes' mean of the CPU, or the storage of the fullest: which is more."""
    manager: str = ""
    """Name of the node."""
    nodes: tuple[ReportedNode, ...] = ()
    moving: int = 0
    """Shards on their way from one node to another."""
    homeless: int = 0
    """Shards that no living node has."""
    busy: tuple[BusyPartition, ...] = ()


class Decision(msgspec.Struct, frozen=True):
    """Something that the out-cluster manager has decided, or how it went."""

    time_ms: int
    text: str
    """What, and why."""


class Pin(msgspec.Struct, frozen=True, array_like=True):
    """An operator's word how many partitions a queue is to have."""

    queue_id: int
    partitions: int


class Candidate(msgspec.Struct, frozen=True, array_like=True):
    """A process that is the out-cluster manager, or stands by to become it, or was one of these."""

    name: str
    start: str
    """A random name of the process's start."""
    time_ms: int
    """Time of its last sign of life, by its clock."""
    gone_ms: int = 0
    """Time at which another one took its place, by that one's clock; 0: none has."""
    successor: str = ""
    """Name of that one."""


class ManagerEntry(msgspec.Struct, frozen=True):
    """The process that is the out-cluster manager, which raises ``beats`` every other second while it lives."""

    manager: str = ""
    """Name of the process; empty: nobody."""
    start: str = ""
    """A random name of the process's start."""
    decisions: tuple[Decision, ...] = ()
    """The latest, oldest first."""
    pins: tuple[Pin, ...] = ()
    """Queues whose number of partitions is an operator's affair; changed by whoever speaks for the operator."""
    time_ms: int = 0
    """When the manager raised the version last, by its clock; nothing is decided by it."""
    version: int = 0
    """0: not stored yet."""
    beats: int = 0
    """Rises with each sign of life of the manager: the version also rises with those of candidates."""
    candidates: tuple[Candidate, ...] = ()
    """Processes that are the manager or stand by, and those that ended without taking leave, lately."""


_CLUSTER_NAME = re.compile(r"[a-z][a-z0-9_]{0,23}\Z")


def check_cluster_name(name: str) -> str:
    """The name, which can be part of a keyspace's.  Raises ``ValueError``."""
    if not _CLUSTER_NAME.match(name):
        raise ValueError(
            f"a backend cluster cannot have the name {name!r}: it has to be 1 to 24 lower-case letters, digits and"
            " underscores, with a letter first"
        )
    return name


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

    @property
    def files_unknown(self) -> bool:
        """Any file of pieces may be one that it rests on."""
        return self.files is None and self.checkpoint is not None

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

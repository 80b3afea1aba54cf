"""Streams and consumer groups, as frontend and backend exchange them: settings, errors, requests and answers.

The meaning of every field and error is that of Kafka's protocol, version 3.9 of Kafka.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from backend.api import AckLevel, BackendError

NO_TIMESTAMP = -1
NO_PRODUCER = -1
"""Producer id of a batch that no idempotent producer has sent; its epoch and sequence are then -1 as well."""
NO_OFFSET = -1
NO_EPOCH = -1
NO_GENERATION = -1
DAY_MS = 86_400_000

TopicPartition: TypeAlias = tuple[bytes, int]
"""A topic's id, 16 bytes, and the number of one of its partitions in the topic."""


class StreamError(enum.IntEnum):
    """Errors of Kafka's protocol that streams and groups answer, with the protocol's numbers."""

    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_NOT_AVAILABLE = 15
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87


class StreamRefused(BackendError):
    """A stream's partition refused the command, which has changed nothing."""

    def __init__(self, error: StreamError, text: str) -> None:
        super().__init__(text)
        self.error = error


# --- streams ------------------------------------------------------------------------------------------


class StreamSettings(msgspec.Struct, frozen=True, array_like=True):
    """Settings of a topic that a partition needs.  Journaled, so that a replay forgets what the first run forgot."""

    partition: int
    stream_id: int
    """The topic's incarnation."""
    version: int
    account: str
    """Account that owns the topic."""
    topic: str
    topic_id: bytes
    """The topic's id in Kafka's protocol, 16 bytes."""
    number: int
    """The partition's number in its topic."""
    retention_ms: int = 7 * DAY_MS
    """Time for which batches are kept, by their largest timestamp; -1: for ever."""
    retention_bytes: int = -1
    """Bytes above which the oldest extents are removed; -1: no limit."""
    has_retention: bool = True
    """False if the topic's cleanup policy is compaction alone: then nothing is removed by age, size or request."""
    append_time: bool = False
    """The batches' timestamp is the time of the append, not the producer's."""
    batch_bytes_max: int = 1_048_588
    """Bytes of a batch as the client sent it."""
    producer_expiry_ms: int = DAY_MS
    """Time after its last append at which an idempotent producer is forgotten."""
    ack_level: AckLevel = AckLevel.QUORUM


class NewBatch(msgspec.Struct, array_like=True, gc=False):
    """One batch to be appended.  The frontend has checked its format, its checksum and its records' timestamps."""

    payload: bytes
    """The client's batch, encrypted."""
    record_count: int
    """Number of offsets that the batch takes: its last offset delta plus one."""
    client_bytes: int
    """Length of the client's batch."""
    first_timestamp: int = NO_TIMESTAMP
    max_timestamp: int = NO_TIMESTAMP
    attributes: int = 0
    """The batch's attributes: codec, type of timestamps."""
    producer_id: int = NO_PRODUCER
    producer_epoch: int = NO_EPOCH
    base_sequence: int = -1


class Appended(msgspec.Struct, array_like=True):
    """Answer to an append."""

    base_offset: int
    append_ms: int
    """Time of the append if that is the batches' timestamp, otherwise -1.  Of a duplicate: the first one's largest
    timestamp, as in Kafka.
    """
    log_start: int
    duplicate: bool = False
    """The batch had been appended before: nothing was stored again."""


class FoundOffset(msgspec.Struct, array_like=True, frozen=True):
    """An offset found by time or by epoch; -1 in each field: there is none."""

    offset: int
    timestamp: int = NO_TIMESTAMP
    leader_epoch: int = NO_EPOCH


# --- groups -------------------------------------------------------------------------------------------


class GroupSettings(msgspec.Struct, frozen=True, array_like=True):
    """Settings of a consumer group.  Journaled."""

    partition: int
    group_id: int
    """The group's incarnation."""
    version: int
    account: str
    name: str
    initial_rebalance_delay_ms: int = 3_000
    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    members_max: int = 1_000
    offsets_retention_ms: int = 7 * DAY_MS
    metadata_bytes_max: int = 4_096
    """Bytes of the metadata of one committed offset."""


class JoinRequest(msgspec.Struct, array_like=True):
    """A JoinGroup request."""

    member_id: str
    """Empty: a new member, or a static one that has restarted."""
    new_member_id: str
    """Id for the member if it needs one: unique, chosen by the caller."""
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Names and metadata, in the order of the client's preference."""
    instance_id: str | None = None
    """Set for a static member."""
    requires_known_member_id: bool = True
    """True from version 4 of the request on."""
    can_skip_assignment: bool = False
    """True from version 9 of the request on."""


class JoinedMember(msgspec.Struct, array_like=True, frozen=True):
    """A member as it is reported to the leader."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinAnswer(msgspec.Struct, array_like=True):
    error: StreamError
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: list[JoinedMember] = []
    """The group's members, for the leader only."""
    skip_assignment: bool = False


class SyncRequest(msgspec.Struct, array_like=True):
    """A SyncGroup request."""

    member_id: str
    generation: int
    assignments: dict[str, bytes] = {}
    """By member; only the leader sends them."""
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None


class SyncAnswer(msgspec.Struct, array_like=True):
    error: StreamError
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


class Departure(msgspec.Struct, array_like=True, frozen=True):
    """A member that leaves, by its id; a static one by its instance id alone, if its member id is empty."""

    member_id: str
    instance_id: str | None = None


class CommittedOffset(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An offset as a group has committed it."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    commit_ms: int = 0
    expire_ms: int = -1
    """Time at which it expires, if the client has set one; otherwise -1."""


class OffsetCommit(msgspec.Struct, array_like=True):
    """One offset to be committed."""

    topic: str
    topic_id: bytes
    partition: int
    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    retention_ms: int = -1
    """Time for which it is kept, as old clients set it; -1: the group's."""


class FetchedOffset(msgspec.Struct, array_like=True, frozen=True):
    """A committed offset with its topic and partition."""

    topic: str
    topic_id: bytes
    partition: int
    committed: CommittedOffset


class DescribedMember(msgspec.Struct, array_like=True, frozen=True):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class DescribedGroup(msgspec.Struct, array_like=True, frozen=True):
    state: str
    protocol_type: str
    protocol: str
    members: tuple[DescribedMember, ...]

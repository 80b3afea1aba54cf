"""Commands for streams and consumer groups, with the types of their answers.

They are commands as those of queues are (:class:`backend.api.Command`): a :class:`~backend.api.Target` names the
partition, the incarnation of the topic or group (``queue_id``), and the version of its settings that the caller knows.
A partition that is not open raises :class:`~backend.api.PartitionUnknown`: configure it and retry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

import msgspec

from backend.api import AccountCommand, AckLevel, ClientCommand, MessageCommand, PartitionCommand
from backend.stream_api import (
    NO_EPOCH,
    NO_PRODUCER,
    NO_TIMESTAMP,
    Appended,
    CommittedOffset,
    Departure,
    DescribedGroup,
    FetchedOffset,
    FoundOffset,
    GroupSettings,
    JoinAnswer,
    JoinRequest,
    NewBatch,
    OffsetCommit,
    StreamError,
    StreamSettings,
    SyncAnswer,
    SyncRequest,
    TopicPartition,
)

LARGEST_TIMESTAMP = -3
"""Searched instead of a timestamp: the first record with the largest timestamp."""


# --- answers ------------------------------------------------------------------------------------------


class FetchedBatch(msgspec.Struct, array_like=True, gc=False):
    """A batch as it was appended, with what the append decided."""

    base_offset: int
    record_count: int
    """Number of offsets."""
    leader_epoch: int
    payload: bytes | None
    """The client's batch, encrypted.  None: it is lost; clients get an empty batch with its offsets."""
    append_ms: int = NO_TIMESTAMP
    """Timestamp of the batch's records, if that is the time of the append; otherwise -1."""
    max_timestamp: int = NO_TIMESTAMP

    @property
    def end_offset(self) -> int:
        """Offset behind the batch."""
        return self.base_offset + self.record_count


class Fetched(msgspec.Struct, array_like=True):
    """Answer to a fetch."""

    batches: list[FetchedBatch]
    durable_end: int
    """Offset below which all batches are durable: Kafka's high watermark."""
    log_start: int


class StreamEnds(msgspec.Struct, array_like=True):
    """The first and the last offset of a stream's partition."""

    log_start: FoundOffset
    durable_end: FoundOffset
    stored_bytes: int


class TimestampFound(msgspec.Struct, array_like=True):
    """A batch with a record that a search by timestamp looks for.

    It is the batch's first record at or behind ``offset`` with at least ``timestamp``.  If the batch has none (its only
    such records lie below ``offset``, or it is lost), the search continues from the batch's end.
    """

    batch: FetchedBatch
    timestamp: int
    offset: int


class LeaveAnswer(msgspec.Struct, array_like=True):
    error: StreamError
    errors: list[StreamError] = []
    """One for each member, if the request as a whole has no error."""


class ListedGroup(msgspec.Struct, array_like=True, frozen=True):
    """A consumer group as it is listed."""

    name: str
    protocol_type: str
    state: str
    """State, as Kafka names it: ``Stable``, ``Empty`` …"""


class DeleteOffsetsAnswer(msgspec.Struct, array_like=True):
    error: StreamError
    errors: list[StreamError] = []
    """One for each offset, if the request as a whole has no error."""


# --- streams ------------------------------------------------------------------------------------------


class ConfigureStream(ClientCommand[None]):
    """Open a stream's partition, or give it newer settings.  Older settings are ignored."""

    KIND: ClassVar[int] = 64
    settings: StreamSettings

    @property
    def partition(self) -> int:
        return self.settings.partition


class DropStream(PartitionCommand[None]):
    """Forget the partition and its batches, because the topic is deleted.  Idempotent."""

    KIND: ClassVar[int] = 65


class AppendBatch(MessageCommand[Appended]):
    """Append a batch.  Raises :class:`StreamRefused` and :class:`StorageFull`.

    At :attr:`AckLevel.ALL` it also raises :class:`Unavailable` when a replica is down; the batch may be stored.
    """

    KIND: ClassVar[int] = 66
    IN_ORDER: ClassVar[bool] = True
    batch: NewBatch
    level: AckLevel | None = None
    """Durability that the answer waits for; None: the topic's."""

    @property
    def needs_earlier(self) -> bool:
        return self.batch.producer_id != NO_PRODUCER


class FetchBatches(MessageCommand[Fetched]):
    """Return durable batches from the one that contains ``offset`` on; wait for the first one for ``wait_seconds``.

    Raises :class:`StreamRefused`.  A batch is never cut, and the first one is returned whatever its length, unless
    ``at_least_one`` is false.  A caller may stop to wait at any time.
    """

    KIND: ClassVar[int] = 67
    offset: int
    bytes_max: int
    """Bytes of payloads."""
    wait_seconds: float = 0.0
    epoch: int = NO_EPOCH
    """Epoch that the client believes to be the current one."""
    at_least_one: bool = True

    @property
    def wait_time(self) -> float:
        return self.wait_seconds

    def with_wait_time(self, seconds: float) -> Self:
        return msgspec.structs.replace(self, wait_seconds=seconds)


class ReadStreamEnds(PartitionCommand[StreamEnds]):
    """Return the first offset and the durable end.  Raises :class:`StreamRefused`."""

    KIND: ClassVar[int] = 68
    epoch: int = NO_EPOCH
    """Epoch that the client believes to be the current one."""


class SearchTimestamp(PartitionCommand[TimestampFound | None]):
    """Return the first batch at or behind ``from_offset`` with at least this timestamp; None: there is none.

    Raises :class:`StreamRefused`.
    """

    KIND: ClassVar[int] = 69
    timestamp: int
    """:data:`LARGEST_TIMESTAMP`: the largest one that is stored."""
    from_offset: int = 0
    epoch: int = NO_EPOCH
    """Epoch that the client believes to be the current one."""


class FindEpochEnd(PartitionCommand[FoundOffset]):
    """Return where an epoch ended (OffsetForLeaderEpoch).  Raises :class:`StreamRefused`."""

    KIND: ClassVar[int] = 70
    epoch: int
    current_epoch: int = NO_EPOCH
    """Epoch that the client believes to be the current one."""


class PartitionEnds(msgspec.Struct, array_like=True, gc=False):
    """The offsets of a topic's partition."""

    topic_id: bytes
    number: int
    """Number of the partition in its topic."""
    log_start: int
    next_offset: int


class ReadTopicEnds(AccountCommand[list[PartitionEnds]]):
    """Return the offsets of all partitions of these topics, which may belong to any account."""

    KIND: ClassVar[int] = 72
    topic_ids: Sequence[bytes]

    def merge(self, answers: Sequence[list[PartitionEnds]]) -> list[PartitionEnds]:
        return [ends for answer in answers for ends in answer]


class DeleteRecords(PartitionCommand[int]):
    """Delete all records below an offset (-1: below the durable end); return the first offset that is left.

    Raises :class:`StreamRefused`.
    """

    KIND: ClassVar[int] = 71
    before: int


# --- groups -------------------------------------------------------------------------------------------


class ConfigureGroup(ClientCommand[None]):
    """Open a group's partition, or give it newer settings.  Older settings are ignored.

    A group that was deleted, or that nobody used any more, begins anew.
    """

    KIND: ClassVar[int] = 80
    settings: GroupSettings

    @property
    def partition(self) -> int:
        return self.settings.partition


class JoinGroup(PartitionCommand[JoinAnswer]):
    """Join the group; wait for the other members for ``wait_seconds``.

    If they do not join in time, the answer is REBALANCE_IN_PROGRESS, and the member has to join again.
    """

    KIND: ClassVar[int] = 81
    request: JoinRequest
    wait_seconds: float

    @property
    def wait_time(self) -> float:
        return self.wait_seconds

    def with_wait_time(self, seconds: float) -> Self:
        return msgspec.structs.replace(self, wait_seconds=seconds)


class SyncGroup(PartitionCommand[SyncAnswer]):
    """Return the member's assignment; wait for the leader's for ``wait_seconds``.

    If it does not arrive in time, the answer is REBALANCE_IN_PROGRESS, and the member has to join again.
    """

    KIND: ClassVar[int] = 82
    request: SyncRequest
    wait_seconds: float

    @property
    def wait_time(self) -> float:
        return self.wait_seconds

    def with_wait_time(self, seconds: float) -> Self:
        return msgspec.structs.replace(self, wait_seconds=seconds)


class GroupHeartbeat(PartitionCommand[StreamError]):
    """Keep a member's session alive; return the error to answer, REBALANCE_IN_PROGRESS if it has to join again."""

    KIND: ClassVar[int] = 83
    member_id: str
    generation: int
    instance_id: str | None = None


class LeaveGroup(PartitionCommand[LeaveAnswer]):
    """Remove members."""

    KIND: ClassVar[int] = 84
    departures: Sequence[Departure]


class CommitOffsets(PartitionCommand[list[StreamError]]):
    """Commit offsets in the name of a member, or of nobody; return an error for each offset."""

    KIND: ClassVar[int] = 85
    member_id: str
    generation: int
    instance_id: str | None
    commits: Sequence[OffsetCommit]


class FetchOffsets(PartitionCommand[list[CommittedOffset | None]]):
    """Return the committed offset of each of these partitions; None: there is none."""

    KIND: ClassVar[int] = 86
    wanted: Sequence[TopicPartition]


class ListCommittedOffsets(PartitionCommand[list[FetchedOffset]]):
    """Return all committed offsets."""

    KIND: ClassVar[int] = 87


class DeleteOffsets(PartitionCommand[DeleteOffsetsAnswer]):
    """Delete committed offsets of topics that no member has subscribed to."""

    KIND: ClassVar[int] = 88
    wanted: Sequence[tuple[str, bytes, int]]
    """(topic, topic id, partition)"""


class ForgetTopic(PartitionCommand[None]):
    """Delete the committed offsets of a topic that was deleted.  Idempotent."""

    KIND: ClassVar[int] = 89
    topic_id: bytes


class DescribeGroup(PartitionCommand[DescribedGroup]):
    """Return the group's state and its members."""

    KIND: ClassVar[int] = 90


class DeleteGroup(PartitionCommand[StreamError]):
    """Delete the group, which must have no members; return the error to answer."""

    KIND: ClassVar[int] = 91


class ListGroups(AccountCommand[list[ListedGroup]]):
    """Return the account's groups, in no order."""

    KIND: ClassVar[int] = 92

    def merge(self, answers: Sequence[list[ListedGroup]]) -> list[ListedGroup]:
        return [group for answer in answers for group in answer]

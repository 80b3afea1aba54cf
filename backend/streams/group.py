"""The durable state of a consumer group, and ``apply``, the only code that changes it.

The journal has the last generation whose members got their assignments, and of each partition the last committed
offset.  It has no heartbeat and no join: who is about to join is state of the coordinator
(:mod:`backend.streams.coordinator`), which a takeover loses.  Members then go on with their generation, or join again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from backend.engine.blocks import Ref
from backend.engine.timers import NEVER
from backend.stream_api import CommittedOffset, GroupSettings, TopicPartition
from backend.streams import records
from backend.streams.records import StoredMember

GROUP_BYTES = 4_000
MEMBER_BYTES = 1_500
OFFSET_BYTES = 300
"""Approximate memory of a group without members, of a member, and of a committed offset."""
PARTITION_BITS = 8
"""Offsets of 256 partitions of a topic share a chunk of a checkpoint."""


class Generation:
    """The members of the last generation that has assignments."""

    __slots__ = ("leader", "members", "number", "protocol", "protocol_type", "ref")

    def __init__(self) -> None:
        self.number = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: tuple[StoredMember, ...] = ()
        self.ref: Ref | None = None
        """Reference to this generation in the last checkpoint; None if it has changed since."""


class OffsetBlock:
    """Committed offsets of neighbouring partitions of a topic, by partition."""

    __slots__ = ("offsets", "ref", "topic")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.offsets: dict[int, CommittedOffset] = {}
        self.ref: Ref | None = None
        """Reference to this block in the last checkpoint; None if it has changed since."""


class GroupFold:
    """The state of one group.  Read it freely; change it by :meth:`apply` only."""

    __slots__ = (
        "blocks",
        "changed",
        "dropped",
        "due",
        "empty_since_ms",
        "epoch",
        "generation",
        "now",
        "partition",
        "segments",
        "settings",
        "stored_bytes",
    )

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.settings: GroupSettings | None = None
        self.now = 0
        self.due = NEVER
        """Time alone changes nothing here."""
        self.epoch = 0
        self.generation = Generation()
        self.empty_since_ms = 0
        """Time from which the group has no members; 0 while it has some."""
        self.blocks: dict[TopicPartition, OffsetBlock] = {}
        """By topic id and partition number >> PARTITION_BITS."""
        self.dropped = False
        self.stored_bytes = 0
        self.segments: dict[int, int] = {}
        """A group holds no segment: its records have no bodies."""
        self.changed = True
        """The state has changed since the last checkpoint."""

    def apply(self, record: records.GroupRecord, now: int, position: int = 0, size: int = 0) -> None:
        """Change the state by one record.  ``position`` and ``size`` are not needed: groups store no payloads."""
        self.advance(now)
        self.changed = True
        _APPLIERS[type(record)](self, record, self.now)

    def advance(self, now: int) -> None:
        """Set the time, which never goes back."""
        if now > self.now:
            self.now = now

    def open(self, epoch: int) -> None:
        """Continue under a new owner."""
        self.epoch = epoch

    def stored_byte_ms(self, until: int) -> int:
        """Return 0: a group stores no payloads."""
        return 0

    def memory_bytes(self) -> int:
        """Return the approximate memory of the state in bytes."""
        offsets = sum(len(block.offsets) for block in self.blocks.values())
        return GROUP_BYTES + len(self.generation.members) * MEMBER_BYTES + offsets * OFFSET_BYTES

    # --- offsets --------------------------------------------------------------------------------------

    def committed(self, topic_id: bytes, partition: int) -> CommittedOffset | None:
        block = self.blocks.get((topic_id, partition >> PARTITION_BITS))
        return None if block is None else block.offsets.get(partition)

    def offsets(self) -> Iterator[tuple[bytes, str, int, CommittedOffset]]:
        """Yield topic id, topic, partition and offset of each committed offset."""
        for (topic_id, _), block in self.blocks.items():
            for partition, committed in block.offsets.items():
                yield topic_id, block.topic, partition, committed

    # --- records --------------------------------------------------------------------------------------

    def _configured(self, record: records.GroupConfigured, now: int) -> None:
        if self.settings is None:
            self.empty_since_ms = now
        self.settings = record.settings

    def _started(self, record: records.GenerationStarted, now: int) -> None:
        generation = self.generation
        assert record.generation >= generation.number, "generations rise"
        had_members = bool(generation.members)
        generation.number = record.generation
        generation.protocol_type, generation.protocol = record.protocol_type, record.protocol
        generation.leader, generation.members = record.leader, record.members
        generation.ref = None
        if record.members:
            self.empty_since_ms = 0
        elif had_members or not self.empty_since_ms:
            self.empty_since_ms = now

    def _committed(self, record: records.OffsetsCommitted, now: int) -> None:
        for topic_id, topic, offsets in record.topics:
            for partition, committed in offsets:
                key = (topic_id, partition >> PARTITION_BITS)
                block = self.blocks.get(key)
                if block is None:
                    block = self.blocks[key] = OffsetBlock(topic)
                block.offsets[partition] = committed
                block.topic = topic
                block.ref = None

    def _deleted(self, record: records.OffsetsDeleted, now: int) -> None:
        for topic_id, partition in record.offsets:
            key = (topic_id, partition >> PARTITION_BITS)
            block = self.blocks.get(key)
            if block is not None and block.offsets.pop(partition, None) is not None:
                block.ref = None
                if not block.offsets:
                    del self.blocks[key]

    def _dropped(self, record: records.GroupDropped, now: int) -> None:
        self.dropped = True
        self.generation = Generation()
        self.blocks.clear()

    def restored(self) -> None:
        """Complete a state that was read from a checkpoint."""
        self.changed = False


_APPLIERS: dict[type, Callable[[GroupFold, Any, int], None]] = {
    records.GroupConfigured: GroupFold._configured,
    records.GenerationStarted: GroupFold._started,
    records.OffsetsCommitted: GroupFold._committed,
    records.OffsetsDeleted: GroupFold._deleted,
    records.GroupDropped: GroupFold._dropped,
}

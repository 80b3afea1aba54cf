"""Committed offsets of a consumer group: commit, fetch, deletion and expiry.

The rules are those of Kafka 3.9, with one exception: the offsets of a group without members are kept for the retention
time after they were committed, too, not only after the group lost its members.
"""

from __future__ import annotations

from collections.abc import Sequence

from backend.stream_api import (
    CommittedOffset,
    FetchedOffset,
    OffsetCommit,
    StreamError,
    TopicPartition,
)
from backend.streams import records
from backend.streams.coordinator import GroupCoordinator, GroupPhase
from backend.streams.group import GroupFold
from backend.streams.members import CONSUMER

CHECK_MS = 600_000
"""Interval in which expired offsets are removed; and the time for which a group without members and offsets stays."""


class OffsetCommands:
    """Decisions on the offsets of one group.  The caller has advanced its coordinator to ``now``."""

    def __init__(self, fold: GroupFold, coordinator: GroupCoordinator) -> None:
        self.fold = fold
        self.coordinator = coordinator

    # --- commit ---------------------------------------------------------------------------------------

    def commit(
        self, member_id: str, generation: int, instance_id: str | None, commits: Sequence[OffsetCommit], now: int
    ) -> tuple[list[records.GroupRecord], list[StreamError]]:
        """Return the record of a commit, and an error for each offset."""
        error = self._commit_error(member_id, generation, instance_id, now)
        if error is not StreamError.NONE:
            return [], [error] * len(commits)
        settings = self.fold.settings
        assert settings is not None
        errors = []
        topics: dict[bytes, tuple[bytes, str, list[tuple[int, CommittedOffset]]]] = {}
        for one in commits:
            if len(one.metadata.encode()) > settings.metadata_bytes_max:
                errors.append(StreamError.OFFSET_METADATA_TOO_LARGE)
                continue
            expire_ms = now + one.retention_ms if one.retention_ms >= 0 else -1
            committed = CommittedOffset(one.offset, one.leader_epoch, one.metadata, now, expire_ms)
            topic = topics.setdefault(one.topic_id, (one.topic_id, one.topic, []))
            topic[2].append((one.partition, committed))
            errors.append(StreamError.NONE)
        return [records.OffsetsCommitted(list(topics.values()))] if topics else [], errors

    def _commit_error(self, member_id: str, generation: int, instance_id: str | None, now: int) -> StreamError:
        phase = self.coordinator.phase
        if phase is GroupPhase.DEAD:
            return StreamError.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and phase is GroupPhase.EMPTY:
            return StreamError.NONE  # a tool, or a consumer that assigns partitions itself
        if generation < 0 and not member_id and instance_id is None:
            return StreamError.UNKNOWN_MEMBER_ID
        error = self.coordinator.check_member(member_id, generation, instance_id, now)
        if error is StreamError.NONE and phase is GroupPhase.COMPLETING:
            return StreamError.REBALANCE_IN_PROGRESS
        return error

    # --- fetch ----------------------------------------------------------------------------------------

    def fetch(self, wanted: Sequence[TopicPartition]) -> list[CommittedOffset | None]:
        """Return the committed offset of each partition."""
        return [self.fold.committed(topic_id, partition) for topic_id, partition in wanted]

    def fetch_all(self) -> list[FetchedOffset]:
        return [FetchedOffset(topic, topic_id, number, one) for topic_id, topic, number, one in self.fold.offsets()]

    # --- deletion and expiry --------------------------------------------------------------------------

    def delete(
        self, wanted: Sequence[tuple[str, bytes, int]]
    ) -> tuple[StreamError, list[records.GroupRecord], list[StreamError]]:
        """Delete the offsets of these (topic, topic id, partition).

        Return the error of the whole request, the record, and an error for each offset.
        """
        coordinator = self.coordinator
        if coordinator.phase is GroupPhase.DEAD:
            return StreamError.GROUP_ID_NOT_FOUND, [], []
        subscribed: set[str] | None = set()
        if coordinator.phase is not GroupPhase.EMPTY:
            if coordinator.protocol_type != CONSUMER:
                return StreamError.NON_EMPTY_GROUP, [], []
            subscribed = coordinator.subscribed()
        errors, gone = [], []
        for topic, topic_id, partition in wanted:
            if subscribed is None or topic in subscribed:
                errors.append(StreamError.GROUP_SUBSCRIBED_TO_TOPIC)
                continue
            errors.append(StreamError.NONE)
            if self.fold.committed(topic_id, partition) is not None:
                gone.append((topic_id, partition))
        return StreamError.NONE, [records.OffsetsDeleted(gone)] if gone else [], errors

    def delete_topic(self, topic_id: bytes) -> list[records.GroupRecord]:
        """Return the record that deletes the offsets of a topic that was deleted."""
        gone = [(found, partition) for found, _, partition, _ in self.fold.offsets() if found == topic_id]
        return [records.OffsetsDeleted(gone)] if gone else []

    def expire(self, now: int) -> list[records.GroupRecord]:
        """Return the records that remove expired offsets, and the group if nothing is left of it.

        To be called about every :data:`CHECK_MS`.
        """
        fold = self.fold
        if fold.dropped:
            return []
        assert fold.settings is not None
        gone = self._expired(now, fold.settings.offsets_retention_ms)
        written: list[records.GroupRecord] = [records.OffsetsDeleted(gone)] if gone else []
        is_unused = self.coordinator.phase is GroupPhase.EMPTY and not self.coordinator.members.pending
        left = sum(1 for _ in fold.offsets()) - len(gone)
        if is_unused and not left and now >= fold.empty_since_ms + CHECK_MS:
            written.append(records.GroupDropped(fold.settings.group_id))
        return written

    def _expired(self, now: int, retention_ms: int) -> list[TopicPartition]:
        coordinator = self.coordinator
        subscribed: set[str] | None = set()
        empty_since = 0
        if coordinator.phase is GroupPhase.EMPTY:
            empty_since = self.fold.empty_since_ms if coordinator.protocol_type is not None else 0
        elif coordinator.phase is GroupPhase.STABLE:
            subscribed = coordinator.subscribed()
        else:
            subscribed = None
        if subscribed is None:
            return []  # it is not known which offsets the members still use
        return [
            (topic_id, partition)
            for topic_id, topic, partition, one in self.fold.offsets()
            if topic not in subscribed
            and now >= (one.expire_ms if one.expire_ms >= 0 else max(one.commit_ms, empty_since) + retention_ms)
        ]

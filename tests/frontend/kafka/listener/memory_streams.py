"""Topics and consumer groups in memory: the real folds, without a journal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from typing import Any

import msgspec

from backend.api import PartitionGone, PartitionUnknown, SettingsStale, Target
from backend.stream_api import FoundOffset, JoinAnswer, StreamError, SyncAnswer
from backend.stream_commands import (
    LARGEST_TIMESTAMP,
    AppendBatch,
    CommitOffsets,
    ConfigureGroup,
    ConfigureStream,
    DeleteGroup,
    DeleteOffsets,
    DeleteOffsetsAnswer,
    DeleteRecords,
    DescribeGroup,
    FetchBatches,
    Fetched,
    FetchedBatch,
    FetchOffsets,
    FindEpochEnd,
    GroupHeartbeat,
    JoinGroup,
    LeaveAnswer,
    LeaveGroup,
    ListCommittedOffsets,
    ListedGroup,
    ListGroups,
    ReadStreamEnds,
    SearchTimestamp,
    StreamEnds,
    SyncGroup,
    TimestampFound,
)
from backend.streams.commands import LogPlace, StreamCommands
from backend.streams.coordinator import GroupCoordinator, GroupOutcome
from backend.streams.group import GroupFold
from backend.streams.members import Token
from backend.streams.offsets import OffsetCommands
from backend.streams.records import Batches, GroupConfigured, GroupRecord, StreamRecord
from backend.streams.stream import StreamFold
from frontend.streams.catalog import CatalogRefusal
from frontend.streams.errors import ErrorCode
from metadata_service.streams import NewStream, Stream

EPOCH = 3


def now_ms() -> int:
    return int(time.time() * 1000)


class MemoryCatalog:
    """Topics of all accounts.  Implements :class:`frontend.streams.catalog.StreamCatalog`."""

    def __init__(self) -> None:
        self.streams: dict[tuple[str, str], Stream] = {}
        self.stale: dict[tuple[str, str], Stream] = {}
        """Topics that reads return as they were before, until they are read anew."""
        self.fails_with: Exception | None = None
        self._ids = count(100)
        self._producers = count(1)

    def cached(self, account: str, name: str) -> Stream | None:
        return self.stale.get((account, name))

    async def reread(self, account: str, name: str) -> Stream | None:
        self.stale.pop((account, name), None)
        if self.fails_with is not None:
            raise self.fails_with
        return self.streams.get((account, name))

    async def find_by_id(self, account: str, topic_id: bytes) -> Stream | None:
        for stream in self.streams.values():
            if (stream.account, stream.topic_id) == (account, topic_id):
                return stream
        return None

    async def list_streams(self, account: str) -> list[Stream]:
        return [stream for (owner, _), stream in sorted(self.streams.items()) if owner == account]

    async def create(self, account: str, name: str, settings: Mapping[str, str], partitions: int) -> Stream:
        if (account, name) in self.streams:
            raise CatalogRefusal(ErrorCode.TOPIC_ALREADY_EXISTS)
        new = NewStream(account, name, dict(settings), {}, now_ms(), clusters=(0,) * partitions)
        made = new.made(next(self._ids), [next(self._ids) for _ in range(partitions)])
        self.streams[account, name] = made
        return made

    async def delete(self, stream: Stream) -> None:
        del self.streams[stream.account, stream.name]

    async def add_partitions(self, stream: Stream, count: int) -> Stream:
        more = [next(self._ids) for _ in range(count - stream.partitions)]
        return self._replace(stream, partition_ids=(*stream.partition_ids, *more))

    async def set_settings(self, stream: Stream, settings: Mapping[str, str]) -> Stream:
        return self._replace(stream, settings=dict(settings))

    def _replace(self, stream: Stream, **changes: Any) -> Stream:
        name = (stream.account, stream.name)
        made = self.streams[name] = msgspec.structs.replace(stream, version=stream.version + 1, **changes)
        return made

    async def group_cluster(self, account: str) -> int:
        return 0

    async def next_producer_id(self) -> int:
        return next(self._producers)


class MemoryPartition:
    """A topic's partition: its fold, and the payloads by position."""

    def __init__(self, partition: int) -> None:
        self.fold = StreamFold(partition)
        self.fold.open(EPOCH)
        self.commands = StreamCommands(self.fold)
        self.payloads: list[bytes | None] = []
        self.heads: list[Batches] = []
        self.changed = asyncio.Event()

    @property
    def until(self) -> int:
        return self.fold.next_offset

    def write(self, records: Sequence[StreamRecord]) -> None:
        for record in records:
            self.fold.apply(record, now_ms())

    def append(self, record: Batches, payload: bytes) -> None:
        self.fold.apply(record, now_ms(), len(self.payloads), len(payload))
        self.payloads.append(payload)
        self.heads.append(record)
        self.changed.set()
        self.changed = asyncio.Event()

    def batch(self, place: LogPlace) -> FetchedBatch:
        head = self.heads[place.position]
        return FetchedBatch(
            head.base_offset,
            head.record_count,
            head.leader_epoch,
            self.payloads[place.position],
            head.append_ms,
            head.max_timestamp,
        )


class MemoryGroup:
    """A consumer group: its fold, its coordinator, and the calls that wait."""

    def __init__(self, partition: int) -> None:
        self.fold = GroupFold(partition)
        self.fold.open(1)
        self.waiting: dict[Token, asyncio.Future[JoinAnswer | SyncAnswer]] = {}
        self.tokens = count(1)
        self.timer: asyncio.TimerHandle | None = None
        self.coordinator: GroupCoordinator
        self.offsets: OffsetCommands

    def configure(self, command: ConfigureGroup) -> None:
        self.write([GroupConfigured(command.settings)])
        self.coordinator = GroupCoordinator(self.fold, now_ms())
        self.offsets = OffsetCommands(self.fold, self.coordinator)

    def write(self, records: Sequence[GroupRecord]) -> None:
        for record in records:
            self.fold.apply(record, now_ms())

    def run(self, outcome: GroupOutcome) -> GroupOutcome:
        self.write(outcome.records)
        for token, answer in outcome.answers:
            waiting = self.waiting.pop(token)
            if not waiting.done():
                waiting.set_result(answer)
        if self.timer is not None:
            self.timer.cancel()
        if self.coordinator.due < 1 << 60:
            seconds = max(0.0, (self.coordinator.due - now_ms()) / 1000)
            self.timer = asyncio.get_running_loop().call_later(seconds, self.advance)
        return outcome

    def advance(self) -> None:
        self.run(self.coordinator.advance(now_ms()))

    def begin(self, decide: Callable[[Token], GroupOutcome]) -> asyncio.Future[JoinAnswer | SyncAnswer]:
        token = next(self.tokens)
        answer = self.waiting[token] = asyncio.get_running_loop().create_future()
        self.run(decide(token))
        return answer


class MemoryStreams:
    """All partitions and groups.  Implements :class:`backend.api.Backend`."""

    def __init__(self) -> None:
        self.partitions: dict[int, MemoryPartition] = {}
        self.groups: dict[int, MemoryGroup] = {}
        self.commands: list[Any] = []
        self.before: Callable[[Any], Awaitable[None]] | None = None
        """Called before each command: to delay it, or to fail it."""
        self.before_answer: Callable[[Any], Awaitable[None]] | None = None
        """Called when a command has taken effect."""

    async def call(self, command: Any) -> Any:
        self.commands.append(command)
        if self.before is not None:
            await self.before(command)
        answer = _RUN[type(command)](self, command)
        if isinstance(answer, Awaitable):
            answer = await answer
        if self.before_answer is not None:
            await self.before_answer(command)
        return answer

    def _list_groups(self, command: ListGroups) -> list[ListedGroup]:
        found = []
        for group in self.groups.values():
            settings = group.fold.settings
            if settings is not None and settings.account == command.account and not group.fold.dropped:
                described = group.coordinator.describe()
                found.append(ListedGroup(settings.name, described.protocol_type, described.state))
        return found

    def close(self) -> None:
        for group in self.groups.values():
            if group.timer is not None:
                group.timer.cancel()

    # --- partitions ---

    def _at(self, target: Target) -> MemoryPartition:
        found = self.partitions.get(target.partition)
        if found is None:
            raise PartitionUnknown
        settings = found.fold.settings
        assert settings is not None
        if settings.stream_id != target.queue_id:
            raise PartitionGone
        if settings.version < target.version:
            raise SettingsStale
        return found

    def _configure_stream(self, command: ConfigureStream) -> None:
        number = command.settings.partition
        partition = self.partitions.setdefault(number, MemoryPartition(number))
        partition.write(partition.commands.configure(command.settings))

    def _append(self, command: AppendBatch) -> Any:
        partition = self._at(command.target)
        record, answer = partition.commands.append(command.batch, now_ms())
        if record is not None:
            partition.append(record, command.batch.payload)
        return answer

    async def _fetch(self, command: FetchBatches) -> Fetched:
        partition = self._at(command.target)
        deadline = time.monotonic() + command.wait_seconds
        while True:
            partition.commands.check_epoch(command.epoch)
            plan = partition.commands.fetch(
                command.offset, command.bytes_max, partition.until, at_least_one=command.at_least_one
            )
            left = deadline - time.monotonic()
            if plan.batches or command.offset < partition.until or left <= 0:
                return Fetched(list(map(partition.batch, plan.batches)), partition.until, partition.fold.log_start)
            try:
                await asyncio.wait_for(partition.changed.wait(), left)
            except TimeoutError:
                continue

    def _ends(self, command: ReadStreamEnds) -> StreamEnds:
        partition = self._at(command.target)
        partition.commands.check_epoch(command.epoch)
        return StreamEnds(partition.commands.earliest(), partition.commands.latest(partition.until), 0)

    def _search(self, command: SearchTimestamp) -> TimestampFound | None:
        partition = self._at(command.target)
        if command.timestamp == LARGEST_TIMESTAMP:
            found = partition.commands.largest(partition.until, command.from_offset)
        else:
            found = partition.commands.search(command.timestamp, partition.until, command.from_offset)
        if found is None:
            return None
        assert isinstance(found.place, LogPlace)
        return TimestampFound(partition.batch(found.place), found.timestamp, found.offset)

    def _epoch_end(self, command: FindEpochEnd) -> FoundOffset:
        partition = self._at(command.target)
        partition.commands.check_epoch(command.current_epoch)
        return partition.commands.epoch_end(command.epoch)

    def _delete_records(self, command: DeleteRecords) -> int:
        partition = self._at(command.target)
        records, log_start = partition.commands.delete_records(command.before, partition.until)
        partition.write(records)
        return log_start

    # --- groups ---

    def _group(self, target: Target) -> MemoryGroup:
        found = self.groups.get(target.partition)
        if found is None or found.fold.dropped:
            raise PartitionUnknown
        return found

    def _configure_group(self, command: ConfigureGroup) -> None:
        number = command.settings.partition
        if number not in self.groups or self.groups[number].fold.dropped:
            self.groups[number] = MemoryGroup(number)
            self.groups[number].configure(command)

    async def _join(self, command: JoinGroup) -> Any:
        group = self._group(command.target)
        return await group.begin(lambda token: group.coordinator.join(token, command.request, now_ms()))

    async def _sync(self, command: SyncGroup) -> Any:
        group = self._group(command.target)
        return await group.begin(lambda token: group.coordinator.sync(token, command.request, now_ms()))

    def _heartbeat(self, command: GroupHeartbeat) -> StreamError:
        group = self._group(command.target)
        outcome = group.coordinator.heartbeat(command.member_id, command.generation, command.instance_id, now_ms())
        return group.run(outcome).error

    def _leave(self, command: LeaveGroup) -> LeaveAnswer:
        group = self._group(command.target)
        outcome = group.run(group.coordinator.leave(list(command.departures), now_ms()))
        return LeaveAnswer(outcome.error, outcome.errors)

    def _commit(self, command: CommitOffsets) -> list[StreamError]:
        group = self._group(command.target)
        group.advance()
        records, errors = group.offsets.commit(
            command.member_id, command.generation, command.instance_id, command.commits, now_ms()
        )
        group.write(records)
        return errors

    def _delete_offsets(self, command: DeleteOffsets) -> DeleteOffsetsAnswer:
        group = self._group(command.target)
        error, records, errors = group.offsets.delete(command.wanted)
        group.write(records)
        return DeleteOffsetsAnswer(error, errors)

    def _delete_group(self, command: DeleteGroup) -> StreamError:
        group = self._group(command.target)
        return group.run(group.coordinator.delete(now_ms())).error


_RUN: dict[type[Any], Callable[[MemoryStreams, Any], Any]] = {
    ConfigureStream: MemoryStreams._configure_stream,
    AppendBatch: MemoryStreams._append,
    FetchBatches: MemoryStreams._fetch,
    ReadStreamEnds: MemoryStreams._ends,
    SearchTimestamp: MemoryStreams._search,
    FindEpochEnd: MemoryStreams._epoch_end,
    DeleteRecords: MemoryStreams._delete_records,
    ConfigureGroup: MemoryStreams._configure_group,
    JoinGroup: MemoryStreams._join,
    SyncGroup: MemoryStreams._sync,
    GroupHeartbeat: MemoryStreams._heartbeat,
    LeaveGroup: MemoryStreams._leave,
    CommitOffsets: MemoryStreams._commit,
    FetchOffsets: lambda streams, command: streams._group(command.target).offsets.fetch(command.wanted),
    ListCommittedOffsets: lambda streams, command: streams._group(command.target).offsets.fetch_all(),
    DeleteOffsets: MemoryStreams._delete_offsets,
    DescribeGroup: lambda streams, command: streams._group(command.target).coordinator.describe(),
    DeleteGroup: MemoryStreams._delete_group,
    ListGroups: MemoryStreams._list_groups,
}

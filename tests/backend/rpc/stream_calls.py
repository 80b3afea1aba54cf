"""Each command for streams and groups, with an answer."""

from __future__ import annotations

from typing import Any

from backend.api import AckLevel, Command, Target
from backend.stream_api import (
    Appended,
    CommittedOffset,
    Departure,
    DescribedGroup,
    DescribedMember,
    FetchedOffset,
    FoundOffset,
    GroupSettings,
    JoinAnswer,
    JoinedMember,
    JoinRequest,
    NewBatch,
    OffsetCommit,
    StreamError,
    StreamSettings,
    SyncAnswer,
    SyncRequest,
)
from backend.stream_commands import (
    AppendBatch,
    CommitOffsets,
    ConfigureGroup,
    ConfigureStream,
    DeleteGroup,
    DeleteOffsets,
    DeleteOffsetsAnswer,
    DeleteRecords,
    DescribeGroup,
    DropStream,
    FetchBatches,
    Fetched,
    FetchedBatch,
    FetchOffsets,
    FindEpochEnd,
    ForgetTopic,
    GroupHeartbeat,
    JoinGroup,
    LeaveAnswer,
    LeaveGroup,
    ListCommittedOffsets,
    ListedGroup,
    ListGroups,
    PartitionEnds,
    ReadStreamEnds,
    ReadTopicEnds,
    SearchTimestamp,
    StreamEnds,
    SyncGroup,
    TimestampFound,
)

TARGET = Target(1 << 40, (1 << 62) + 3, 5)
TOPIC_ID = bytes(range(16))
ACCOUNT = "000000000000"
STREAM = StreamSettings(
    1 << 40, (1 << 62) + 3, 5, ACCOUNT, "orders ☃", TOPIC_ID, 11, 86_400_000, 1 << 40, True, True, 1 << 24, 3_600_000,
    AckLevel.ALL,
)  # fmt: skip
GROUP = GroupSettings(1 << 40, (1 << 62) + 3, 5, ACCOUNT, "readers ☃", 1, 2, 3, 4, 5, 6)
BATCH = NewBatch(b"\x00payload\xff", 3, 8, 1_700_000_000_000, 1_700_000_000_001, 2, 1 << 40, 7, 9)
FETCHED = FetchedBatch(1 << 60, 3, 7, b"\x00payload\xff", 1_700_000_000_000, 1_700_000_000_001)
LOST = FetchedBatch(1 << 60, 3, 7, None)
JOIN = JoinRequest(
    "", "new", "client", "10.0.0.1", 10_000, 60_000, "consumer", (("range", b"\x00"), ("sticky", b"s")), "static",
    False, True,
)  # fmt: skip
JOINED = JoinAnswer(
    StreamError.NONE, "new", 7, "consumer", "range", "leader", [JoinedMember("new", "static", b"\x00")], True
)
MEMBER = DescribedMember("new", "static", "client", "10.0.0.1", b"\x00", b"a")
COMMITTED = CommittedOffset(1 << 60, 7, "metadata ☃", 1_700_000_000_000, 1_700_000_000_001)

CALLS: list[tuple[Command[Any], Any]] = [
    (ConfigureStream(STREAM), None),
    (DropStream(TARGET), None),
    (AppendBatch(TARGET, BATCH, AckLevel.LEADER), Appended(1 << 60, 1_700_000_000_000, 5, True)),
    (FetchBatches(TARGET, 1 << 60, 1 << 20, 19.5, 7, False), Fetched([FETCHED, LOST], 1 << 60, 5)),
    (ReadStreamEnds(TARGET, 7), StreamEnds(FoundOffset(5, -1, 1), FoundOffset(1 << 60, -1, 7), 1 << 40)),
    (SearchTimestamp(TARGET, 1_700_000_000_000, 5, 7), TimestampFound(FETCHED, 1_700_000_000_000, 5)),
    (FindEpochEnd(TARGET, 6, 7), FoundOffset(1 << 60, -1, 6)),
    (DeleteRecords(TARGET, 1 << 60), 1 << 60),
    (ReadTopicEnds("", [TOPIC_ID]), [PartitionEnds(TOPIC_ID, 11, 5, 1 << 60)]),
    (ConfigureGroup(GROUP), None),
    (JoinGroup(TARGET, JOIN, 60.0), JOINED),
    (SyncGroup(TARGET, SyncRequest("new", 7, {"new": b"a"}, "static", "consumer", "range"), 60.0),
     SyncAnswer(StreamError.NONE, b"a", "consumer", "range")),
    (GroupHeartbeat(TARGET, "new", 7, "static"), StreamError.REBALANCE_IN_PROGRESS),
    (LeaveGroup(TARGET, [Departure("new", "static")]), LeaveAnswer(StreamError.NONE, list(StreamError))),
    (CommitOffsets(TARGET, "new", 7, "static", [OffsetCommit("orders", TOPIC_ID, 11, 1 << 60, 7, "metadata", 5)]),
     [StreamError.NONE, StreamError.OFFSET_METADATA_TOO_LARGE]),
    (FetchOffsets(TARGET, [(TOPIC_ID, 11), (TOPIC_ID, 12)]), [COMMITTED, None]),
    (ListCommittedOffsets(TARGET), [FetchedOffset("orders", TOPIC_ID, 11, COMMITTED)]),
    (DeleteOffsets(TARGET, [("orders", TOPIC_ID, 11)]),
     DeleteOffsetsAnswer(StreamError.NONE, [StreamError.GROUP_SUBSCRIBED_TO_TOPIC])),
    (ForgetTopic(TARGET, TOPIC_ID), None),
    (DescribeGroup(TARGET), DescribedGroup("Stable", "consumer", "range", (MEMBER,))),
    (DeleteGroup(TARGET), StreamError.NON_EMPTY_GROUP),
    (ListGroups("000000000000"), [ListedGroup("readers", "consumer", "Stable")]),
]  # fmt: skip

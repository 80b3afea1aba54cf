"""Deletion of a topic: its partitions, and what groups have committed for it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from backend.api import PartitionGone, Unavailable
from backend.partition_settings import settings_of_stream_partition, target_of_group
from backend.stream_api import GroupSettings, NewBatch, OffsetCommit, StreamError
from backend.stream_commands import (
    AppendBatch,
    CommitOffsets,
    ConfigureGroup,
    ConfigureStream,
    DropStream,
    ForgetTopic,
    ListCommittedOffsets,
    ListGroups,
)
from frontend.services import Services
from frontend.streams.calls import target_of_partition
from frontend.streams.deletion import TOGETHER, delete_stream
from metadata_service.store import StreamNotFound
from metadata_service.streams import NewStream, Stream
from tests.frontend.service import KEY, FrontendService

GROUPS = ("kitchen", "office")


async def make_topic(services: Services, name: str, partitions: int) -> Stream:
    """Create a topic with a batch in each partition."""
    assert services.streams is not None
    stream = await services.streams.create(NewStream(KEY.account, name, {}, {}, 0, (0,) * partitions))
    for number in range(partitions):
        await services.backend.call(ConfigureStream(settings_of_stream_partition(stream, number)))
        await services.backend.call(AppendBatch(target_of_partition(stream, number), NewBatch(b"records", 1, 7)))
    return stream


async def commit(services: Services, group: str, *streams: Stream) -> None:
    """Create the group, if there is none, with an offset for the first partition of each topic."""
    target = target_of_group(KEY.account, group, 0)
    settings = GroupSettings(target.partition, target.queue_id, target.version, KEY.account, group)
    await services.backend.call(ConfigureGroup(settings))
    commits = [OffsetCommit(stream.name, stream.topic_id, 0, 1) for stream in streams]
    assert set(await services.backend.call(CommitOffsets(target, "", -1, None, commits))) == {StreamError.NONE}


async def committed(services: Services, group: str) -> list[str]:
    """Return the topics for which the group has offsets."""
    found = await services.backend.call(ListCommittedOffsets(target_of_group(KEY.account, group, 0)))
    return sorted(one.topic for one in found)


async def test_partitions_are_dropped_and_offsets_of_all_groups_deleted(service: FrontendService) -> None:
    services = service.app.services
    assert services.streams is not None
    gone, other = await make_topic(services, "gone", TOGETHER + 1), await make_topic(services, "other", 1)
    for group in GROUPS:
        await commit(services, group, gone, other)
    await delete_stream(services, gone)
    for number in range(gone.partitions):
        with pytest.raises(PartitionGone):
            await services.backend.call(ConfigureStream(settings_of_stream_partition(gone, number)))
    for group in GROUPS:
        assert await committed(services, group) == ["other"]
    await services.backend.call(AppendBatch(target_of_partition(other, 0), NewBatch(b"records", 1, 7)))
    with pytest.raises(StreamNotFound):
        await delete_stream(services, gone)


async def test_without_groups_nothing_more_is_called(service: FrontendService) -> None:
    services = service.app.services
    await delete_stream(services, await make_topic(services, "gone", 1))
    assert not service.backend.calls_of(ForgetTopic)


@pytest.mark.parametrize("unavailable", [DropStream, ListGroups, ForgetTopic])
async def test_a_node_that_cannot_be_called_does_not_prevent_the_deletion(
    service: FrontendService, caplog: pytest.LogCaptureFixture, unavailable: Any
) -> None:
    services = service.app.services
    assert services.streams is not None
    gone = await make_topic(services, "gone", 3)
    for group in GROUPS:
        await commit(services, group, gone)

    async def fails(_: Any) -> None:
        raise Unavailable("the node does not answer")

    service.backend.replaced[unavailable] = fails
    with caplog.at_level(logging.WARNING, "holdfast.streams"):
        await delete_stream(services, gone)
    (record,) = caplog.records
    assert "the node does not answer" in record.message
    with pytest.raises(StreamNotFound):
        await services.streams.get(KEY.account, "gone")
    for group in GROUPS:
        assert await committed(services, group) == ([] if unavailable is DropStream else ["gone"])


async def test_a_group_that_ends_meanwhile_is_no_failure(
    service: FrontendService, caplog: pytest.LogCaptureFixture
) -> None:
    services = service.app.services
    gone = await make_topic(services, "gone", 1)
    await commit(services, "kitchen", gone)

    async def ends(_: Any) -> None:
        raise PartitionGone("it was deleted")

    service.backend.replaced[ForgetTopic] = ends
    await delete_stream(services, gone)
    assert not caplog.records

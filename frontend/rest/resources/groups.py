"""Consumer groups: list, describe, commit, reset, delete."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from backend.api import Target
from backend.stream_api import FetchedOffset, OffsetCommit, StreamError
from backend.stream_commands import CommitOffsets, DeleteGroup, DescribeGroup, ListCommittedOffsets, ListGroups
from frontend.rest.caller import CurrentCaller, ManagingRoute, MessageRoute, rest_router
from frontend.rest.problems import invalid, not_permitted
from frontend.rest.resources.streams import PAGE_MAX, Account
from frontend.rest.stream_access import (
    RestStreams,
    called,
    check_errors,
    check_partition,
    problem_of,
    read_position,
    together,
)
from frontend.rest.stream_models import (
    CommitGiven,
    GroupLine,
    GroupPage,
    GroupShown,
    MemberShown,
    OffsetGiven,
    OffsetsReset,
    PartitionOffset,
    PositionShown,
    ResetGiven,
)
from frontend.streams.errors import ErrorCode
from frontend.streams.rights import MANAGE, READ, permits
from metadata_service.streams import Stream

GroupName = Annotated[str, Path(description="the consumer group's name")]


def create_routers(streams: RestStreams) -> list[APIRouter]:
    """Create the routes of consumer groups."""
    router = rest_router("streams", ManagingRoute)
    commits = rest_router("streams", MessageRoute)

    @router.get("/consumer-groups", name="group.list")
    async def list_groups(
        caller: CurrentCaller,
        account: Account = None,
        prefix: Annotated[str, Query(description="only names with this prefix")] = "",
        after: Annotated[str, Query(description="only names greater than this one")] = "",
        limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 100,
    ) -> GroupPage:
        """List the consumer groups of an account, by name, that the key may be used for."""
        owner = caller.account(account)
        if not permits(caller.principal, (READ, MANAGE)):
            raise not_permitted(f"The key does not have the scope {READ} or {MANAGE}.")
        listed = await streams.services.backend.call(ListGroups(owner))
        found = sorted(
            (one.name, one.state)
            for one in listed
            if one.name > after and one.name.startswith(prefix) and permits(caller.principal, (READ, MANAGE), one.name)
        )
        lines = [GroupLine(name=name, state=state) for name, state in found[:limit]]
        return GroupPage(groups=lines, next=lines[-1].name if len(found) > limit else None)

    @router.get("/consumer-groups/{group}", name="group.describe")
    async def describe(caller: CurrentCaller, group: GroupName, account: Account = None) -> GroupShown:
        """Show a consumer group's members, and its position and lag in each partition."""
        owner = caller.account(account)
        streams.require_group(caller, owner, group, READ, MANAGE)
        described = await called(streams.calls.group(owner, group, DescribeGroup))
        committed = await called(streams.calls.group(owner, group, ListCommittedOffsets))
        by_stream: dict[str, list[FetchedOffset]] = {}
        for one in committed:
            by_stream.setdefault(one.topic, []).append(one)
        positions: list[PositionShown] = []
        for name, offsets in sorted(by_stream.items()):
            stream = await streams.catalog.reread(owner, name)
            if stream is not None and permits(caller.principal, (READ, MANAGE), name):
                positions += await _shown(stream, offsets)
        return GroupShown(
            name=group,
            account=owner,
            state=described.state,
            assignor=described.protocol,
            members=[
                MemberShown(id=one.member_id, instance=one.instance_id, client=one.client_id, host=one.client_host)
                for one in described.members
            ],
            positions=positions,
        )

    async def _shown(stream: Stream, offsets: list[FetchedOffset]) -> list[PositionShown]:
        present = sorted(
            (one.partition, one.committed)
            for one in offsets
            if one.topic_id == stream.topic_id and one.partition < stream.partitions
        )
        ends = await streams.ends_if_known(stream, [number for number, _ in present])
        return [
            PositionShown(
                stream=stream.name,
                partition=number,
                offset=committed.offset,
                end_offset=None if end is None else end.durable_end.offset,
                lag=None if end is None else max(0, end.durable_end.offset - committed.offset),
                committed=committed.commit_ms / 1000,
                metadata=committed.metadata,
            )
            for (number, committed), end in zip(present, ends, strict=True)
        ]

    @commits.post("/consumer-groups/{group}/commit", name="group.commit", status_code=204)
    async def commit(caller: CurrentCaller, group: GroupName, given: CommitGiven, account: Account = None) -> Response:
        """Commit the position of a group, which has no members by Kafka's protocol."""
        owner = caller.account(account)
        streams.require(caller, owner, given.stream, READ)
        streams.require_group(caller, owner, group, READ)
        if (given.position is None) == (given.offsets is None):
            raise invalid("A commit has either `position`, the `next` of an answer, or `offsets`.")

        async def act() -> Response:
            stream = await streams.find_now(owner, given.stream)
            offsets = given.offsets
            if offsets is None:
                assert given.position is not None
                read = read_position("position", given.position, stream)
                offsets = [OffsetGiven(partition=number, offset=offset) for number, offset in read.items()]
            await _commit(stream, group, offsets)
            return Response(status_code=204)

        return await caller.limited("receive", act)

    @router.post("/consumer-groups/{group}/reset", name="group.reset")
    async def reset(
        caller: CurrentCaller, group: GroupName, given: ResetGiven, account: Account = None
    ) -> OffsetsReset:
        """Set the position of a group, which has no members now, in a stream."""
        owner = caller.account(account)
        streams.require(caller, owner, given.stream, READ, MANAGE)
        streams.require_group(caller, owner, group, READ, MANAGE)
        if sum(one is not None for one in (given.to, given.offset, given.timestamp)) != 1:
            raise invalid("A reset has exactly one of `to`, `offset` and `timestamp`.")

        async def act() -> OffsetsReset:
            stream = await streams.find_now(owner, given.stream)
            numbers = list(range(stream.partitions)) if given.partitions is None else sorted(set(given.partitions))
            for number in numbers:
                check_partition(stream, number)

            async def position(number: int) -> OffsetGiven:
                return OffsetGiven(partition=number, offset=await _target(stream, number, given))

            offsets = await together(numbers, position)
            await _commit(stream, group, offsets)
            return OffsetsReset(
                stream=stream.name,
                offsets=[PartitionOffset(partition=one.partition, offset=one.offset) for one in offsets],
            )

        return await caller.limited("receive", act)

    async def _target(stream: Stream, number: int, given: ResetGiven) -> int:
        if given.timestamp is not None:
            return await streams.offset_by_time(stream, number, round(given.timestamp * 1000))
        (ends,) = await streams.ends(stream, [number])
        first, last = ends.log_start.offset, ends.durable_end.offset
        if given.to is not None:
            return first if given.to == "earliest" else last
        assert given.offset is not None
        return min(max(given.offset, first), last)

    async def _commit(stream: Stream, group: str, offsets: list[OffsetGiven]) -> None:
        made = [
            OffsetCommit(
                stream.name, stream.topic_id, check_partition(stream, one.partition), one.offset, metadata=one.metadata
            )
            for one in offsets
        ]

        def command(target: Target) -> CommitOffsets:
            return CommitOffsets(target, "", -1, None, made)

        check_errors(await called(streams.calls.group(stream.account, group, command, creates=True)))

    @router.delete("/consumer-groups/{group}", name="group.delete", status_code=204)
    async def delete(caller: CurrentCaller, group: GroupName, account: Account = None) -> Response:
        """Delete a group, which has no members now, with its position."""
        owner = caller.account(account)
        streams.require_group(caller, owner, group, MANAGE)
        error = await called(streams.calls.group(owner, group, DeleteGroup))
        if error is not StreamError.NONE:
            raise problem_of(ErrorCode.of_number(error))
        return Response(status_code=204)

    return [router, commits]

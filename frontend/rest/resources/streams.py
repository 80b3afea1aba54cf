"""Streams: create, list, describe, change, delete."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from frontend.rest.caller import CurrentCaller, ManagingRoute, rest_router
from frontend.rest.problems import invalid, not_permitted
from frontend.rest.stream_access import RestStreams, called
from frontend.rest.stream_models import (
    SettingGiven,
    StreamChange,
    StreamGiven,
    StreamLine,
    StreamPage,
    StreamPartitionShown,
    StreamShown,
)
from frontend.streams.rights import ANY, MANAGE, permits, stream_arn
from metadata_service.stream_settings import ConfigChange, ConfigOperation, InvalidSetting, changed, validated
from metadata_service.streams import Stream

PAGE_MAX = 1_000
Account = Annotated[str | None, Query(description="account of the streams; operators may name any")]
StreamName = Annotated[str, Path(description="the stream's name")]


def create_router(streams: RestStreams) -> APIRouter:
    """Create the routes of streams."""
    router = rest_router("streams", ManagingRoute)

    @router.post("/streams", name="stream.create", status_code=201)
    async def create(caller: CurrentCaller, given: StreamGiven, account: Account = None) -> StreamShown:
        """Create a stream: a topic of Kafka's protocol."""
        owner = caller.account(account)
        streams.require(caller, owner, given.name, MANAGE)
        try:
            settings = validated({name: _text(value) for name, value in given.settings.items()})
        except InvalidSetting as error:
            raise invalid(str(error)) from None
        return await _shown(
            streams, await called(streams.catalog.create(owner, given.name, settings, given.partitions))
        )

    @router.get("/streams", name="stream.list")
    async def list_streams(
        caller: CurrentCaller,
        account: Account = None,
        prefix: Annotated[str, Query(description="only names with this prefix")] = "",
        after: Annotated[str, Query(description="only names greater than this one")] = "",
        limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 100,
    ) -> StreamPage:
        """List the streams of an account, by name, that the key may be used for."""
        owner = caller.account(account)
        if not permits(caller.principal, ANY):
            raise not_permitted(f"The key does not have the scope {' or '.join(ANY)}.")
        found = [
            one
            for one in await streams.catalog.list_streams(owner)
            if one.name > after and one.name.startswith(prefix) and permits(caller.principal, ANY, one.name)
        ]
        lines = [
            StreamLine(name=one.name, account=owner, partitions=one.partitions, created=one.created_s)
            for one in found[:limit]
        ]
        return StreamPage(streams=lines, next=lines[-1].name if len(found) > limit else None)

    @router.get("/streams/{name}", name="stream.describe")
    async def describe(caller: CurrentCaller, name: StreamName, account: Account = None) -> StreamShown:
        """Show a stream's settings, and the offsets of its partitions."""
        owner = caller.account(account)
        streams.require(caller, owner, name, *ANY)
        return await _shown(streams, await streams.find_now(owner, name))

    @router.patch("/streams/{name}", name="stream.set")
    async def change(
        caller: CurrentCaller, name: StreamName, given: StreamChange, account: Account = None
    ) -> StreamShown:
        """Change settings of a stream, or give it more partitions."""
        owner = caller.account(account)
        streams.require(caller, owner, name, MANAGE)
        stream = await streams.find_now(owner, name)
        try:
            settings = changed(stream.settings, _changes(given.settings))
        except InvalidSetting as error:
            raise invalid(str(error)) from None
        if given.partitions is not None and given.partitions < stream.partitions:
            raise invalid(f"The stream has {stream.partitions} partitions; it can get more, and never fewer.")
        if given.partitions is not None and given.partitions > stream.partitions:
            stream = await called(streams.catalog.add_partitions(stream, given.partitions))
        if settings != stream.settings:
            stream = await called(streams.catalog.set_settings(stream, settings))
        return await _shown(streams, stream)

    @router.delete("/streams/{name}", name="stream.delete", status_code=204)
    async def delete(caller: CurrentCaller, name: StreamName, account: Account = None) -> Response:
        """Delete the stream with all its records, irrevocably."""
        owner = caller.account(account)
        streams.require(caller, owner, name, MANAGE)
        await called(streams.catalog.delete(await streams.find_now(owner, name)))
        return Response(status_code=204)

    async def _shown(streams: RestStreams, stream: Stream) -> StreamShown:
        ends = await streams.ends_if_known(stream, range(stream.partitions))
        return StreamShown(
            name=stream.name,
            account=stream.account,
            arn=stream_arn(stream.account, streams.services.settings.region, stream.name),
            topic_id=str(uuid.UUID(bytes=stream.topic_id)),
            created=stream.created_s,
            partitions=[
                StreamPartitionShown(
                    partition=number,
                    first_offset=None if one is None else one.log_start.offset,
                    end_offset=None if one is None else one.durable_end.offset,
                    stored_bytes=None if one is None else one.stored_bytes,
                )
                for number, one in enumerate(ends)
            ],
            settings=stream.settings,
        )

    return router


def _text(value: SettingGiven) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _changes(given: Mapping[str, SettingGiven | None]) -> list[ConfigChange]:
    return [
        ConfigChange(name, ConfigOperation.DELETE, None)
        if value is None
        else ConfigChange(name, ConfigOperation.SET, _text(value))
        for name, value in given.items()
    ]

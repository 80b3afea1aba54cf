"""Records of streams: publish, and read from an offset, a time, or the position of a consumer group."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request, Response

from auth.encryption.master_keys import KeyringError
from backend.api import BackendError, Unavailable
from backend.partition_settings import options_of
from frontend.rest.caller import CurrentCaller, MessageRoute, RestCaller, rest_router
from frontend.rest.problems import Problem, invalid
from frontend.rest.record_formats import JSON, parse_records, record_filter, shown_record, stream_record
from frontend.rest.resources.streams import Account, StreamName
from frontend.rest.stream_access import (
    RestStreams,
    called,
    check_partition,
    problem_of,
    read_position,
    together,
    write_position,
)
from frontend.rest.stream_models import RECORDS_MAX, RecordGiven, RecordOutcome, RecordPage, RecordsStored
from frontend.streams.appends import append_records, split_into_batches
from frontend.streams.errors import ErrorCode
from frontend.streams.partitioner import Partitioner
from frontend.streams.reading import RecordReader, UnreadableBatch
from frontend.streams.records import StreamRecord
from frontend.streams.rights import READ, WRITE
from frontend.streams.usage import FETCH, PRODUCE
from metadata_service.store import StoreError
from metadata_service.streams import Stream

WAIT_SECONDS_MAX = 20
LONG_KEY_BYTES = 4_096
NEXT_HEADER = "x-holdfast-next"
Failure = Problem | BackendError | StoreError | KeyringError


def create_router(streams: RestStreams) -> APIRouter:
    """Create the routes of records."""
    router = rest_router("streams", MessageRoute)
    partitioner = Partitioner()

    @router.post(
        "/streams/{name}/records",
        name="stream.produce",
        status_code=201,
        response_model_exclude_none=True,
        responses={207: {"description": "Some records were not stored.", "model": RecordsStored}},
        openapi_extra={
            "requestBody": {
                "description": "The value of one record, as it is; or, with application/json, a record or `records`.",
                "required": True,
                "content": {
                    "text/plain": {"schema": {"type": "string"}},
                    JSON: {
                        "schema": {
                            "anyOf": [
                                _record_schema(),
                                {"type": "object", "description": f"`records`: a list of at most {RECORDS_MAX}"},
                            ]
                        }
                    },
                },
            }
        },
    )
    async def produce(
        caller: CurrentCaller,
        request: Request,
        response: Response,
        name: StreamName,
        account: Account = None,
        key: Annotated[str | None, Query(description="key of the record, unless the body is JSON")] = None,
        partition: Annotated[int | None, Query(ge=0, description="default: by the key, or in turn")] = None,
    ) -> RecordsStored:
        """Store records; they are durable when this is answered."""
        owner = caller.account(account)
        streams.require(caller, owner, name, WRITE)
        content_type, body = request.headers.get("content-type", ""), await request.body()

        async def store() -> RecordsStored:
            given = parse_records(content_type, body, key)
            await streams.throttle.check_stored_bytes(owner, caller.principal.account)
            stream = await streams.find(owner, name)
            if any(
                one is not None and one >= stream.partitions for one in (partition, *(one.partition for one in given))
            ):
                stream = await streams.find_now(owner, name)  # partitions may have been added
            now_ms = streams.services.now_ms()
            by_partition: dict[int, list[tuple[int, StreamRecord]]] = {}
            size_max = options_of(stream).batch_bytes_max
            for place, one in enumerate(given):
                record = stream_record(place, one, now_ms)
                if len(record.key or b"") + len(record.value or b"") > size_max:
                    raise problem_of(
                        ErrorCode.MESSAGE_TOO_LARGE, f"record {place} is larger than max.message.bytes, {size_max}"
                    )
                if record.key is not None and len(record.key) > LONG_KEY_BYTES:
                    await asyncio.sleep(0)  # the hash of a key takes long
                wanted = partition if one.partition is None else one.partition
                number = partitioner.choose(record.key, stream.partitions) if wanted is None else wanted
                by_partition.setdefault(check_partition(stream, number), []).append((place, record))
            count = len(given)
            given.clear()  # with wide characters its texts are four times as long as the records
            streams.reserve(stream, PRODUCE)  # before anything is stored
            places: list[RecordOutcome | None] = [None] * count
            failures: list[Failure] = []

            async def append(number: int) -> None:
                wanted = by_partition[number]
                offsets, failure, in_doubt = await _append(stream, number, [record for _, record in wanted], now_ms)
                for (place, _), offset in zip(wanted, offsets, strict=False):
                    places[place] = RecordOutcome(partition=number, offset=offset)
                if failure is not None:
                    failures.append(failure)
                    problem = failure if isinstance(failure, Problem) else None
                    for behind, (place, _) in enumerate(wanted[len(offsets) :]):
                        missing = "It may be stored" if behind < in_doubt else "It is not stored"
                        places[place] = RecordOutcome(
                            partition=number,
                            offset=None,
                            code="ServiceUnavailable" if problem is None else problem.code,
                            detail=f"{missing}. Try again." if problem is None else problem.detail,
                        )

            await together(list(by_partition), append)
            stored = [place for place in places if place is not None]
            pairs = [pair for pairs in by_partition.values() for pair in pairs]
            records = [record for place, record in pairs if _is_stored(places[place])]
            streams.count(stream, PRODUCE, records, failed=not records)
            if failures:
                if all(place.offset is None for place in stored):
                    raise failures[0]
                response.status_code = 207
            return RecordsStored(records=stored)

        return await caller.limited("send", store)

    async def _append(
        stream: Stream, number: int, records: list[StreamRecord], now_ms: int
    ) -> tuple[list[int], Failure | None, int]:
        """Append records in their order.

        Returns the offsets of those that were stored, the error after them, and the number of the next ones that may be
        stored nevertheless.
        """
        offsets: list[int] = []
        batch: Sequence[StreamRecord] = ()
        try:
            for batch in split_into_batches(records, options_of(stream).batch_bytes_max):
                appended = await called(
                    append_records(streams.calls, streams.encryption, stream, number, batch, now_ms)
                )
                offsets += range(appended.base_offset, appended.base_offset + len(batch))
        except (Problem, BackendError, StoreError, KeyringError) as error:
            return offsets, error, len(batch) if isinstance(error, Unavailable) and error.has_effect is not False else 0
        return offsets, None, 0

    @router.get(
        "/streams/{name}/records",
        name="stream.read",
        response_model=RecordPage,
        responses={204: {"description": f"Nothing is there; the header {NEXT_HEADER} has the position."}},
    )
    async def read(
        caller: CurrentCaller,
        name: StreamName,
        account: Account = None,
        partition: Annotated[int | None, Query(ge=0, description="default: all")] = None,
        offset: Annotated[str, Query(description="earliest, latest, or a number; default: earliest")] = "",
        timestamp: Annotated[
            float | None, Query(ge=0, le=1e11, description="from the first one of this time on")
        ] = None,
        group: Annotated[str, Query(description="from the committed position of this consumer group on")] = "",
        after: Annotated[str, Query(description="`next` of the previous answer")] = "",
        limit: Annotated[int, Query(ge=1, le=RECORDS_MAX, description="maximum number of records")] = 100,
        wait: Annotated[int, Query(ge=0, le=WAIT_SECONDS_MAX, description="seconds to wait for the first one")] = 0,
        key: Annotated[str | None, Query(description="only records with this key")] = None,
        header: Annotated[str, Query(description="only records with this header: NAME, or NAME=VALUE")] = "",
    ) -> Any:
        """Read records.  Nothing is changed by it: a group's position is moved by a commit."""
        owner = caller.account(account)
        if group:
            streams.require_group(caller, owner, group, READ)
        streams.require(caller, owner, name, READ)
        if sum(map(bool, (offset, timestamp is not None, group, after))) > 1:
            raise invalid("A read begins at one of `offset`, `timestamp`, `group` and `after`; give only one.")

        async def page() -> Response:
            stream = await streams.find(owner, name)
            if partition is not None and partition >= stream.partitions:
                stream = await streams.find_now(owner, name)
            numbers = list(range(stream.partitions)) if partition is None else [check_partition(stream, partition)]
            positions = await _positions(stream, numbers, offset, timestamp, group, after)
            chosen = record_filter(key, header)
            reader = RecordReader(
                streams.calls, streams.encryption, stream, positions, limit, None if chosen.is_empty else chosen.accepts
            )
            await _read(caller, reader, wait, positions)
            streams.count(stream, FETCH, [record for _, record in reader.found], failed=False)
            following = {NEXT_HEADER: write_position(reader.positions)}
            if not reader.found and reader.positions == positions:
                return Response(status_code=204, headers=following)
            shown = {"records": [shown_record(*one) for one in reader.found], "next": following[NEXT_HEADER]}
            return Response(orjson.dumps(shown), media_type=JSON, headers=following)

        return await caller.limited("receive", page)

    async def _read(caller: RestCaller, reader: RecordReader, wait: int, start: dict[int, int]) -> None:
        polls = streams.services.polls
        try:
            await called(reader.read())
            if reader.positions != start or not wait or polls.draining:
                return
            if caller.call.allowance is None:
                await called(polls.run(reader.wait(wait), caller.call.receive, None))
            else:
                with caller.call.allowance.long_poll():
                    await called(polls.run(reader.wait(wait), caller.call.receive, None))
            await called(reader.read())
        except UnreadableBatch as error:
            raise Problem(
                422,
                "Unreadable",
                f"The records {error.first} to {error.end - 1} of partition {error.number} cannot be shown: {error}. "
                f"Go on behind them with partition={error.number}&offset={error.end}.",
            ) from None

    async def _positions(
        stream: Stream, numbers: list[int], offset: str, timestamp: float | None, group: str, after: str
    ) -> dict[int, int]:
        if timestamp is not None:
            return await _by_time(stream, numbers, round(timestamp * 1000))
        ends = await streams.ends(stream, numbers)
        first = {number: one.log_start.offset for number, one in zip(numbers, ends, strict=True)}
        last = {number: one.durable_end.offset for number, one in zip(numbers, ends, strict=True)}
        if group:
            committed = await called(streams.committed(stream, group))
            wanted = {number: one.offset for number, one in enumerate(committed) if one is not None}
            # as a consumer with auto.offset.reset=earliest
            return {n: wanted[n] if first[n] <= wanted.get(n, -1) <= last[n] else first[n] for n in numbers}
        if after:
            return {**first, **_within(stream, numbers, read_position("after", after, stream), first, last)}
        if offset in ("", "earliest"):
            return first
        if offset == "latest":
            return last
        if not offset.isascii() or not offset.isdigit() or len(offset) > 18:
            raise invalid("`offset` is earliest, latest or a number.")
        if len(numbers) > 1:
            raise invalid("A number as `offset` is that of one partition: name it with `partition`.")
        number, wanted_offset = numbers[0], int(offset)
        if not first[number] <= wanted_offset <= last[number]:
            raise Problem(
                400,
                "OffsetOutOfRange",
                f"Partition {number} has the offsets {first[number]} to {last[number]}; {offset} is not among them.",
            )
        return {number: wanted_offset}

    async def _by_time(stream: Stream, numbers: list[int], timestamp_ms: int) -> dict[int, int]:
        found = await together(numbers, lambda number: streams.offset_by_time(stream, number, timestamp_ms))
        return dict(zip(numbers, found, strict=True))

    return router


def _within(
    stream: Stream, numbers: list[int], wanted: dict[int, int], first: dict[int, int], last: dict[int, int]
) -> dict[int, int]:
    """Positions of a previous answer: behind records that were deleted since."""
    for number, offset in wanted.items():
        if number in last and offset > last[number]:
            raise Problem(400, "OffsetOutOfRange", f"Partition {number} ends at {last[number]}, before {offset}.")
    return {number: max(offset, first[number]) for number, offset in wanted.items() if number in first}


def _is_stored(outcome: RecordOutcome | None) -> bool:
    return outcome is not None and outcome.offset is not None


def _record_schema() -> dict[str, Any]:
    """Schema of a record without references, which a document of its own cannot resolve."""
    schema = RecordGiven.model_json_schema()
    del schema["$defs"]
    schema["properties"]["headers"] = {
        "type": "object",
        "description": "names with texts; or a list of objects with `name`, and `value` or `value_base64`",
    }
    return schema

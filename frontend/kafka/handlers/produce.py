"""Produce: batches are checked, encrypted, and appended in the order in which they arrive.

A handler returns when its appends have been started; the answer follows when they are durable.  So the next request of
the connection is appended meanwhile, and never before.  Behind a batch that has failed, later ones of its producer are
refused until it is repeated (:class:`~frontend.kafka.request.failed_batches.FailedBatches`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from auth.encryption.master_keys import KeyringError
from backend.api import AckLevel, BackendError, Target
from backend.partition_settings import options_of
from backend.stream_api import Appended
from backend.stream_commands import AppendBatch
from billing.metering.meter import UsageNotCounted
from frontend.kafka.metering import instruments
from frontend.kafka.protocol.generated.produce import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
)
from frontend.kafka.request.context import KafkaCall, KafkaContext
from frontend.sqs.protocol.errors import SqsError
from frontend.streams.appends import check_batch, new_batch
from frontend.streams.batches import BatchHeader, BatchRefused, produced_header
from frontend.streams.calls import append_error
from frontend.streams.compression import Buffer
from frontend.streams.errors import ErrorCode
from frontend.streams.rights import WRITE
from frontend.streams.usage import PRODUCE
from metadata_service.store import StoreError
from metadata_service.streams import Stream

BATCHES_MAX = 10_000
"""Batches of one request."""
_ALL, _LEADER, _NONE = -1, 1, 0


class StartedAnswer(NamedTuple):
    """An answer that is not complete yet, while the next request of the connection may begin."""

    answer: Awaitable[ProduceResponse | None]
    """None: the client expects none."""


class _TopicAppends:
    """The appends of a request to one topic."""

    __slots__ = ("found", "name", "records", "size_bytes", "started")

    def __init__(self, name: str, found: Stream | ErrorCode) -> None:
        self.name = name
        self.found = found
        self.started: list[asyncio.Task[ProduceResponsePartition] | ProduceResponsePartition] = []
        self.records = 0
        self.size_bytes = 0
        """Records and bytes of the batches that were stored, as they were sent."""


class AppendFailed(Exception):
    """An append failed whose client does not expect an answer: its connection is closed instead."""


async def produce(context: KafkaContext, call: KafkaCall, request: ProduceRequest) -> StartedAnswer:
    """Start the appends of a request."""
    appends: list[_TopicAppends] = []
    refusal = _refusal(request)
    quota = None if refusal else await _quota_refusal(context, call)
    level = AckLevel.LEADER if request.acks == _LEADER else AckLevel.NONE if request.acks == _NONE else None
    try:
        await _start_all(context, call, request, appends, refusal, quota, level)
    except BaseException:
        context.finish(_answer(context, call, request.acks, appends))  # what has begun is stored, and counted
        raise
    return StartedAnswer(_answer(context, call, request.acks, appends))


async def _start_all(
    context: KafkaContext,
    call: KafkaCall,
    request: ProduceRequest,
    appends: list[_TopicAppends],
    refusal: ErrorCode | None,
    quota: str | None,
    level: AckLevel | None,
) -> None:
    for topic in request.topic_data:
        found: Stream | ErrorCode = refusal or await context.find_permitted(call, topic.name, WRITE)
        if isinstance(found, Stream) and context.usage is not None:
            try:
                context.usage.reserve(found, PRODUCE)
            except UsageNotCounted as error:  # before anything is stored, so that a repetition stores it once
                context.report(error)
                found = ErrorCode.KAFKA_STORAGE_ERROR
        appends.append(to_topic := _TopicAppends(topic.name, found))
        for one in topic.partition_data:
            started = (
                await _start(context, call, to_topic, one, level)
                if quota is None
                else _refused(one.index, ErrorCode.POLICY_VIOLATION, quota)
            )
            to_topic.started.append(started)


def _refusal(request: ProduceRequest) -> ErrorCode | None:
    if request.acks not in (_ALL, _LEADER, _NONE):
        return ErrorCode.INVALID_REQUIRED_ACKS
    if request.transactional_id is not None:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if sum(len(topic.partition_data) for topic in request.topic_data) > BATCHES_MAX:
        return ErrorCode.INVALID_REQUEST
    return None


async def _quota_refusal(context: KafkaContext, call: KafkaCall) -> str | None:
    """Return the reason why the account may not store more; None: it may."""
    try:
        await context.throttle.check_stored_bytes(call.account, call.account, call.caller.tenant)
    except SqsError as error:
        return error.message
    return None


async def _start(
    context: KafkaContext,
    call: KafkaCall,
    to_topic: _TopicAppends,
    sent: ProduceRequestPartition,
    level: AckLevel | None,
) -> asyncio.Task[ProduceResponsePartition] | ProduceResponsePartition:
    number, found = sent.index, to_topic.found
    data = sent.records
    assert not isinstance(data, list), "decoded records are in one buffer"
    if isinstance(found, ErrorCode):
        if found.retriable:
            _expect_again(call, to_topic.name, number, data)
        return _refused(number, found)
    if not 0 <= number < found.partitions:
        return _refused(number, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    try:
        header = check_batch(data, call.version, options_of(found), context.services.now_ms())
    except BatchRefused as error:
        return _refused(number, error.code, error.text)
    assert data is not None
    try:
        encrypt = await context.encryption.ready(found.account, 1)
    except (KeyringError, StoreError) as error:
        context.report(error)
        _expect_again(call, to_topic.name, number, data)
        return _refused(number, ErrorCode.KAFKA_STORAGE_ERROR)
    batch = new_batch(header, data, encrypt)

    def command(target: Target) -> AppendBatch:
        return AppendBatch(target, batch, level)

    return asyncio.ensure_future(_append(context, call, to_topic, found, number, command, header))


def _expect_again(call: KafkaCall, topic: str, number: int, data: Buffer | None) -> None:
    """Expect a batch again that was refused before it was appended, if its producer is an idempotent one."""
    try:
        header = produced_header(data, call.version)
    except BatchRefused:
        return
    if header.has_producer:
        call.failed_batches.failed(topic, number, header)


async def _append(
    context: KafkaContext,
    call: KafkaCall,
    to_topic: _TopicAppends,
    stream: Stream,
    number: int,
    command: Callable[[Target], AppendBatch],
    header: BatchHeader,
) -> ProduceResponsePartition:
    # At the same moment the append gets its turn, so that it is behind each batch that fails later.
    if header.has_producer and call.failed_batches.is_behind(to_topic.name, number, header):
        return _refused(number, ErrorCode.NOT_ENOUGH_REPLICAS)
    try:
        appended: Appended = await context.calls.append(stream, number, command)
    except (BackendError, StoreError) as error:
        code = append_error(error)
        if code.retriable or code is ErrorCode.UNKNOWN_SERVER_ERROR:
            context.report(error)
        if code.retriable and header.has_producer:
            call.failed_batches.failed(to_topic.name, number, header)
        return _refused(number, code, str(error) if not code.retriable else None)
    if not appended.duplicate:
        to_topic.records += header.record_count
        to_topic.size_bytes += header.size
    return ProduceResponsePartition(number, 0, appended.base_offset, appended.append_ms, appended.log_start)


async def _answer(
    context: KafkaContext, call: KafkaCall, acks: int, appends: list[_TopicAppends]
) -> ProduceResponse | None:
    response = ProduceResponse(throttle_time_ms=call.throttle_time_ms)
    for to_topic in appends:
        partitions = [await one if isinstance(one, asyncio.Task) else one for one in to_topic.started]
        response.responses.append(ProduceResponseTopic(to_topic.name, _counted(context, call, to_topic, partitions)))
    if acks != _NONE:
        return response
    for topic in response.responses:
        for partition in topic.partition_responses:
            if partition.error_code:
                raise AppendFailed(ErrorCode.of_number(partition.error_code).name)
    return None


def _counted(
    context: KafkaContext, call: KafkaCall, to_topic: _TopicAppends, partitions: list[ProduceResponsePartition]
) -> list[ProduceResponsePartition]:
    """Meter the call of a topic; returns its answer, which is an error if it cannot be counted."""
    usage = context.usage
    errors = [one.error_code for one in partitions]
    instruments.produced(errors, to_topic.records, to_topic.size_bytes)
    if usage is None:
        return partitions
    try:
        if isinstance(to_topic.found, Stream):
            usage.count(to_topic.found, PRODUCE, errors, to_topic.records, to_topic.size_bytes)
        else:
            usage.count_absent(call.account, PRODUCE, to_topic.found)
    except UsageNotCounted as error:
        context.report(error)
        return [_refused(one.index, ErrorCode.KAFKA_STORAGE_ERROR) for one in partitions]
    return partitions


def _refused(number: int, code: ErrorCode, text: str | None = None) -> ProduceResponsePartition:
    return ProduceResponsePartition(number, code, -1, error_message=text)

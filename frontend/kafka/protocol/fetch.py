"""Responses to Fetch by hand: those of usual clients are written without helpers.

Versions before 7 are old clients', and left to the generated encoders.  So are responses with tagged fields or
aborted transactions, and all requests: the generated decoders read the partitions of a topic at once.

A partition without records has empty ones, never null: the protocol permits null, but librdkafka and kafka-python
fail on it.
"""

from __future__ import annotations

import struct

from frontend.kafka.protocol.encoding.writing import (
    Write,
    encoded_uvarint,
    write_compact_records,
    write_records,
)
from frontend.kafka.protocol.generated.fetch import (
    APIS,
    FetchResponse,
    FetchResponsePartition,
    encode_fetch_response_7_10,
    encode_fetch_response_11,
    encode_fetch_response_12,
    encode_fetch_response_13_15,
    encode_fetch_response_16_17,
)

_length = struct.Struct(">h").pack
_count = struct.Struct(">i").pack
_head_7 = struct.Struct(">ihii").pack
_head_12 = struct.Struct(">ihi").pack
_partition_7 = struct.Struct(">ihqqqi").pack
_partition_11 = struct.Struct(">ihqqqii").pack
_partition_12 = struct.Struct(">ihqqqBi").pack


def _encode_7(message: FetchResponse, write: Write) -> None:
    """Encode versions 7 to 10."""
    if _has_aborted(message):
        encode_fetch_response_7_10(message, write)
        return
    write(_head_7(message.throttle_time_ms, message.error_code, message.session_id, len(message.responses)))
    for topic in message.responses:
        name = topic.topic.encode()
        write(_length(len(name)) + name + _count(len(topic.partitions)))
        for one in topic.partitions:
            end, stable, start = one.high_watermark, one.last_stable_offset, one.log_start_offset
            aborted = -1 if one.aborted_transactions is None else 0
            write(_partition_7(one.partition_index, one.error_code, end, stable, start, aborted))
            write_records(write, one.records)


def _encode_11(message: FetchResponse, write: Write) -> None:
    """Encode version 11."""
    if _has_aborted(message):
        encode_fetch_response_11(message, write)
        return
    write(_head_7(message.throttle_time_ms, message.error_code, message.session_id, len(message.responses)))
    for topic in message.responses:
        name = topic.topic.encode()
        write(_length(len(name)) + name + _count(len(topic.partitions)))
        for one in topic.partitions:
            end, stable, start = one.high_watermark, one.last_stable_offset, one.log_start_offset
            aborted = -1 if one.aborted_transactions is None else 0
            replica = one.preferred_read_replica
            write(_partition_11(one.partition_index, one.error_code, end, stable, start, aborted, replica))
            write_records(write, one.records)


def _encode_12(message: FetchResponse, write: Write) -> None:
    """Encode version 12, which names topics."""
    if _is_unusual(message):
        encode_fetch_response_12(message, write)
        return
    write(_head_12(message.throttle_time_ms, message.error_code, message.session_id))
    write(encoded_uvarint(len(message.responses) + 1))
    for topic in message.responses:
        name = topic.topic.encode()
        write(encoded_uvarint(len(name) + 1) + name)
        _write_partitions(topic.partitions, write)
    write(b"\0")


def _encode_13(message: FetchResponse, write: Write) -> None:
    """Encode versions 13 to 15."""
    if _is_unusual(message):
        encode_fetch_response_13_15(message, write)
    else:
        _encode_with_ids(message, write)


def _encode_16(message: FetchResponse, write: Write) -> None:
    """Encode versions 16 and 17."""
    if message.node_endpoints or _is_unusual(message):
        encode_fetch_response_16_17(message, write)
    else:
        _encode_with_ids(message, write)


def _encode_with_ids(message: FetchResponse, write: Write) -> None:
    write(_head_12(message.throttle_time_ms, message.error_code, message.session_id))
    write(encoded_uvarint(len(message.responses) + 1))
    for topic in message.responses:
        write(topic.topic_id)
        _write_partitions(topic.partitions, write)
    write(b"\0")


def _write_partitions(partitions: list[FetchResponsePartition], write: Write) -> None:
    """Write a topic's partitions and its end."""
    write(encoded_uvarint(len(partitions) + 1))
    for one in partitions:
        end, stable, start = one.high_watermark, one.last_stable_offset, one.log_start_offset
        aborted = 0 if one.aborted_transactions is None else 1
        replica = one.preferred_read_replica
        write(_partition_12(one.partition_index, one.error_code, end, stable, start, aborted, replica))
        write_compact_records(write, one.records)
        write(b"\0")
    write(b"\0")


def _has_aborted(message: FetchResponse) -> bool:
    for topic in message.responses:
        for one in topic.partitions:
            if one.aborted_transactions:
                return True
    return False


def _is_unusual(message: FetchResponse) -> bool:
    """Return if a partition has aborted transactions or tagged fields."""
    for topic in message.responses:
        for one in topic.partitions:
            if (
                one.aborted_transactions
                or one.current_leader is not None
                or one.diverging_epoch is not None
                or one.snapshot_id is not None
            ):
                return True
    return False


(_GENERATED,) = APIS
FETCH = _GENERATED._replace(
    encoders=(
        *_GENERATED.encoders[:3],
        *(_encode_7,) * 4,
        _encode_11,
        _encode_12,
        *(_encode_13,) * 3,
        *(_encode_16,) * 2,
    ),
)
"""The API with these functions instead of generated ones."""

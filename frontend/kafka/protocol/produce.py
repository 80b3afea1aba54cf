"""Requests to Produce by hand: what nearly all of them look like is read in a few steps.

Most requests have records for one partition and belong to no transaction.  Everything else is left to the generated
decoders, which also find what is malformed.  The generated encoders of responses are as fast as any by hand.
"""

from __future__ import annotations

import struct

from frontend.kafka.protocol.encoding.reading import uvarint
from frontend.kafka.protocol.generated.produce import (
    APIS,
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    decode_produce_request_3_8,
    decode_produce_request_9_11,
)

_request_3 = struct.Struct(">hhiih").unpack_from
_REQUEST_3_BYTES = 14
_partition_3 = struct.Struct(">iii").unpack_from
_PARTITION_3_BYTES = 12
_request_9 = struct.Struct(">BhiBB").unpack_from
_REQUEST_9_BYTES = 9
_partition_9 = struct.Struct(">Bi").unpack_from
_PARTITION_9_BYTES = 5
_NO_TAGS = b"\0\0\0"
"""The ends of partition, topic and request."""


def _decode_3(data: bytes, pos: int) -> ProduceRequest:
    """Decode versions 3 to 8."""
    if len(data) - pos < _REQUEST_3_BYTES:  # without topics
        return decode_produce_request_3_8(data, pos)
    transactional_id, acks, timeout_ms, topics, length = _request_3(data, pos)
    start = pos + _REQUEST_3_BYTES
    end = start + length
    if transactional_id == -1 and topics == 1 and length >= 0 and end + _PARTITION_3_BYTES <= len(data):
        partitions, index, records_length = _partition_3(data, end)
        records_start = end + _PARTITION_3_BYTES
        if partitions == 1 and records_length >= 0 and records_start + records_length == len(data):
            records = memoryview(data)[records_start:]
            topic = ProduceRequestTopic(data[start:end].decode(), [ProduceRequestPartition(index, records)])
            return ProduceRequest(None, acks, timeout_ms, [topic])
    return decode_produce_request_3_8(data, pos)


def _decode_9(data: bytes, pos: int) -> ProduceRequest:
    """Decode versions 9 to 11."""
    transactional_id, acks, timeout_ms, topics, length = _request_9(data, pos)
    start = pos + _REQUEST_9_BYTES
    end = start + length - 1
    if transactional_id == 0 and topics == 2 and 0 < length < 0x80 and end + _PARTITION_9_BYTES < len(data):
        partitions, index = _partition_9(data, end)
        records_length, records_start = uvarint(data, end + _PARTITION_9_BYTES)
        records_end = records_start + records_length - 1
        if partitions == 2 and records_length and data[records_end:] == _NO_TAGS:
            records = memoryview(data)[records_start:records_end]
            topic = ProduceRequestTopic(data[start:end].decode(), [ProduceRequestPartition(index, records)])
            return ProduceRequest(None, acks, timeout_ms, [topic])
    return decode_produce_request_9_11(data, pos)


(_GENERATED,) = APIS
PRODUCE = _GENERATED._replace(decoders=(_decode_3,) * 6 + (_decode_9,) * 3)
"""The API with these decoders instead of the generated ones."""

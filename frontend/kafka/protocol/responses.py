"""Responses: whole frames, as buffers that follow each other."""

from __future__ import annotations

import struct

from msgspec import Struct

from frontend.kafka.protocol.encoding.api import ServedApi
from frontend.kafka.protocol.encoding.writing import Buffer
from frontend.kafka.protocol.versions import API_VERSIONS_KEY, BY_KEY, api_versions_response
from frontend.streams.errors import ErrorCode

SHARED_BYTES_MIN = 4096
"""Buffers from this length on are passed on as they are; shorter ones are copied into one."""

_head = struct.Struct(">ii").pack
_head_with_tags = struct.Struct(">iix").pack
_CORRELATION_ID_BYTES = 4


def encode_response(api: ServedApi, version: int, correlation_id: int, body: Struct) -> list[Buffer]:
    """Encode a response as a frame with its length.

    Short responses are one buffer; records are in buffers of their own, which are not copied.
    """
    parts: list[Buffer] = [b""]
    api.encoders[version - api.version_min](body, parts.append)
    has_tags = api.is_flexible(version) and api.key != API_VERSIONS_KEY
    # the length counts the correlation id, and the empty tagged fields of the header
    length = sum(map(len, parts)) + _CORRELATION_ID_BYTES + has_tags
    parts[0] = (_head_with_tags if has_tags else _head)(length, correlation_id)
    if length < SHARED_BYTES_MIN:
        return [b"".join(parts)]
    return _gathered(parts)


def _gathered(parts: list[Buffer]) -> list[Buffer]:
    """Join short buffers that follow each other."""
    gathered: list[Buffer] = []
    start = 0
    for number, part in enumerate(parts):
        if len(part) >= SHARED_BYTES_MIN:
            if start < number:
                gathered.append(b"".join(parts[start:number]))
            gathered.append(part)
            start = number + 1
    if start < len(parts):
        gathered.append(b"".join(parts[start:]))
    return gathered


def unsupported_api_versions(correlation_id: int) -> list[Buffer]:
    """Encode the answer to ApiVersions of a version that is not served: error 35, in the form of version 0.

    The client then asks again in a version that both know.
    """
    body = api_versions_response(ErrorCode.UNSUPPORTED_VERSION)
    return encode_response(BY_KEY[API_VERSIONS_KEY], 0, correlation_id, body)

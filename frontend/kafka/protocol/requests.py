"""Requests: a frame's header, and its body by API and version."""

from __future__ import annotations

import struct
from typing import NamedTuple

from msgspec import Struct

from frontend.kafka.protocol.encoding.api import ServedApi
from frontend.kafka.protocol.encoding.reading import (
    MALFORMED,
    OVERHEAD_BYTES_MAX,
    MalformedRequest,
    malformed_length,
    skip_tags,
)
from frontend.kafka.protocol.versions import BY_KEY

_head = struct.Struct(">hhih").unpack_from
_HEAD_BYTES = 10
_start = struct.Struct(">hhi").unpack_from


class UnsupportedVersion(Exception):
    """A request for an API or a version that is not served.

    Where the API is ApiVersions, it is answered by :func:`frontend.kafka.protocol.responses.unsupported_api_versions`;
    Kafka closes the connection for all others.
    """

    def __init__(self, api_key: int, api_version: int, correlation_id: int) -> None:
        super().__init__(f"API {api_key} is not served in version {api_version}")
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id


class KafkaRequest(NamedTuple):
    """A decoded request."""

    api: ServedApi
    version: int
    correlation_id: int
    """The client's number for the request, which the response has."""
    client_id: str | None
    body: Struct
    """The request of the API, of a class of ``generated``."""


def decode_request(frame: bytes) -> KafkaRequest:
    """Decode a frame.

    Raises :class:`MalformedRequest`, and :class:`UnsupportedVersion` before it looks at what follows the first fields.
    """
    try:
        api_key, version, correlation_id = _start(frame)
        api = BY_KEY.get(api_key)
        if api is None or not api.is_served(version):
            raise UnsupportedVersion(api_key, version, correlation_id)
        client_id, pos = _header_rest(frame, api.is_flexible(version))
        return KafkaRequest(
            api, version, correlation_id, client_id, api.decoders[version - api.version_min](frame, pos)
        )
    except MalformedRequest:
        raise
    except MALFORMED as error:
        raise MalformedRequest(_reason(error)) from None


def _header_rest(frame: bytes, is_flexible: bool) -> tuple[str | None, int]:
    """Read the client's id and skip the tagged fields; returns the position of the body."""
    size = len(frame)
    length = _head(frame)[3]
    if length < 0:
        client_id, pos = None, _HEAD_BYTES
    else:
        pos = _HEAD_BYTES + length
        if pos > size:
            raise malformed_length(length, size - _HEAD_BYTES)
        client_id = frame[_HEAD_BYTES:pos].decode()
    if is_flexible:
        if frame[pos]:
            pos, _ = skip_tags(frame, pos, size, OVERHEAD_BYTES_MAX)
        else:
            pos += 1
    return client_id, pos


def _reason(error: Exception) -> str:
    return "text that is no UTF-8" if isinstance(error, UnicodeDecodeError) else "the request is cut off"

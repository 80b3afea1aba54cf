"""Messages of the table: drawn values, and the codec of a client, which the service itself does not have."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from hypothesis import strategies as st
from msgspec import Struct

from frontend.kafka.protocol import generated
from frontend.kafka.protocol.encoding.writing import Buffer
from frontend.kafka.protocol.generator import modules, table
from frontend.kafka.protocol.generator.decoders import decoder_name, encoder_name
from frontend.kafka.protocol.generator.table import TableApi, TableField, TableMessage, VersionRange, layouts
from frontend.kafka.protocol.versions import BY_KEY
from frontend.streams.errors import ErrorCode

APIS: tuple[TableApi, ...] = tuple(table.read())
MESSAGES: tuple[TableMessage, ...] = tuple(message for api in APIS for message in (api.request, api.response))
CLIENT_ID = "a-client"
_TIMES = st.integers(0, 4_000_000_000_000)
_INTEGERS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}


def versions(message: TableMessage) -> range:
    """The served versions of a message."""
    return range(message.api.versions.first, message.api.versions.last + 1)


def class_of(message: TableMessage, name: str | None = None) -> type[Struct]:
    """The generated class of a message, or of one of its structures."""
    found: type[Struct] = getattr(getattr(generated, message.api.file), name or message.name)
    return found


# --- drawn values ------------------------------------------------------------------------------------------


def drawn(message: TableMessage, version: int) -> st.SearchStrategy[Struct]:
    """Messages with any values that the version permits."""
    return _structure(message, class_of(message), message.fields, version)


def _structure(
    message: TableMessage, kind: type[Struct], fields: list[TableField], version: int
) -> st.SearchStrategy[Struct]:
    values = {one.name: _field(message, one, version) for one in fields if version in one.versions}
    return st.builds(kind, **values)


def _field(message: TableMessage, one: TableField, version: int) -> st.SearchStrategy[Any]:
    value = (
        _structure(message, class_of(message, one.kind), one.fields, version) if one.is_structure else _primitive(one)
    )
    if one.is_array:
        value = st.lists(value, max_size=3)
    if one.tag is not None and one.is_structure and not one.is_array:
        absent = class_of(message, one.kind)()
        value = value.filter(lambda drawn_value: drawn_value != absent)  # the default is absent
    if one.is_nullable(version) or (one.tag is not None and one.is_structure and not one.is_array):
        value = st.none() | value
    return value


def _primitive(one: TableField) -> st.SearchStrategy[Any]:
    if one.name.endswith("error_code"):
        return st.sampled_from([code.value for code in ErrorCode])
    if one.name.endswith("_ms") or one.name == "timestamp":
        return st.integers(0, 2**31 - 1) if one.kind == "int32" else _TIMES
    match one.kind:
        case "bool":
            return st.booleans()
        case "string":
            return st.text(max_size=6) | st.sampled_from(["x" * 127, "x" * 128, "ü" * 300])
        case "bytes":
            return st.binary(max_size=200)
        case "records":
            return st.binary(min_size=1, max_size=200) | st.just(b"\0" * 20_000)
        case "uuid":
            return st.binary(min_size=16, max_size=16)
    bits = _INTEGERS[one.kind]
    return st.integers(-(2**bits), 2**bits - 1)


# --- the codec of a client ---------------------------------------------------------------------------------


@cache
def _client(file: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(modules.client_module(file, [api for api in APIS if api.file == file]), names)
    return names


def _function(message: TableMessage, version: int, name: Callable[[TableMessage, VersionRange], str]) -> Any:
    layout = next(layout for layout in layouts(message) if version in layout)
    return _client(message.api.file)[name(message, layout)]


def encoded_body(message: TableMessage, version: int, body: Struct) -> bytes:
    """A message without frame and header."""
    parts: list[Buffer] = []
    if message is message.api.request:
        _function(message, version, encoder_name)(body, parts.append)
    else:
        BY_KEY[message.api.key].encoders[version - message.api.versions.first](body, parts.append)
    return b"".join(parts)


def request_frame(message: TableMessage, version: int, body: Struct, correlation_id: int = 7) -> bytes:
    """A request as a client encodes it, without its length."""
    name = CLIENT_ID.encode()
    parts: list[Buffer] = [struct.pack(">hhih", message.api.key, version, correlation_id, len(name)), name]
    if message.api.is_flexible(version):
        parts.append(b"\0")
    return b"".join((*parts, encoded_body(message, version, body)))


def decode_response(message: TableMessage, version: int, frame: bytes, correlation_id: int = 7) -> Struct:
    """The body of a response, whose length and header are checked."""
    length, number = struct.unpack_from(">ii", frame)
    assert (length, number) == (len(frame) - 4, correlation_id)
    pos = 8
    if message.api.is_flexible(version) and message.api.name != "ApiVersions":
        assert frame[pos] == 0
        pos += 1
    decoded = _function(message, version, decoder_name)(frame, pos)
    assert isinstance(decoded, Struct)
    return decoded


def flattened(message: TableMessage, version: int, body: Struct) -> Iterator[Any]:
    """The values of a message in the order of the table, as far as the version has them."""
    return _flattened(message, message.fields, version, body)


def _flattened(message: TableMessage, fields: list[TableField], version: int, body: Struct) -> Iterator[Any]:
    for one in fields:
        if version not in one.versions:
            continue
        value = getattr(body, one.name)
        if not one.is_structure:
            yield tuple(value) if isinstance(value, list) else value
        elif not one.is_array:
            present = class_of(message, one.kind)() if value is None else value
            yield from _flattened(message, one.fields, version, present)
        elif value is None:
            yield None
        else:
            yield len(value)
            for element in value:
                yield from _flattened(message, one.fields, version, element)

"""The Query protocol: conversion of a form or query string to a dict of members, and of a result to XML.

Unknown parameters are ignored, as in SQS.  An answer can also be written as JSON of the same shape (``Accept:
application/json``).
"""

from __future__ import annotations

import re
from base64 import b64encode
from binascii import Error as Base64Error
from binascii import a2b_base64
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from auth.signatures import percent
from frontend.sqs.protocol import bounds
from frontend.sqs.protocol.errors import (
    INVALID_PARAMETER_VALUE,
    MALFORMED_INPUT,
    SqsError,
    invalid_value,
    missing_parameter,
)
from frontend.sqs.protocol.limits import QUERY_NAME_LENGTH_MAX, QUERY_PARAMETERS_MAX
from frontend.sqs.protocol.model import (
    ACTIONS,
    BLOB,
    BOOLEAN,
    INTEGER,
    LONG,
    Action,
    ListOf,
    MapOf,
    Scalar,
    Structure,
    Type,
)
from telemetry.texts import shown

XML = b"text/xml"
JSON = b"application/json"
VERSION = "2012-11-05"
NAMESPACE = f"http://queue.amazonaws.com/doc/{VERSION}/"
UNKNOWN_OPERATION = b"<UnknownOperationException/>\n"

Members = dict[str, Any]

_Node = dict[str, Any]
"""Parameters as a tree: the dot-separated parts of a name lead to a string or a further node."""


class _Place(NamedTuple):
    """A slice of a source."""

    source: bytes
    start: int
    end: int


_Value = str | bytes | _Place
"""A parameter's value: decoded, as it was sent, or as a slice."""
_NAME_BYTES_MAX = 3 * QUERY_NAME_LENGTH_MAX
_COPIED_BYTES = 32 * 1024
"""Maximum length of a source whose values are copied out of it."""
_encode = msgspec.json.Encoder().encode
_INTEGER = re.compile(r"-?[0-9]{1,18}\Z")
_INDEX = re.compile(r"[0-9]{1,6}\Z")
_SPECIAL = re.compile('[&<>"\r\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]')
_UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]+")
_ESCAPES = ((b"&", b"&amp;"), (b"<", b"&lt;"), (b">", b"&gt;"), (b'"', b"&quot;"), (b"\r", b"&#xD;"))
"""Escapes, in this order: the first one's character is used by the others."""
_JSON_NAMES = {"Messages": "messages", "QueueUrls": "queueUrls"}
"""Members with another spelling in the JSON form of an answer."""


# --- requests ----------------------------------------------------------------------------------------------


class Parameters:
    """The parameters of one request, each decoded on demand, so that unused ones cost nothing.

    Values are kept as slices of the sources, so that a long one is not copied before it is decoded.
    """

    __slots__ = ("_found", "source_bytes")

    def __init__(self, found: dict[str, _Value], source_bytes: int) -> None:
        self._found = found
        self.source_bytes = source_bytes
        """Length of query string and form together, as they were sent."""

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._found)

    def decoded_bytes(self, name: str) -> int:
        """Length of a parameter's value without its escapes, in bytes of UTF-8."""
        value = self._found[name]
        if isinstance(value, str):
            return len(value.encode())
        source, start, end = (value, 0, len(value)) if isinstance(value, bytes) else value
        return end - start - 2 * source.count(b"%", start, end)

    def get(self, name: str, default: str = "") -> str:
        """Value of a parameter, or ``default`` if it was not given.  Raises MalformedInput."""
        value = self._found.get(name)
        if value is None:
            return default
        if isinstance(value, str):
            return value
        text = _text_of(value)
        if isinstance(value, bytes):  # a long text is not stored twice
            self._found[name] = text
        return text


def read_parameters(*sources: bytes) -> Parameters:
    """Parse the parameters of query string and form.  Raises MalformedInput.

    A signature does not bind the order of parameters with the same name, so none may be repeated with another
    value.
    """
    found: dict[str, _Value] = {}
    for source in sources:
        if source.count(b"&") >= QUERY_PARAMETERS_MAX:
            raise SqsError(MALFORMED_INPUT, f"A request can have at most {QUERY_PARAMETERS_MAX} parameters.")
        for raw_name, value in _pairs(source):
            if len(raw_name) > _NAME_BYTES_MAX:
                raise SqsError(MALFORMED_INPUT, "The name of a parameter is too long.")
            name = _decoded(raw_name)
            earlier = found.setdefault(name, value)
            if earlier is not value and _text_of(earlier) != _text_of(value):
                raise SqsError(MALFORMED_INPUT, f"The parameter {shown(name)} was given more than once.")
    return Parameters(found, sum(map(len, sources)))


def _pairs(source: bytes) -> Iterator[tuple[bytes, bytes | _Place]]:
    """Names and values as they were sent, without those that have no name."""
    length = len(source)
    if length <= _COPIED_BYTES:
        for pair in source.split(b"&"):
            name, _, value = pair.partition(b"=")
            if name:
                yield name, value
        return
    start = 0
    while start < length:
        end = source.find(b"&", start)
        if end < 0:
            end = length
        equals = source.find(b"=", start, end)
        name_end = end if equals < 0 else equals
        if name_end > start:
            # a name that is too long is refused by its length, and may be truncated
            name = source[start : min(name_end, start + _NAME_BYTES_MAX + 1)]
            yield name, _Place(source, min(name_end + 1, end), end)
        start = end + 1


def read(name: str, parameters: Parameters) -> Members:
    """Parse the members of an action's input.

    Raises MalformedInput, InvalidParameterValue, MissingParameter, and the error of
    :func:`bounds.too_much_content`.
    """
    if parameters.source_bytes > bounds.CONTENT_BYTES_MAX:
        content_bytes = sum(map(parameters.decoded_bytes, parameters))
        if content_bytes > bounds.CONTENT_BYTES_MAX:
            raise bounds.too_much_content(name)
    members: Members = {}
    wires = _wires(ACTIONS[name].input)
    tree: _Node = {}
    for wire in parameters:
        top, dot, rest = wire.partition(".")
        if top in wires:
            _plant(tree, wire, [top, *rest.split(".")] if dot else [top], parameters.get(wire))
    for top, node in tree.items():
        member_name, type_ = wires[top]
        members[member_name] = _value(type_, node, top)
    return members


def queue_url(parameters: Parameters) -> str | None:
    """Parameter QueueUrl; None if it was not given.  Raises MalformedInput."""
    return parameters.get("QueueUrl") or None


def _text_of(value: _Value) -> str:
    return value if isinstance(value, str) else _decoded(value) if isinstance(value, bytes) else _value_at(value)


def _value_at(place: _Place) -> str:
    source, start, end = place
    if source.find(b"%", start, end) >= 0 or source.find(b"+", start, end) >= 0:
        return _decoded(source[start:end])
    try:
        return str(memoryview(source)[start:end], "utf-8")  # without copying the bytes
    except UnicodeDecodeError:
        raise SqsError(MALFORMED_INPUT, "A parameter is not valid UTF-8.") from None


def _decoded(part: bytes) -> str:
    try:
        if b"%" in part or b"+" in part:
            part = percent.decode(part, plus=True)  # releases the encoded bytes
        return part.decode()
    except UnicodeDecodeError:
        raise SqsError(MALFORMED_INPUT, "A parameter is not valid UTF-8.") from None
    except percent.MalformedEscape:
        raise SqsError(
            MALFORMED_INPUT, "A parameter has a percent sign that two hexadecimal digits do not follow."
        ) from None


def _plant(tree: _Node, name: str, parts: list[str], value: str) -> None:
    if len(name) > QUERY_NAME_LENGTH_MAX or len(parts) > 8:
        raise SqsError(MALFORMED_INPUT, "The name of a parameter is too long.")
    node = tree
    for part in parts[:-1]:
        node = node.setdefault(part, {})
        if type(node) is not dict:
            raise SqsError(MALFORMED_INPUT, f"The parameter {name} is both a value and composed of values.")
    if type(node.setdefault(parts[-1], value)) is dict:
        raise SqsError(MALFORMED_INPUT, f"The parameter {name} is both a value and composed of values.")


def _value(type_: Type, node: Any, where: str) -> Any:
    match type_:
        case Scalar():
            if type(node) is not str:
                raise SqsError(MALFORMED_INPUT, f"The parameter {where} has to be a single value.")
            return _scalar(type_, node, where)
        case Structure():
            members = {}
            wires = _wires(type_)
            for wire, item in _branches(node, where).items():
                if wire in wires:
                    name, member_type = wires[wire]
                    members[name] = _value(member_type, item, f"{where}.{wire}")
            return members
        case ListOf(item_type):
            if type(node) is str:
                return [_value(item_type, node, where)] if node else []
            return [_value(item_type, item, f"{where}.{index}") for index, item in _numbered(node, where)]
        case MapOf():
            return _map(type_, node, where)


def _scalar(type_: Scalar, text: str, where: str) -> Any:
    if type_ in (INTEGER, LONG):
        if not _INTEGER.match(text):
            raise invalid_value(text, where, "Must be an integer.")
        return int(text)
    if type_ is BOOLEAN:
        if text not in ("true", "false"):
            raise invalid_value(text, where, "Must be true or false.")
        return text == "true"
    if type_ is BLOB:
        try:
            return a2b_base64(text.encode("ascii"), strict_mode=True) if text else b""
        except (Base64Error, UnicodeEncodeError):
            raise SqsError(INVALID_PARAMETER_VALUE, f"The parameter {where} is not valid base64.") from None
    return text


def _map(type_: MapOf, node: Any, where: str) -> Members:
    if node == "":
        return {}
    branches = _branches(node, where)
    entries = [("", branches)] if type_.key_wire in branches else _numbered(branches, where)
    result: Members = {}
    for index, entry in entries:
        here = f"{where}.{index}" if index else where
        entry = _branches(entry, here)
        for wire in (type_.key_wire, type_.value_wire):
            if wire not in entry:
                raise missing_parameter(f"{here}.{wire}")
        key = entry[type_.key_wire]
        if type(key) is not str:
            raise SqsError(MALFORMED_INPUT, f"The parameter {here}.{type_.key_wire} has to be a single value.")
        if key in result:
            raise invalid_value(key, f"{here}.{type_.key_wire}", "The name was given more than once.")
        result[key] = _value(type_.value, entry[type_.value_wire], f"{here}.{type_.value_wire}")
    return result


def _branches(node: Any, where: str) -> _Node:
    if type(node) is not dict:
        raise SqsError(MALFORMED_INPUT, f"The parameter {where} is composed of several values.")
    branches: _Node = node
    return branches


def _numbered(node: _Node, where: str) -> list[tuple[str, Any]]:
    for index in node:
        if not _INDEX.match(index):
            raise SqsError(MALFORMED_INPUT, f"The parameter {where}.{index[:20]} has to be numbered.")
    return sorted(node.items(), key=lambda item: int(item[0]))


def _wires(structure: Structure) -> dict[str, tuple[str, Type]]:
    """Map names on the wire to names and types of members."""
    wires = _WIRES.get(structure.name)
    if wires is None:
        # a member's own name is accepted as well: old SDKs send an empty list under it
        wires = {name: (name, member.type) for name, member in structure.members.items()}
        wires |= {member.wire: (name, member.type) for name, member in structure.members.items()}
        _WIRES[structure.name] = wires
    return wires


_WIRES: dict[str, dict[str, tuple[str, Type]]] = {}
"""Cache of :func:`_wires` by structure."""


# --- answers -----------------------------------------------------------------------------------------------


def escape(text: str) -> str:
    """Escape text for an element's content.  Characters that XML cannot contain become U+FFFD."""
    if _SPECIAL.search(text) is None:
        return text
    if _UNWRITABLE.search(text) is not None:
        text = _UNWRITABLE.sub(_replacements, text)
    encoded = text.encode()  # replacing bytes takes a third of the time
    for character, escaped in _ESCAPES:
        encoded = encoded.replace(character, escaped)
    return encoded.decode()


def _replacements(match: re.Match[str]) -> str:
    return "\ufffd" * len(match[0])


def write(action: Action, result: Members | None, request_id: str) -> bytes:
    parts = [f'<?xml version="1.0"?><{action.name}Response xmlns="{NAMESPACE}">']
    if action.output is not None:
        _write_structure(parts, action.output, result or {}, f"{action.name}Result")
    parts.append(f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata></{action.name}Response>")
    return "".join(parts).encode()


def write_error(error: SqsError, request_id: str) -> bytes:
    kind = error.kind
    fault = "Sender" if kind.sender_fault else "Receiver"
    return (
        f'<?xml version="1.0"?><ErrorResponse xmlns="{NAMESPACE}"><Error><Type>{fault}</Type>'
        f"<Code>{kind.query_code}</Code><Message>{escape(error.text_for_query())}</Message><Detail/></Error>"
        f"<RequestId>{request_id}</RequestId></ErrorResponse>"
    ).encode()


def write_as_json(action: Action, result: Members | None, request_id: str) -> bytes:
    """Encode the Query answer's shape as JSON: absent members are null, maps are lists of name and value."""
    answer: Members = {}
    if action.output is not None:
        answer[f"{action.name}Result"] = _jsonable(action.output, result or {})
    answer["ResponseMetadata"] = {"RequestId": request_id}
    return _encode({f"{action.name}Response": answer})


def write_error_as_json(error: SqsError, request_id: str) -> bytes:
    kind = error.kind
    fault = "Sender" if kind.sender_fault else "Receiver"
    described = {"Code": kind.query_code, "Message": error.text_for_query(), "Type": fault}
    return _encode({"Error": described, "RequestId": request_id})


def _write_structure(parts: list[str], structure: Structure, value: Members, element: str) -> None:
    start = len(parts)
    parts.append(f"<{element}>")
    for name, member in structure.members.items():
        item = value.get(name)
        if item is not None:
            _write_member(parts, member.type, item, member.wire)
    if len(parts) == start + 1:
        parts[start] = f"<{element}/>"
    else:
        parts.append(f"</{element}>")


def _write_member(parts: list[str], type_: Type, value: Any, element: str) -> None:
    match type_:
        case Scalar():
            parts.append(f"<{element}>{escape(_text(value))}</{element}>")
        case Structure():
            _write_structure(parts, type_, value, element)
        case ListOf(item_type):
            for item in value:
                _write_member(parts, item_type, item, element)
        case MapOf(value_type, key_wire, value_wire):
            for key, item in value.items():
                parts.append(f"<{element}><{key_wire}>{escape(key)}</{key_wire}>")
                _write_member(parts, value_type, item, value_wire)
                parts.append(f"</{element}>")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is True or value is False:
        return "true" if value else "false"
    if type(value) is bytes:
        return b64encode(value).decode()
    return str(value)


def _jsonable(type_: Type, value: Any) -> Any:
    if value is None:
        return None
    match type_:
        case Scalar():
            return b64encode(value).decode() if isinstance(value, bytes) else value
        case Structure():
            return {
                _JSON_NAMES.get(name, name): _jsonable(member.type, value.get(name))
                for name, member in type_.members.items()
            }
        case ListOf(item_type):
            return [_jsonable(item_type, item) for item in value]
        case MapOf(value_type, key_wire, value_wire):
            return [{key_wire: key, value_wire: _jsonable(value_type, item)} for key, item in value.items()]

"""AWS JSON 1.0: conversion of a body to a dict of members, and of a result to a body.

Bodies that do not fit the model are treated as in SQS: null counts as absent, unknown members are ignored, and
everything else that does not fit is a SerializationException.
"""

from __future__ import annotations

import re
from binascii import Error as Base64Error
from binascii import a2b_base64
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import msgspec

from frontend.query.shapes import BLOB, BOOLEAN, INTEGER, LONG, STRING, ListOf, MapOf, Scalar, Structure, Type
from frontend.sqs.protocol import bounds
from frontend.sqs.protocol.errors import SERIALIZATION, SqsError
from frontend.sqs.protocol.model import ACTIONS

CONTENT_TYPE = b"application/x-amz-json-1.0"
NAMESPACE = "com.amazonaws.sqs#"

Members = dict[str, Any]

_Check = Callable[[Any], Any]
_JSON_TYPES = {STRING: str, BLOB: str, INTEGER: int, LONG: int, BOOLEAN: bool}
_INT64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_encode = msgspec.json.Encoder().encode
"""Encoder; binary values become base64.  It uses one and a half times the memory of its output."""
_LONE_SURROGATES_MAX = 1_000
"""Maximum number of lone surrogates; text with more counts as invalid JSON."""
_LONE_SURROGATE = re.compile(
    rb"\\u(?:"  # both alternatives begin with it: a search for a fixed beginning is several times as fast
    rb"[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u)[dD][c-fC-F][0-9a-fA-F]{2})"
)


def read(action: str, body: bytes) -> Members:
    """Parse the members of the action's input, with binary values decoded.

    Raises SerializationException, and the errors of :func:`bounds.check_json`.
    """
    if not body:
        return {}
    if len(body) > bounds.SMALL_BYTES:
        bounds.check_json(action, body)
    try:
        return _DECODERS[action](body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass  # possibly null or a value that does not fit: the following accepts the former and explains the latter
    text = _without_lone_surrogates(body)
    if text is not body:
        try:
            return _DECODERS[action](text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
    members: Members = _INPUTS[action](_any_value(text))
    return members


def queue_url(body: bytes) -> str | None:
    """Member QueueUrl of an input, if it has one.  Other members are skipped without using memory.

    Raises SerializationException.
    """
    if not body:
        return None
    try:
        return _QUEUE_URL(body).get("QueueUrl")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass  # other members may have lone surrogates
    try:
        return _QUEUE_URL(_without_lone_surrogates(body)).get("QueueUrl")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise SqsError(SERIALIZATION) from None


def write(result: Members | None) -> bytes:
    return _encode(result) if result else b"{}"


def write_error(error: SqsError) -> tuple[bytes, bytes]:
    """Body of an error answer, and the value of the header ``x-amzn-query-error``."""
    kind = error.kind
    body = _encode({"__type": NAMESPACE + kind.shape, "message": error.message})
    return body, f"{kind.query_code};{'Sender' if kind.sender_fault else 'Receiver'}".encode()


def _any_value(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SqsError(SERIALIZATION, f"The request is not valid JSON: {error}") from None


def _without_lone_surrogates(body: bytes) -> bytes:
    """Replace the first lone surrogates by the escape of U+FFFF, in one pass and without parsing.

    Escapes of half a character are legal JSON that UTF-8 cannot represent.  They are read as U+FFFF, which is
    equally invalid in a message, so that only the message concerned gets an error.
    """
    # not `in`: see auth.signatures.percent
    if body.find(b"\0") >= 0 or (body.find(b"\\ud") < 0 and body.find(b"\\uD") < 0):
        return body  # there are none, or the text is not JSON
    # with escaped backslashes replaced, each backslash begins an escape
    text = _LONE_SURROGATE.sub(rb"\\uffff", body.replace(rb"\\", b"\0\0"), _LONE_SURROGATES_MAX)
    return text.replace(b"\0\0", rb"\\")


# --- checkers, compiled from the model once -----------------------------------------------------------------

_TYPE_NAMES = {
    str: "STRING_VALUE",
    int: "NUMBER_VALUE",
    float: "NUMBER_VALUE",
    bool: "TRUE_VALUE",
    list: "START_ARRAY",
    dict: "START_OBJECT",
    type(None): "NULL_VALUE",
}
_WANTED = {str: "a String", int: "an Integer", bool: "a Boolean", list: "a List", dict: "a Map or Structure"}


def _mismatch(value: Any, wanted: type) -> SqsError:
    return SqsError(SERIALIZATION, f"{_TYPE_NAMES[type(value)]} can not be converted to {_WANTED[wanted]}")


def _json_type(type_: Type) -> type:
    match type_:
        case Scalar():
            return _JSON_TYPES[type_]
        case ListOf():
            return list
    return dict


def _checker(type_: Type) -> _Check | None:
    """Check to apply to a value of the right JSON type; None: no check."""
    match type_:
        case Scalar():
            return _decoded if type_ is BLOB else _in_64_bits if type_ in (INTEGER, LONG) else None
        case Structure():
            return _structure_checker(type_)
        case ListOf(item):
            return _list_checker(item)
        case MapOf(value):
            return _map_checker(value)


def _decoded(value: str) -> bytes:
    try:
        return a2b_base64(value.encode("ascii"), strict_mode=True) if value else b""
    except (Base64Error, UnicodeEncodeError):
        raise SqsError(SERIALIZATION, "A binary value is not valid base64.") from None


def _in_64_bits(value: int) -> int:
    if not -(2**63) <= value < 2**63:
        raise SqsError(SERIALIZATION, "An Integer has more than 64 bits.")
    return value


def _structure_checker(structure: Structure) -> _Check:
    members = {name: (_json_type(member.type), _checker(member.type)) for name, member in structure.members.items()}

    def check(value: Any) -> Any:
        if type(value) is not dict:
            raise _mismatch(value, dict)
        nulls = False
        for name, item in value.items():
            member = members.get(name)
            if member is None:
                continue
            wanted, deeper = member
            if type(item) is not wanted:
                if item is not None:
                    raise _mismatch(item, wanted)
                nulls = True
            elif deeper is not None:
                value[name] = deeper(item)
        return {name: item for name, item in value.items() if item is not None} if nulls else value

    return check


def _list_checker(item_type: Type) -> _Check:
    wanted, deeper = _json_type(item_type), _checker(item_type)

    def check(value: Any) -> Any:
        for item in value:
            if type(item) is not wanted:
                raise _mismatch(item, wanted)
        return value if deeper is None else [deeper(item) for item in value]

    return check


def _map_checker(value_type: Type) -> _Check:
    wanted, deeper = _json_type(value_type), _checker(value_type)

    def check(value: Any) -> Any:
        for item in value.values():
            if type(item) is not wanted:
                raise _mismatch(item, wanted)
        return value if deeper is None else {name: deeper(item) for name, item in value.items()}

    return check


def _typed(name: str, type_: Type) -> Any:
    """Annotations of the type for msgspec's decoder, which is several times faster than the checkers."""
    match type_:
        case Scalar():
            return bytes if type_ is BLOB else _INT64 if type_ in (INTEGER, LONG) else _JSON_TYPES[type_]
        case Structure():
            members = {member: _typed(f"{name}.{member}", one.type) for member, one in type_.members.items()}
            return TypedDict(name, members, total=False)  # type: ignore[operator]
        case ListOf(item):
            return list[_typed(name, item)]  # type: ignore[misc]
        case MapOf(value):
            return dict[str, _typed(name, value)]  # type: ignore[misc]


_DECODERS: dict[str, Callable[[bytes], Members]] = {
    name: msgspec.json.Decoder(_typed(name, action.input)).decode for name, action in ACTIONS.items()
}
_INPUTS = {name: _structure_checker(action.input) for name, action in ACTIONS.items()}
_QUEUE_URL: Callable[[bytes], dict[str, str | None]] = msgspec.json.Decoder(
    TypedDict("QueueUrl", {"QueueUrl": str | None}, total=False)  # type: ignore[operator]
).decode

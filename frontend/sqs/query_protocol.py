"""The Query protocol: parameters of a form or a query string to a dict of members, a result to XML.

Knows the protocol and nothing else.  Parameters that the model does not know are ignored, as SQS does it.
An answer can also be written as JSON of the same shape (``Accept: application/json``).
"""

from __future__ import annotations

import re
from base64 import b64encode
from binascii import Error as Base64Error
from binascii import a2b_base64
from typing import Any
from urllib.parse import unquote_to_bytes

import orjson

from frontend.sqs.errors import (
    INVALID_PARAMETER_VALUE,
    MALFORMED_INPUT,
    SqsError,
    invalid_value,
    missing_parameter,
    shown,
)
from frontend.sqs.limits import QUERY_NAME_LENGTH_MOST, QUERY_PARAMETERS_MOST
from frontend.sqs.model import BLOB, BOOLEAN, INTEGER, LONG, Action, ListOf, MapOf, Scalar, Structure, Type

XML = b"text/xml"
JSON = b"application/json"
VERSION = "2012-11-05"
NAMESPACE = f"http://queue.amazonaws.com/doc/{VERSION}/"
UNKNOWN_OPERATION = b"<UnknownOperationException/>\n"

Members = dict[str, Any]

_Node = dict[str, Any]
"""Parameters as a tree: the parts of a name that are separated by dots lead to a string or a further node."""

_INTEGER = re.compile(r"-?[0-9]{1,18}\Z")
_INDEX = re.compile(r"[0-9]{1,6}\Z")
_SPECIAL = re.compile('[&<>"\r\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]')
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\r": "&#xD;"}
_JSON_NAMES = {"Messages": "messages", "QueueUrls": "queueUrls"}
"""Members that the JSON form of an answer spells in another way."""


# --- requests ----------------------------------------------------------------------------------------------


def read_parameters(*sources: bytes) -> dict[str, str]:
    """The parameters of query string and form.  Raises MalformedInput.

    A signature does not bind the order of parameters of one name, so none may be given twice with other values.
    """
    parameters: dict[str, str] = {}
    for source in sources:
        if source.count(b"&") >= QUERY_PARAMETERS_MOST:
            raise SqsError(MALFORMED_INPUT, f"A request can have at most {QUERY_PARAMETERS_MOST} parameters.")
        for pair in source.split(b"&"):
            name, _, value = pair.partition(b"=")
            if name:
                text = _unquoted(value)
                if parameters.setdefault(_unquoted(name), text) != text:
                    raise SqsError(MALFORMED_INPUT, f"The parameter {shown(_unquoted(name))} was given more than once.")
    return parameters


def read(action: Action, parameters: dict[str, str]) -> Members:
    """The members of the action's input.  Raises MalformedInput, InvalidParameterValue, MissingParameter."""
    members: Members = {}
    wires = _wires(action.input)
    tree: _Node = {}
    for name, value in parameters.items():
        top, dot, rest = name.partition(".")
        if top in wires:
            _plant(tree, name, [top, *rest.split(".")] if dot else [top], value)
    for top, node in tree.items():
        member_name, type_ = wires[top]
        members[member_name] = _value(type_, node, top)
    return members


def _unquoted(text: bytes) -> str:
    try:
        if b"%" in text or b"+" in text:
            return unquote_to_bytes(text.replace(b"+", b" ")).decode()
        return text.decode()
    except UnicodeDecodeError:
        raise SqsError(MALFORMED_INPUT, "A parameter is not valid UTF-8.") from None


def _plant(tree: _Node, name: str, parts: list[str], value: str) -> None:
    if len(name) > QUERY_NAME_LENGTH_MOST or len(parts) > 8:
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
    """Name on the wire → name and type of the member."""
    wires = _WIRES.get(structure.name)
    if wires is None:
        # a member's own name leads to it as well: old SDKs send an empty list under it
        wires = {name: (name, member.type) for name, member in structure.members.items()}
        wires |= {member.wire: (name, member.type) for name, member in structure.members.items()}
        _WIRES[structure.name] = wires
    return wires


_WIRES: dict[str, dict[str, tuple[str, Type]]] = {}
"""Of each structure that was read so far."""


# --- answers -----------------------------------------------------------------------------------------------


def escape(text: str) -> str:
    """Text as the content of an element.  What no XML document can hold becomes U+FFFD."""
    if _SPECIAL.search(text) is None:
        return text
    return _SPECIAL.sub(lambda match: _ESCAPES.get(match[0], "\ufffd"), text)


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
    """The Query answer's shape as JSON: absent members are null, maps are lists of name and value."""
    answer: Members = {}
    if action.output is not None:
        answer[f"{action.name}Result"] = _jsonable(action.output, result or {})
    answer["ResponseMetadata"] = {"RequestId": request_id}
    return orjson.dumps({f"{action.name}Response": answer})


def write_error_as_json(error: SqsError, request_id: str) -> bytes:
    kind = error.kind
    fault = "Sender" if kind.sender_fault else "Receiver"
    described = {"Code": kind.query_code, "Message": error.text_for_query(), "Type": fault}
    return orjson.dumps({"Error": described, "RequestId": request_id})


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
    if type(value) is str:
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
            return b64encode(value).decode() if type(value) is bytes else value
        case Structure():
            return {
                _JSON_NAMES.get(name, name): _jsonable(member.type, value.get(name))
                for name, member in type_.members.items()
            }
        case ListOf(item_type):
            return [_jsonable(item_type, item) for item in value]
        case MapOf(value_type, key_wire, value_wire):
            return [{key_wire: key, value_wire: _jsonable(value_type, item)} for key, item in value.items()]

"""SQS in the Query protocol: conversion of a form or query string to a dict of members, and of a result to XML.

An answer can also be written as JSON of the same shape (``Accept: application/json``).
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import msgspec

from frontend.query import parameters as query_parameters
from frontend.query import writing
from frontend.query.parameters import Parameters
from frontend.query.reading import Members, QueryErrors, QueryReader
from frontend.query.shapes import ListOf, MapOf, Scalar, Structure, Type
from frontend.sqs.protocol import bounds
from frontend.sqs.protocol.errors import (
    INVALID_PARAMETER_VALUE,
    MALFORMED_INPUT,
    SqsError,
    invalid_value,
    missing_parameter,
)
from frontend.sqs.protocol.model import ACTIONS, Action

XML = b"text/xml"
JSON = b"application/json"
VERSION = "2012-11-05"
NAMESPACE = f"http://queue.amazonaws.com/doc/{VERSION}/"
UNKNOWN_OPERATION = b"<UnknownOperationException/>\n"

_encode = msgspec.json.Encoder().encode
_JSON_NAMES = {"Messages": "messages", "QueueUrls": "queueUrls"}
"""Members with another spelling in the JSON form of an answer."""


# --- requests ----------------------------------------------------------------------------------------------


def _malformed(text: str) -> SqsError:
    return SqsError(MALFORMED_INPUT, text)


def _not_base64(where: str) -> SqsError:
    return SqsError(INVALID_PARAMETER_VALUE, f"The parameter {where} is not valid base64.")


_READER = QueryReader(QueryErrors(_malformed, invalid_value, _not_base64, missing_parameter))


def read_parameters(*sources: bytes) -> Parameters:
    """Parse the parameters of query string and form.  Raises MalformedInput."""
    return query_parameters.read_parameters(sources, _malformed)


def read(name: str, parameters: Parameters) -> Members:
    """Parse the members of an action's input.

    Raises MalformedInput, InvalidParameterValue, MissingParameter, and the error of
    :func:`bounds.too_much_content`.
    """
    if parameters.source_bytes > bounds.CONTENT_BYTES_MAX:
        content_bytes = sum(map(parameters.decoded_bytes, parameters))
        if content_bytes > bounds.CONTENT_BYTES_MAX:
            raise bounds.too_much_content(name)
    return _READER.members(ACTIONS[name].input, parameters)


def queue_url(parameters: Parameters) -> str | None:
    """Parameter QueueUrl; None if it was not given.  Raises MalformedInput."""
    return parameters.get("QueueUrl") or None


# --- answers -----------------------------------------------------------------------------------------------


def write(action: Action, result: Members | None, request_id: str) -> bytes:
    return writing.write_answer(NAMESPACE, action.name, action.output, result, request_id)


def write_error(error: SqsError, request_id: str) -> bytes:
    kind = error.kind
    fault = "Sender" if kind.sender_fault else "Receiver"
    return writing.write_error(NAMESPACE, fault, kind.query_code, error.text_for_query(), "<Detail/>", request_id)


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

"""SNS in the Query protocol: conversion of a form or query string to a dict of members, and of a result to XML."""

from __future__ import annotations

from frontend.query import writing
from frontend.query.parameters import Parameters
from frontend.query.reading import Members, QueryErrors, QueryReader
from frontend.sns.protocol.errors import (
    BATCH_REQUEST_TOO_LONG,
    MALFORMED_INPUT,
    MISSING_ACTION,
    REQUEST_TOO_LARGE,
    invalid_parameter,
    invalid_value,
    missing_parameter,
    not_served,
    unknown_action,
)
from frontend.sns.protocol.limits import PARAMETERS_BYTES_MAX
from frontend.sns.protocol.model import NOT_SERVED, SNS_ACTIONS
from frontend.sqs.protocol.errors import SqsError

SNS_VERSION = "2010-03-31"
SNS_NAMESPACE = f"http://sns.amazonaws.com/doc/{SNS_VERSION}/"


def _malformed(text: str) -> SqsError:
    return SqsError(MALFORMED_INPUT, text)


def _not_base64(where: str) -> SqsError:
    return invalid_parameter(f"{where} Reason: not valid base64")


_READER = QueryReader(QueryErrors(_malformed, invalid_value, _not_base64, missing_parameter))


def action_of(parameters: Parameters) -> str:
    """Name of the action.  Raises MissingAction and InvalidAction."""
    name = parameters.get("Action")
    if not name:
        raise SqsError(MISSING_ACTION)
    if name in NOT_SERVED:
        raise not_served(name, NOT_SERVED[name])
    if name not in SNS_ACTIONS:
        raise unknown_action(name)
    return name


def read_members(name: str, parameters: Parameters) -> Members:
    """Parse the members of an action's input.  Raises MalformedInput, InvalidParameter and those of a long request."""
    if parameters.source_bytes > PARAMETERS_BYTES_MAX:
        content_bytes = sum(map(parameters.decoded_bytes, parameters))
        if content_bytes > PARAMETERS_BYTES_MAX:
            raise _too_much_content(name)
    return _READER.members(SNS_ACTIONS[name].input, parameters)


def _too_much_content(name: str) -> SqsError:
    if name == "Publish":
        return invalid_parameter("Message too long")
    return SqsError(BATCH_REQUEST_TOO_LONG if name == "PublishBatch" else REQUEST_TOO_LARGE)


def write_result(name: str, result: Members | None, request_id: str) -> bytes:
    """Encode the answer to an action."""
    return writing.write_answer(SNS_NAMESPACE, name, SNS_ACTIONS[name].output, result, request_id)


def write_sns_error(error: SqsError, request_id: str) -> bytes:
    """Encode an error, whose kind is in SNS's terms."""
    fault = "Sender" if error.kind.sender_fault else "Receiver"
    return writing.write_error(SNS_NAMESPACE, fault, error.kind.query_code, error.message, "", request_id)

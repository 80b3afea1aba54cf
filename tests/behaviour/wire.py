"""Both of SQS's protocols from a client's side, independent of the service's code.

A call is an action name and its parameters in the form of the current service model (that of boto3).  :func:`encode`
makes an HTTP request of it, also from parameters that no client would send (wrong types, unknown members).
:func:`decode` converts the answer of either protocol back to the same form, and checks rules for every answer: content
type, request id, the envelope of results and errors.
"""

import base64
import json
import re
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree as ET

from botocore.model import ServiceModel, Shape
from botocore.parsers import create_parser

from tests.behaviour import query_model
from tests.tables import read_yaml

Protocol = Literal["json", "query"]
PROTOCOLS: tuple[Protocol, ...] = ("json", "query")
XMLNS = "http://queue.amazonaws.com/doc/2012-11-05/"
ERROR_NAMESPACES = ("com.amazonaws.sqs", "com.amazon.coral.service", "com.amazon.coral.validate")


@dataclass
class WireRequest:
    """One HTTP request, before or after signing."""

    method: str
    path: str
    headers: dict[str, str] = field(default_factory=dict)
    query: str = ""
    body: bytes = b""


@dataclass
class WireAnswer:
    """One HTTP answer; header names are lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class WireRefusal:
    """An error answer in the form that both protocols share."""

    shape: str | None
    """Shape name (JSON only)."""
    code: str
    """Query error code: from the XML, or from the header that awsQueryCompatible requires."""
    status: int
    message: str


@cache
def model() -> ServiceModel:
    """Load the Query model; its parameter names are those of the JSON protocol."""
    return ServiceModel(query_model.load(), "sqs")


@cache
def errors() -> dict[str, tuple[str, int]]:
    """Return Query code and HTTP status of each error shape, from the service's own lists."""
    table = read_yaml(query_model.TABLE.with_name("errors.yaml"))
    return {shape: (row[0], row[1]) for shape, row in table.items()}


# --- requests -----------------------------------------------------------------------------------------


def encode(
    protocol: Protocol, action: str, params: dict[str, Any], *, method: str = "POST", path: str | None = None
) -> WireRequest:
    """Make the unsigned request.  ``method`` GET is for Query only; ``path`` None: the one that an SDK uses."""
    if protocol == "json":
        headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{action}"}
        return WireRequest("POST", path or "/", headers, "", json.dumps(_plain(params)).encode())
    form = query_form(action, params)
    if path is None:
        path = _queue_path(params.get("QueueUrl"))
    if method == "GET":
        return WireRequest("GET", path, {}, urlencode(form, quote_via=quote), b"")
    headers = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
    return WireRequest("POST", path, headers, "", urlencode(form).encode())


def query_form(action: str, params: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the form fields of a Query call."""
    fields = [("Action", action), ("Version", "2012-11-05")]
    shape = model().operation_model(action).input_shape if action in model().operation_names else None
    _flatten("", params, shape, fields)
    return fields


class Raw(dict[str, Any]):
    """Parameter names and values that are sent unchanged, whatever the model says."""


def _flatten(prefix: str, value: Any, shape: Shape | None, out: list[tuple[str, str]]) -> None:
    kind = shape.type_name if shape is not None else None
    if value is None:
        return
    if isinstance(value, Raw):
        head, _, tail = prefix.rpartition(".")
        name = _name(shape.member, tail) if kind == "list" else tail  # type: ignore[union-attr]
        for key, inner in value.items():
            _flatten(f"{head}.{name}.{key}" if head else f"{name}.{key}", inner, None, out)
    elif isinstance(value, dict) and kind == "map":
        for number, (key, inner) in enumerate(value.items(), 1):
            out.append((f"{prefix}.{number}.{_name(shape.key, 'key')}", str(key)))  # type: ignore[union-attr]
            _flatten(f"{prefix}.{number}.{_name(shape.value, 'value')}", inner, shape.value, out)  # type: ignore[union-attr]
    elif isinstance(value, dict):
        members = shape.members if kind == "structure" else {}  # type: ignore[union-attr]
        for key, inner in value.items():
            member = members.get(key)
            name = _name(member, key) if member is not None else key
            _flatten(f"{prefix}.{name}" if prefix else name, inner, member, out)
    elif isinstance(value, list):
        inner_shape = shape.member if kind == "list" else None  # type: ignore[union-attr]
        if inner_shape is not None:
            head, _, tail = prefix.rpartition(".")
            name = _name(inner_shape, tail)
            prefix = f"{head}.{name}" if head else name
        for number, inner in enumerate(value, 1):
            _flatten(f"{prefix}.{number}", inner, inner_shape, out)
    else:
        out.append((prefix, _scalar(value)))


def _name(shape: Shape, default: str) -> str:
    return str(shape.serialization.get("name", default))


def _scalar(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value


def _queue_path(url: Any) -> str:
    if isinstance(url, str) and url.startswith(("http://", "https://")):
        return urlsplit(url).path or "/"
    return "/"


# --- answers ------------------------------------------------------------------------------------------


def decode(protocol: Protocol, action: str, answer: WireAnswer) -> dict[str, Any] | WireRefusal:
    """Return the result or the error; AssertionError if the envelope is not SQS's."""
    assert answer.headers.get("x-amzn-requestid"), f"no request id: {answer}"
    if protocol == "json":
        return _decode_json(answer)
    return _decode_query(action, answer)


def _decode_json(answer: WireAnswer) -> dict[str, Any] | WireRefusal:
    body: dict[str, Any] = {}
    if answer.body:
        assert answer.headers.get("content-type") == "application/x-amz-json-1.0", answer
        body = json.loads(answer.body)
        assert isinstance(body, dict), answer
    if answer.status == 200:
        assert "__type" not in body, answer
        return body
    namespace, _, shape = body["__type"].partition("#")
    assert namespace in ERROR_NAMESPACES, answer
    assert shape, answer
    code, _, fault = answer.headers["x-amzn-query-error"].partition(";")
    assert fault == ("Sender" if answer.status < 500 else "Receiver"), answer
    assert set(body) <= {"__type", "message"}, answer
    return WireRefusal(shape, code, answer.status, body.get("message", ""))


def _decode_query(action: str, answer: WireAnswer) -> dict[str, Any] | WireRefusal:
    assert re.match(r"(text|application)/xml\b", answer.headers.get("content-type", "")), answer
    root = ET.fromstring(answer.body)
    if answer.status != 200:
        assert root.tag == f"{{{XMLNS}}}ErrorResponse", answer
        assert root.findtext(f"{{{XMLNS}}}RequestId"), answer
        error = root.find(f"{{{XMLNS}}}Error")
        assert error is not None, answer
        parts = {child.tag.removeprefix(f"{{{XMLNS}}}"): child.text or "" for child in error}
        assert list(parts) == ["Type", "Code", "Message", "Detail"], answer
        assert parts["Type"] == ("Sender" if answer.status < 500 else "Receiver"), answer
        return WireRefusal(None, parts["Code"], answer.status, parts["Message"])
    assert root.tag == f"{{{XMLNS}}}{action}Response", answer
    assert root.findtext(f"{{{XMLNS}}}ResponseMetadata/{{{XMLNS}}}RequestId"), answer
    operation = model().operation_model(action)
    if operation.output_shape is not None:
        assert root.find(f"{{{XMLNS}}}{action}Result") is not None, answer
    parsed: dict[str, Any] = create_parser("query").parse(
        {"headers": answer.headers, "body": answer.body, "status_code": 200}, operation.output_shape
    )
    parsed.pop("ResponseMetadata", None)
    result: dict[str, Any] = _encoded(parsed)
    return result


def _encoded(value: Any) -> Any:
    """Convert bytes back to base64 text, as the JSON answer has them."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {key: _encoded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_encoded(inner) for inner in value]
    return value

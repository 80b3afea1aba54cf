"""Fuzz targets: the parsers one by one, each with its permitted results.

A target makes an input from :class:`Draws` and passes it to one part of the service.  The part may refuse with
its own typed error; any other exception is a finding, and so is an answer that violates the target's own
invariant.
"""

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from xml.etree import ElementTree as ET

import orjson

from auth.errors import AuthError
from auth.signatures.sigv4 import Verifier
from backend.api import HandleOutcome
from backend.engine.receipt_handles import Handles
from frontend.queues import attributes, policies
from frontend.queues.queues import locate
from frontend.sqs.protocol import json, validation
from frontend.sqs.protocol import query as query_protocol
from frontend.sqs.protocol.errors import SqsError
from frontend.sqs.protocol.model import ACTIONS
from metadata_service import arn
from tests.fuzz import filter_targets, kafka_door, kafka_targets, rest_targets, sns_door, sns_targets
from tests.fuzz import large as large_inputs
from tests.fuzz.budget import MEMORY_ALLOWANCE_BYTES
from tests.fuzz.grammar import Draws
from tests.servers.signing import signing_key

SECRET = "fuzz-secret-fuzz-secret-fuzz-secret"
KEY_ID = "AKIDEXAMPLEEXAMPLE00"
NOW = 1_800_000_000.0
STAMP = "20270115T080000Z"
LARGE_BYTES = 16 * 1024


class Broken(AssertionError):
    """An invariant was violated."""


@dataclass(frozen=True)
class FuzzTarget:
    """A part of the service, with functions that make and feed its input."""

    name: str
    make: Callable[[Draws], Any]
    feed: Callable[[Any], bool]
    """Function that feeds an input; returns True if it was accepted, and raises when something is wrong."""
    large: Callable[[Draws, int], Any]
    """Function that makes an input of about this many bytes."""
    size: Callable[[Any], int] = large_inputs.size
    """Function that returns the length of an input in bytes, the base of its cost."""
    allowance_bytes: int = MEMORY_ALLOWANCE_BYTES
    """Memory that any input may use."""
    short_inputs: int = 5_000
    """Number of inputs in the short run of the tests."""


def _promise(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


# --- bodies ---------------------------------------------------------------------------------------------------


def _make_json(draws: Draws) -> tuple[str, bytes]:
    action = draws.action()
    return action, draws.json_body(action)


def _feed_json(given: tuple[str, bytes]) -> bool:
    action, body = given
    try:
        members = json.read(action, body)
    except SqsError as error:
        _promise(400 <= error.kind.status < 500, f"{error.kind.shape} is no client error")
        written, header = json.write_error(error)
        _promise(orjson.loads(written)["__type"].endswith(error.kind.shape) and header.isascii(), "error is unreadable")
        return False
    known = [value for name, value in members.items() if name in ACTIONS[action].input.members]
    _promise(None not in known, "a member that is not there")
    return True


def _make_form(draws: Draws) -> tuple[str, bytes]:
    action = draws.action()
    return action, draws.form(action)


def _feed_form(given: tuple[str, bytes]) -> bool:
    action, body = given
    try:
        members = query_protocol.read(action, query_protocol.read_parameters(body))
    except SqsError as error:
        _promise(400 <= error.kind.status < 500, f"{error.kind.shape} is no client error")
        ET.fromstring(query_protocol.write_error(error, "id"))
        return False
    _promise(set(members) <= set(ACTIONS[action].input.members), "members that the model does not know")
    return True


def _make_answer(draws: Draws) -> dict[str, Any]:
    message = {
        "MessageId": draws.text(),
        "Body": draws.text() + draws.text(),
        "Attributes": {draws.text(): draws.text()},
        "MessageAttributes": {draws.text(): {"DataType": draws.text(), "StringValue": draws.text()}},
    }
    return {"Messages": [message] * draws.below(3)}


def _feed_answer(result: dict[str, Any]) -> bool:
    """Check that the answer for any message is well-formed and complete."""
    written = query_protocol.write(ACTIONS["ReceiveMessage"], result, "id")
    if len(written) > LARGE_BYTES:
        del written
        json.write(result)  # only the service is measured: parsing the answer costs more
        return True
    root = ET.fromstring(written)
    bodies = [element.text or "" for element in root.iter(f"{{{query_protocol.NAMESPACE}}}Body")]
    wanted = [message["Body"] for message in result["Messages"]]
    if not any(validation.has_invalid_characters(body.encode()) for body in wanted):
        _promise(bodies == wanted, f"{bodies!r} instead of {wanted!r}")
    _promise(orjson.loads(json.write(result)) == result, "JSON says something else")
    orjson.loads(query_protocol.write_as_json(ACTIONS["ReceiveMessage"], result, "id"))
    return True


# --- signatures -----------------------------------------------------------------------------------------------


def _make_header(draws: Draws) -> dict[bytes, bytes]:
    headers = {b"host": b"localhost:9324", b"x-amz-date": draws.date().encode(), b"date": draws.date().encode()}
    headers[b"authorization"] = draws.authorization().encode()
    for name in (b"x-amz-date", b"date", b"host"):
        if draws.chance(15):
            del headers[name]
    if draws.chance(20):
        name = draws.one((b"authorization", b"x-amz-content-sha256", b"x-amz-security-token", b"x-amz-target"))
        headers[name] = draws.broken(headers.get(name, b""))
    return headers


def _verify(
    headers: dict[bytes, bytes], query: bytes, body: bytes = b"", path: bytes = b"/", method: bytes = b"POST"
) -> None:
    verifier = Verifier("us-east-1")
    claim = verifier.claim(headers, query)
    verifier.check(claim, SECRET, method=method, path=path, query=query, headers=headers, body=body, now=NOW)


def _feed_forged(headers: dict[bytes, bytes], query: bytes = b"", body: bytes = b"", path: bytes = b"/") -> bool:
    """Check that a request without a valid signature is refused."""
    try:
        _verify(headers, query, body, path, method=b"GET" if query else b"POST")
    except AuthError:
        return False
    raise Broken("a request was accepted whose signature was invented, or that was changed after signing")


def _feed_presigned(query: bytes) -> bool:
    return _feed_forged({b"host": b"localhost:9324"}, query)


def sign(
    method: str,
    path: str,
    query: str,
    headers: dict[str, str],
    body: bytes,
    stamp: str = STAMP,
    secret: str = SECRET,
    key_id: str = KEY_ID,
) -> str:
    """The Authorization header of a request, by the specification; header names are in lower case.

    ``query`` has to be canonical already.
    """
    names = sorted(headers)
    lines = "".join(f"{name}:{headers[name]}\n" for name in names)
    canonical = "\n".join((method, path, query, lines, ";".join(names), sha256(body).hexdigest()))
    scope = f"{stamp[:8]}/us-east-1/sqs/aws4_request"
    to_sign = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
    signature = hmac.digest(signing_key(secret, stamp[:8], "us-east-1"), to_sign.encode(), "sha256").hex()
    return f"AWS4-HMAC-SHA256 Credential={key_id}/{scope}, SignedHeaders={';'.join(names)}, Signature={signature}"


def _make_tampered(draws: Draws) -> tuple[dict[bytes, bytes], bytes, bytes]:
    """A request that was changed in one place after signing."""
    body = draws.one((b"", b'{"QueueUrl":"q"}', draws.text().encode()))
    path = "/000000000000/q"
    headers = {"host": "localhost:9324", "x-amz-date": STAMP, "content-type": "application/x-amz-json-1.0"}
    signed = {name.encode(): value.encode() for name, value in headers.items()}
    authorization = sign("POST", path, "", headers, body)
    signed[b"authorization"] = authorization.encode()
    _verify(signed, b"", body, path.encode())
    changed_path = path.encode()
    where = draws.below(5)
    if where == 0:
        body = body + bytes((draws.below(256),))
    elif where == 1:
        at = authorization.index("Signature=") + 10 + draws.below(64)
        other = "0" if authorization[at] != "0" else "1"
        signed[b"authorization"] = (authorization[:at] + other + authorization[at + 1 :]).encode()
    elif where == 2:
        signed[b"x-amz-date"] = b"20270115T080001Z"
    elif where == 3:
        name = draws.one((b"host", b"content-type"))
        signed[name] = signed[name] + b"x"
    else:
        changed_path = draws.respelled_path(path.encode())
    return signed, body, changed_path


def _feed_tampered(given: tuple[dict[bytes, bytes], bytes, bytes]) -> bool:
    headers, body, path = given
    return _feed_forged(headers, b"", body, path)


# --- single values --------------------------------------------------------------------------------------------

_HANDLES = Handles(7, b"k" * 16)
_OTHERS = Handles(8, b"o" * 16)
_ISSUED = tuple(_HANDLES.issue(number, 1, 1_800_000_000_000 + number) for number in range(20))
_FOREIGN = tuple(_OTHERS.issue(number, 1, 1_800_000_000_000 + number) for number in range(20))
_POSITIONS = tuple(_HANDLES.read(handle) for handle in _ISSUED)


def _make_handle(draws: Draws) -> str:
    if draws.chance(15):
        return draws.text()
    return draws.broken(draws.one(_ISSUED + _FOREIGN).encode()).decode("utf-8", "replace")


def _feed_handle(handle: str) -> bool:
    outcome = _HANDLES.read(handle)
    if isinstance(outcome, HandleOutcome):
        return False
    _promise(outcome in _POSITIONS, "a handle that was never issued was taken")
    return True


def _feed_policy(text: str) -> bool:
    readers: tuple[Callable[[str], Any], ...] = (
        lambda text: policies.redrive_policy(text)[0],
        policies.redrive_allow_policy,
        policies.access_policy,
    )
    taken = False
    for read in readers:
        try:
            canonical = read(text)
        except SqsError:
            continue
        _promise(read(canonical) == canonical, "canonical form is not stable")
        if read is policies.access_policy:
            _change_policy(canonical)
        elif read is policies.redrive_allow_policy:
            policies.allows_source(canonical, "arn:aws:sqs:us-east-1:000000000000:q")
        taken = True
    return taken


def _change_policy(canonical: str) -> None:
    changes: tuple[Callable[[], object], ...] = (
        lambda: policies.with_permission(canonical, "arn:x", "label", ["000000000000"], ["SendMessage"]),
        lambda: policies.without_permission(canonical, "label"),
    )
    for change in changes:
        try:
            change()
        except SqsError:
            pass


def _make_attributes(draws: Draws) -> dict[str, Any]:
    return {
        "queue": {
            draws._key("Attributes"): draws.one((draws.text(), draws.policy_text())) for _ in range(draws.below(5))
        },
        "message": {
            draws.text(): {
                "DataType": draws.one(("String", "Number", "Binary", "Number.x", draws.text())),
                "StringValue": draws.one((draws.text(), str(draws.integer()), "1e5", "-.5", "1" * 40)),
                "BinaryValue": draws.one((b"", b"x", draws.text().encode())),
            }
            for _ in range(draws.below(4))
        },
        "url": draws.text(),
    }


def _feed_attributes(given: dict[str, Any]) -> bool:
    taken = False
    for fifo in (False, True):
        try:
            values = attributes.canonical(given["queue"], fifo=fifo)
            stored = attributes.merged({}, values)
        except SqsError:
            continue
        again = attributes.merged(stored, attributes.canonical(stored, fifo=fifo))
        _promise(again == stored, f"what is stored is not canonical: {stored}")
        _promise(attributes.first_difference(stored, values) is None or "" in values.values(), "differs from itself")
        taken = True
    for name, value in given["message"].items():
        for read in (validation.message_attributes, validation.trace_header):
            try:
                read({name: value})
                taken = True
            except SqsError:
                pass
    try:
        account, name = locate(given["url"], "000000000000")
        _promise(len(account) == 12, f"{account!r} is not an account")
    except SqsError:
        pass
    arn.parse(given["url"])
    return taken


def _answer_bytes(result: dict[str, Any]) -> int:
    """Length of the longest encoding of an answer, which has to be written in any case."""
    return len(query_protocol.write(ACTIONS["ReceiveMessage"], result, "id"))


def _large_tampered(draws: Draws, length: int) -> tuple[dict[bytes, bytes], bytes, bytes]:
    headers, _, path = _make_tampered(draws)
    return headers, large_inputs.tampered(draws, length), path


def _large_handle(draws: Draws, length: int) -> str:
    return draws.one(("A", "=", "/", "\n", "\u00e9", "AQEB")) * (length // 4)


PARSERS: tuple[FuzzTarget, ...] = (
    FuzzTarget("json-body", _make_json, _feed_json, large_inputs.json_body),
    FuzzTarget("query-form", _make_form, _feed_form, large_inputs.form),
    FuzzTarget("answers", _make_answer, _feed_answer, large_inputs.answer, _answer_bytes),
    FuzzTarget("authorization-header", _make_header, _feed_forged, large_inputs.authorization),
    FuzzTarget("presigned-query", Draws.presigned, _feed_presigned, large_inputs.presigned),
    FuzzTarget("tampered-request", _make_tampered, _feed_tampered, _large_tampered),
    FuzzTarget("receipt-handle", _make_handle, _feed_handle, _large_handle),
    FuzzTarget("policies", Draws.policy_text, _feed_policy, large_inputs.policy),
    FuzzTarget(
        "filter-policies",
        filter_targets.make_filter_policy,
        filter_targets.feed_filter_policy,
        filter_targets.large_filter_policy,
        allowance_bytes=4 * MEMORY_ALLOWANCE_BYTES,  # the parsed text of the longest policy
    ),
    FuzzTarget(
        "filtered-messages",
        filter_targets.make_filter_input,
        filter_targets.feed_filter_input,
        filter_targets.large_filter_input,
        filter_targets.filter_input_size,
        filter_targets.ALLOWANCE_BYTES,
    ),
    FuzzTarget("attributes-and-urls", _make_attributes, _feed_attributes, large_inputs.values),
    FuzzTarget("kafka-frames", kafka_targets.make_frames, kafka_targets.feed_frames, kafka_targets.large_frames),
    FuzzTarget("kafka-requests", kafka_targets.make_request, kafka_targets.feed_request, kafka_targets.large_request),
    FuzzTarget("kafka-batches", kafka_targets.make_batch, kafka_targets.feed_batch, kafka_targets.large_batch),
    FuzzTarget("kafka-strangers", kafka_door.make_stranger, kafka_door.feed_stranger, kafka_door.large_stranger),
    FuzzTarget(
        "kafka-callers",
        kafka_door.make_caller,
        kafka_door.feed_caller,
        kafka_door.large_caller,
        allowance_bytes=4 * MEMORY_ALLOWANCE_BYTES,  # each element of an array has an answer
    ),
    FuzzTarget(
        "rest-records",
        rest_targets.make_records,
        rest_targets.feed_records,
        rest_targets.large_records,
        rest_targets.records_size,
    ),
    FuzzTarget("sns-forms", sns_targets.make_form, sns_targets.feed_form, sns_targets.large_form),
    FuzzTarget(
        "sns-publications",
        sns_targets.make_publication,
        sns_targets.feed_publication,
        sns_targets.large_publication,
    ),
    FuzzTarget(
        "sns-attributes", sns_targets.make_attributes, sns_targets.feed_attributes, sns_targets.large_attributes
    ),
    FuzzTarget("sns-callers", sns_door.make_calls, sns_door.feed_calls, sns_door.large_calls, short_inputs=1_000),
    FuzzTarget("rest-positions", rest_targets.make_position, rest_targets.feed_position, rest_targets.large_position),
)

"""JSON bodies: accepted forms; everything else is a SerializationException."""

from __future__ import annotations

import json
import re
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.sqs.protocol import json as json_protocol
from frontend.sqs.protocol.errors import INTERNAL_FAILURE, QUEUE_DOES_NOT_EXIST, SERIALIZATION, ErrorKind, SqsError
from frontend.sqs.protocol.model import ACTIONS


def read(action: str, value: Any) -> Any:
    return json_protocol.read(action, orjson.dumps(value))


def test_members_are_read_as_they_are() -> None:
    members = {"QueueUrl": "u", "MessageBody": "b", "DelaySeconds": 5}
    assert read("SendMessage", members) == members


def test_binary_values_are_decoded_everywhere() -> None:
    attributes = {"a": {"DataType": "Binary", "BinaryValue": "AAH/"}, "b": {"DataType": "String", "StringValue": "x"}}
    entry = {"Id": "1", "MessageBody": "b", "MessageAttributes": attributes}
    expected = {"DataType": "Binary", "BinaryValue": b"\x00\x01\xff"}
    assert read("SendMessage", entry)["MessageAttributes"]["a"] == expected
    assert read("SendMessageBatch", {"Entries": [entry]})["Entries"][0]["MessageAttributes"]["a"] == expected


def test_null_counts_as_absent_and_unknown_members_are_ignored() -> None:
    assert read("SendMessage", {"MessageBody": None, "QueueUrl": "u"}) == {"QueueUrl": "u"}
    assert read("ListQueues", {"Nonsense": {"deep": [1]}}) == {}
    assert read("ListQueues", {"Nonsense": {"deep": [1]}, "MaxResults": 3, "NextToken": None})["MaxResults"] == 3


def test_an_empty_body_has_no_members() -> None:
    assert json_protocol.read("ListQueues", b"") == {}


@pytest.mark.parametrize(
    "members",
    [
        [],
        "text",
        1,
        None,
        {"QueueUrl": 1},
        {"QueueUrl": True},
        {"QueueUrl": ["u"]},
        {"MessageBody": {"x": 1}},
        {"DelaySeconds": "5"},
        {"DelaySeconds": 5.5},
        {"DelaySeconds": True},
        {"MessageAttributes": []},
        {"MessageAttributes": {"a": "text"}},
        {"MessageAttributes": {"a": None}},
        {"MessageAttributes": {"a": {"DataType": 1}}},
        {"MessageAttributes": {"a": {"BinaryValue": "not base64!"}}},
        {"MessageAttributes": {"a": {"BinaryValue": "é"}}},
        {"MessageAttributes": {"a": {"StringListValues": [1]}}},
    ],
)
def test_wrong_types_are_serialization_exceptions(members: Any) -> None:
    with pytest.raises(SqsError) as caught:
        read("SendMessage", members)
    assert caught.value.kind is SERIALIZATION


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"nonsense",
        b"{'a': 1}",
        b'{"a": NaN}',
        b'{"MessageBody": "\xff\xfe"}',
        b'{"MessageBody": "\x00"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"a": "\\ud800"' + b"[" * 100_000,
        b"\xef\xbb\xbf{}",
        b'{"DelaySeconds": ' + b"9" * 10_000 + b"}",
        b'{"DelaySeconds": 1e400}',
        b"\x00",
    ],
)
def test_broken_bodies_are_serialization_exceptions(body: bytes) -> None:
    with pytest.raises(SqsError) as caught:
        json_protocol.read("SendMessage", body)
    assert caught.value.kind is SERIALIZATION


def test_the_last_of_duplicate_keys_counts() -> None:
    assert json_protocol.read("SendMessage", b'{"MessageBody": "a", "MessageBody": "b"}') == {"MessageBody": "b"}


def test_half_a_character_becomes_one_that_no_message_may_have() -> None:
    assert json_protocol.read("SendMessage", b'{"MessageBody": "a\\ud800b"}') == {"MessageBody": "a\uffffb"}
    assert json_protocol.read("SendMessage", b'{"MessageBody": "\\ud83d\\ude00"}') == {"MessageBody": "😀"}


def test_answers() -> None:
    assert json_protocol.write(None) == b"{}"
    assert json_protocol.write({}) == b"{}"
    assert json_protocol.write({"a": {"BinaryValue": b"\x00\xff"}}) == b'{"a":{"BinaryValue":"AP8="}}'


def test_errors() -> None:
    body, query_error = json_protocol.write_error(SqsError(QUEUE_DOES_NOT_EXIST))
    assert orjson.loads(body) == {
        "__type": "com.amazonaws.sqs#QueueDoesNotExist",
        "message": "The specified queue does not exist.",
    }
    assert query_error == b"AWS.SimpleQueueService.NonExistentQueue;Sender"
    assert json_protocol.write_error(SqsError(INTERNAL_FAILURE))[1] == b"InternalFailure;Receiver"


def outcome(action: str, body: bytes) -> dict[str, Any] | ErrorKind:
    """The members, or the kind of the error."""
    try:
        return json_protocol.read(action, body)
    except SqsError as error:
        return error.kind


@given(st.sampled_from(sorted(ACTIONS)), st.binary(max_size=100) | st.text(max_size=100).map(str.encode))
def test_no_bytes_make_anything_but_members_or_an_error(action: str, body: bytes) -> None:
    result = outcome(action, body)
    assert isinstance(result, dict) or result is SERIALIZATION


_LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10)
_FLAT = _LEAVES | st.lists(_LEAVES, max_size=3) | st.dictionaries(st.text(max_size=10), _LEAVES, max_size=3)
_VALUES = _FLAT | st.lists(_FLAT, max_size=3) | st.dictionaries(st.text(max_size=10), _FLAT, max_size=3)


@given(st.data(), st.sampled_from(sorted(ACTIONS)))
def test_no_document_makes_anything_but_members_or_an_error(data: st.DataObject, action: str) -> None:
    names = st.sampled_from(sorted(ACTIONS[action].input.members) or ["x"])
    document = data.draw(st.dictionaries(names, _VALUES, max_size=4))
    result = outcome(action, json.dumps(document).encode())
    assert isinstance(result, dict) or result is SERIALIZATION


@pytest.mark.parametrize(
    "text",
    [
        r"\ud800",
        r"\uDFFF",
        r"\ud800\ud800",
        r"\ud800\ud83d\ude00\ude00",
        r"\\\ud800",
        r"\\ud800\ude00",
        r"\\\\\udc00\"\ud801x",
        r"\ud83d\\\ude00",
    ],
)
def test_lone_surrogates_are_replaced_and_pairs_are_not(text: str) -> None:
    expected = re.sub("[\ud800-\udfff]", "\uffff", json.loads(f'"{text}"'))
    assert json_protocol.read("SendMessage", f'{{"MessageBody": "{text}"}}'.encode()) == {"MessageBody": expected}
    assert json_protocol.read("SendMessage", f'{{"QueueUrl": null, "MessageBody": "{text}"}}'.encode()) == {
        "MessageBody": expected
    }


def test_whole_numbers_have_64_bits() -> None:
    for number in (2**63, -(2**63) - 1, 10**400):
        with pytest.raises(SqsError) as caught:
            json_protocol.read("SendMessage", b'{"QueueUrl": null, "DelaySeconds": %d}' % number)
        assert caught.value.kind is SERIALIZATION

"""JSON bodies: accepted forms; everything else is a SerializationException."""

import json
import re
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.sqs.protocol import json as json_protocol
from frontend.sqs.protocol.errors import SERIALIZATION, ErrorKind, SqsError
from frontend.sqs.protocol.model import ACTIONS
from tests.tables import table


def read(action: str, value: Any) -> Any:
    return json_protocol.read(action, orjson.dumps(value))


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


def test_the_last_of_duplicate_keys_counts() -> None:
    assert json_protocol.read("SendMessage", b'{"MessageBody": "a", "MessageBody": "b"}') == {"MessageBody": "b"}


def test_half_a_character_becomes_one_that_no_message_may_have() -> None:
    assert json_protocol.read("SendMessage", b'{"MessageBody": "a\\ud800b"}') == {"MessageBody": "a\uffffb"}
    assert json_protocol.read("SendMessage", b'{"MessageBody": "\\ud83d\\ude00"}') == {"MessageBody": "😀"}


def test_answers() -> None:
    assert json_protocol.write(None) == b"{}"
    assert json_protocol.write({}) == b"{}"
    assert json_protocol.write({"a": {"BinaryValue": b"\x00\xff"}}) == b'{"a":{"BinaryValue":"AP8="}}'


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


@pytest.mark.parametrize("text", table(__file__, "surrogates"))
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

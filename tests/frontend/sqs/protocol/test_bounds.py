"""Counts of a body before it is parsed."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.sqs.protocol import bounds
from frontend.sqs.protocol import json as json_protocol
from frontend.sqs.protocol.errors import SqsError

PAD = " " * bounds.SMALL_BYTES


def code_of(text: str, action: str = "SendMessage") -> str:
    with pytest.raises(SqsError) as caught:
        json_protocol.read(action, text.encode())
    return caught.value.kind.query_code


def test_a_full_batch_is_within_the_bounds() -> None:
    attributes = {f"n{n}": {"DataType": "String", "StringValue": "\U0001f600" * 10} for n in range(10)}
    entries = [{"Id": str(n), "MessageBody": "\x01" * 104_000, "MessageAttributes": attributes} for n in range(10)]
    body = json.dumps({"QueueUrl": "q", "Entries": entries}, indent=4)
    assert len(body) > 6 * 1_000_000
    assert json_protocol.read("SendMessageBatch", body.encode())["Entries"] == entries
    text = {"MessageBody": json.dumps([{'a"\\': n} for n in range(40_000)])}
    assert json_protocol.read("SendMessage", json.dumps(text).encode()) == text


def test_structure_is_bounded() -> None:
    assert json_protocol.read("SendMessage", b'{"Z":[' + b"0," * (bounds.STRUCTURE_MAX - 10) + b"0]}") == {}
    assert code_of('{"Z":[' + "0," * bounds.STRUCTURE_MAX + "0]}") == "SerializationException"
    assert code_of('{"Z":[' + "[]," * bounds.STRUCTURE_MAX + "0]}") == "SerializationException"
    assert code_of('{"Z":[' + '"a",' * bounds.STRINGS_MAX + '"a"]}' + PAD) == "SerializationException"
    assert code_of('{"Z":[' + '"\\\\",' * bounds.STRINGS_MAX + '"a"]}' + PAD) == "SerializationException"


def test_content_is_bounded_by_what_the_action_can_have() -> None:
    body = json.dumps({"MessageBody": "x" * 2_000_000})
    assert code_of(body) == "InvalidParameterValue"
    assert code_of(body, "SendMessageBatch") == "AWS.SimpleQueueService.BatchRequestTooLong"
    assert code_of(body, "ListQueues") == "RequestEntityTooLarge"


VALUES = st.recursive(
    st.text(st.sampled_from('ab\\",[{:}]\n\u00e9\U0001f600u'), max_size=8) | st.integers(-9, 9) | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.sampled_from('a\\",'), max_size=4), inner),
    max_leaves=20,
)


@given(VALUES, st.booleans())
def test_counts_are_exact(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    strings, structure = counted(value)
    allowed = bounds.STRINGS_MAX, bounds.STRUCTURE_MAX
    try:
        bounds.STRINGS_MAX, bounds.STRUCTURE_MAX = strings, structure
        content_bytes = bounds.check_structure(text.encode())
        bounds.STRINGS_MAX, bounds.STRUCTURE_MAX = strings - 1, structure
        if strings:
            with pytest.raises(SqsError):
                bounds.check_structure(text.encode())
        bounds.STRINGS_MAX, bounds.STRUCTURE_MAX = strings, structure - 1
        if structure:
            with pytest.raises(SqsError):
                bounds.check_structure(text.encode())
    finally:
        bounds.STRINGS_MAX, bounds.STRUCTURE_MAX = allowed
    assert content_bytes <= len(json.dumps(value, ensure_ascii=False).encode())


def counted(value: Any) -> tuple[int, int]:
    """Number of strings, and of opening brackets and commas, of a JSON value."""
    if isinstance(value, str):
        return 1, 0
    if not isinstance(value, list | dict):
        return 0, 0
    inner = [counted(one) for one in (value if isinstance(value, list) else [*value, *value.values()])]
    strings, structure = (sum(one) for one in zip(*inner, strict=True)) if inner else (0, 0)
    return strings, structure + 1 + max(0, len(value) - 1)


def test_the_queue_of_an_unsigned_call() -> None:
    assert json_protocol.queue_url(b"") is None
    assert json_protocol.queue_url(b"{}") is None
    assert json_protocol.queue_url(b'{"QueueUrl":null}') is None
    assert json_protocol.queue_url(b'{"MessageBody":"\\ud800","Z":[[{}]],"QueueUrl":"q"}') == "q"
    for broken in (b"[]", b'{"QueueUrl":1}', b'{"QueueUrl":"q"', b'{"QueueUrl":"\\ud800', b"\xff", b"[" * 100_000):
        with pytest.raises(SqsError):
            json_protocol.queue_url(broken)

"""Validation of single values: bodies, attributes, identifiers, digests."""

from __future__ import annotations

from hashlib import md5 as plain_md5
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.queues import payload
from frontend.queues.payload import Payload
from frontend.sqs.protocol import md5, validation
from frontend.sqs.protocol.errors import SqsError


def refused(attributes: dict[str, dict[str, Any]]) -> SqsError:
    with pytest.raises(SqsError) as caught:
        validation.message_attributes(attributes)
    assert caught.value.kind.status == 400
    return caught.value


def text(value: str, type_: str = "String") -> dict[str, Any]:
    return {"DataType": type_, "StringValue": value}


# --- bodies ------------------------------------------------------------------------------------------------


@given(st.text())
def test_which_characters_a_body_may_have(body: str) -> None:
    def allowed(letter: str) -> bool:
        code = ord(letter)
        return code in (9, 10, 13) or 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or 0x10000 <= code <= 0x10FFFF

    assert validation.has_invalid_characters(body.encode()) is not all(map(allowed, body))


@pytest.mark.parametrize("code", [0, 8, 0xB, 0xC, 0xE, 0x1F, 0xFFFE, 0xFFFF])
def test_characters_at_the_borders_that_are_not_allowed(code: int) -> None:
    with pytest.raises(SqsError, match="Invalid characters were found in the message body"):
        validation.check_body(f"a{chr(code)}é".encode())


@pytest.mark.parametrize("code", [9, 0xA, 0xD, 0x20, 0x7F, 0xD7FF, 0xE000, 0xFFFD, 0x10000, 0x1FFFE, 0x10FFFF])
def test_characters_at_the_borders_that_are_allowed(code: int) -> None:
    validation.check_body(f"a{chr(code)}é".encode())


# --- message attributes ------------------------------------------------------------------------------------


def test_attributes_are_kept_as_name_type_and_value() -> None:
    given_attributes = {
        "a": text("x"),
        "b.c-d_e": text("1.5e3", "Number.custom"),
        "c": {"DataType": "Binary.png", "BinaryValue": b"\x00", "StringListValues": []},
        "attr.1øßä": text("y", "String.ü"),
    }
    kept = validation.message_attributes(given_attributes)
    assert kept == (
        ("a", "String", "x"),
        ("b.c-d_e", "Number.custom", "1.5e3"),
        ("c", "Binary.png", b"\x00"),
        ("attr.1øßä", "String.ü", "y"),
    )
    assert validation.size_of(kept[:1]) == len("a" + "String" + "x")
    assert validation.size_of(kept[2:3]) == len("c" + "Binary.png") + 1


@pytest.mark.parametrize(
    "name", ["", ".a", "a.", "a..b", "AWS.a", "aws.a", "Amazon.x", "aMaZoN.x", "a b", "a/b", "a\x00", "x" * 257]
)
def test_names_that_are_not_allowed(name: str) -> None:
    assert "attribute name" in refused({name: text("v")}).message


def test_names_that_are_allowed() -> None:
    for name in ("a", "x" * 256, "AWSx", "amazonx", "a.b", "-", "_"):
        validation.message_attributes({name: text("v")})


@pytest.mark.parametrize(
    "type_", ["string", "Strings", "String.", "Text", ".String", "String.\x00", "String." + "x" * 256]
)
def test_types_that_are_not_allowed(type_: str) -> None:
    assert "The type of message (user) attribute 'a' is invalid." in refused({"a": text("v", type_)}).message


def test_empty_types_and_values_name_the_attribute() -> None:
    assert "attribute 'a' is invalid" in refused({"a": {"StringValue": "v"}}).message
    assert (
        refused({"a": text("")}).message
        == "Message (user) attribute 'a' must contain a non-empty value of type 'String'."
    )
    for value in (text(""), {"DataType": "String"}, {"DataType": "String", "BinaryValue": b"x"}):
        assert "'a' must contain a non-empty value" in refused({"a": value}).message
    assert "type 'Binary'" in refused({"a": {"DataType": "Binary", "BinaryValue": b""}}).message


def test_values_of_two_types_and_lists() -> None:
    refused({"a": {"DataType": "String", "StringValue": "v", "BinaryValue": b"v"}})
    for name in ("StringListValues", "BinaryListValues"):
        error = refused({"a": {"DataType": "String", "StringValue": "v", name: ["x"]}})
        assert error.kind.shape == "UnsupportedOperation"


def test_eleven_attributes() -> None:
    attributes = {f"a{number}": text("v") for number in range(11)}
    assert refused(attributes).message == "Number of message attributes [11] exceeds the allowed maximum [10]."
    attributes.popitem()
    assert len(validation.message_attributes(attributes)) == 10


@pytest.mark.parametrize("number", ["0", "-1", "+1", "1.", ".5", "1e126", "1E-128", "9" * 38, "0" * 50 + "1", "100e-3"])
def test_numbers(number: str) -> None:
    validation.message_attributes({"n": text(number, "Number")})


@pytest.mark.parametrize(
    "number",
    ["", " ", "x", "1x", "1 ", "0x10", "1_0", "٣", "NaN", "Infinity", "1e127", "1e-129", "1" * 39, "--1", ".", "e5"],
)
def test_what_is_no_number(number: str) -> None:
    refused({"n": text(number, "Number")})


@pytest.mark.parametrize("number", ["1e99999999999", "9" * 5000, "1\n"])
def test_numbers_out_of_bounds(number: str) -> None:
    refused({"n": text(number, "Number")})


def test_invalid_characters_in_a_value() -> None:
    assert "'a'" in refused({"a": text("\x00")}).message


def test_the_trace_header_is_the_one_system_attribute() -> None:
    assert validation.trace_header({"AWSTraceHeader": text("Root=1")}) == "Root=1"
    assert validation.trace_header({}) is None
    for attributes in (
        {"SenderId": text("x")},
        {"AWSTraceHeader": text("")},
        {"AWSTraceHeader": text("1", "Number")},
        {"AWSTraceHeader": {"DataType": "Binary", "BinaryValue": b"x"}},
    ):
        with pytest.raises(SqsError):
            validation.trace_header(attributes)


# --- digests -----------------------------------------------------------------------------------------------


def test_the_digest_of_attributes_is_over_names_types_and_values_in_order() -> None:
    expected = plain_md5(
        b"\x00\x00\x00\x01a\x00\x00\x00\x06String\x01\x00\x00\x00\x02\xc3\xa9"
        b"\x00\x00\x00\x01b\x00\x00\x00\x0aBinary.png\x02\x00\x00\x00\x01\xff"
    ).digest()
    attributes: list[md5.Attribute] = [("b", "Binary.png", b"\xff"), ("a", "String", "é")]
    assert md5.of_attributes(attributes) == expected
    assert md5.of_body("é".encode()) == plain_md5("é".encode()).digest()


# --- numbers and identifiers -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "value", "message"),
    [
        (
            validation.max_number_of_messages,
            11,
            "Value 11 for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided.",
        ),
        (
            validation.max_number_of_messages,
            0,
            "Value 0 for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided.",
        ),
        (
            validation.wait_time_seconds,
            21,
            "Value 21 for parameter WaitTimeSeconds is invalid. Reason: Must be >= 0 and <= 20, if provided.",
        ),
        (
            validation.visibility_timeout,
            43201,
            "Value 43201 for parameter VisibilityTimeout is invalid. Reason: Must be between 0 and 43200, if provided.",
        ),
    ],
)
def test_texts_of_ranges(check: Any, value: int, message: str) -> None:
    with pytest.raises(SqsError) as caught:
        check(value)
    assert caught.value.message == message


def test_ends_of_ranges() -> None:
    assert validation.max_number_of_messages(None) == 1
    assert [validation.max_number_of_messages(value) for value in (1, 10)] == [1, 10]
    for value in (None, 0, 20):
        validation.wait_time_seconds(value)
    for value in (None, 0, 43_200):
        validation.visibility_timeout(value)


def test_delays() -> None:
    assert validation.delay_seconds(None, 900, False) is None
    assert validation.delay_seconds(0, 900, False) == 0
    assert validation.delay_seconds(900, 900, False) == 900
    assert validation.delay_seconds(0, 900, True) is None
    for value, fifo in ((901, False), (-1, False), (1, True)):
        with pytest.raises(SqsError):
            validation.delay_seconds(value, 900, fifo)


@pytest.mark.parametrize("check", [validation.group_id, validation.deduplication_id, validation.attempt_id])
def test_identifiers(check: Any) -> None:
    for value in ("a", "x" * 128, "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"):
        check(value)
    for value in ("", "x" * 129, "a b", "é", "a\n", "\x7f"):
        with pytest.raises(SqsError, match="can only include alphanumeric and punctuation characters"):
            check(value)


def test_queue_names() -> None:
    for name in ("a", "x" * 80, "a-B_9"):
        validation.check_new_queue_name(name, False)
        assert validation.is_queue_name(name)
    for name in ("a.fifo", "x" * 75 + ".fifo"):
        validation.check_new_queue_name(name, True)
        assert validation.is_queue_name(name)
    for name, fifo in (("a.fifo", False), ("a", True), (".fifo", True), ("x" * 81, False), ("x" * 76 + ".fifo", True)):
        with pytest.raises(SqsError):
            validation.check_new_queue_name(name, fifo)
    for name in ("", "a b", "a\n", "é", "x" * 81, "a.b"):
        assert not validation.is_queue_name(name)


# --- payloads ----------------------------------------------------------------------------------------------


def test_payloads_come_back_as_they_were() -> None:
    stored = Payload(
        payload.FORMAT,
        "body é\r\n",
        b"\x01" * 16,
        "sender",
        (("a", "String", "x"), ("b", "Binary", b"\xff")),
        b"\x02" * 16,
        "dedup",
        "Root=1",
    )
    assert payload.decode(payload.encode(stored)) == stored


def test_payloads_without_the_later_fields_can_be_read() -> None:
    old = msgspec.msgpack.encode([1, "body", b"\x01" * 16, "sender"])
    assert payload.decode(old) == Payload(1, "body", b"\x01" * 16, "sender")

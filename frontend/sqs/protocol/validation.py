"""Validation of single values of messages.  Functions raise SQS's errors, or return the value to be stored."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Any

from frontend.sqs.protocol import limits
from frontend.sqs.protocol.errors import (
    INVALID_MESSAGE_CONTENTS,
    INVALID_PARAMETER_VALUE,
    UNSUPPORTED_OPERATION,
    SqsError,
    invalid_value,
)
from frontend.sqs.protocol.md5 import Attribute

_WITHOUT_CONTROLS = bytes(code if code >= 0x20 or code in b"\t\n\r" else 0xFF for code in range(0x100))
"""Translation of the invalid control characters to a byte that UTF-8 does not have.  A text without any is returned
as it is, in half the time of deleting them."""
_NONCHARACTERS = (b"\xef\xbf\xbe", b"\xef\xbf\xbf")
_ID = re.compile(r"[!-~]{1,128}\Z")
_BATCH_ID = re.compile(r"[A-Za-z0-9_-]{1,80}\Z")
_TYPE = re.compile(r"(String|Number|Binary)(\..+)?\Z", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,6})?\Z", re.ASCII)
_QUEUE_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}\Z")
_FIFO_NAME = re.compile(r"[A-Za-z0-9_-]{1,75}\.fifo\Z")
TRACE_HEADER = "AWSTraceHeader"


# --- queue names -------------------------------------------------------------------------------------------


def is_queue_name(name: str) -> bool:
    """True if a queue can have this name."""
    return _QUEUE_NAME.match(name) is not None or _FIFO_NAME.match(name) is not None


def check_new_queue_name(name: str, fifo: bool) -> None:
    if fifo and not _FIFO_NAME.match(name):
        raise SqsError(
            INVALID_PARAMETER_VALUE,
            "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, "
            "must end with .fifo suffix and be 1 to 80 in length.",
        )
    if not fifo and not _QUEUE_NAME.match(name):
        raise SqsError(
            INVALID_PARAMETER_VALUE,
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length",
        )


# --- numbers -----------------------------------------------------------------------------------------------


def in_range(value: int | None, name: str, minimum: int, maximum: int, reason: str) -> None:
    if value is not None and not minimum <= value <= maximum:
        raise invalid_value(value, name, reason)


def max_number_of_messages(value: int | None) -> int:
    maximum = limits.RECEIVE_MESSAGES_MAX
    in_range(value, "MaxNumberOfMessages", 1, maximum, f"Must be between 1 and {maximum}, if provided.")
    return 1 if value is None else value


def wait_time_seconds(value: int | None) -> None:
    maximum = limits.WAIT_SECONDS_MAX
    in_range(value, "WaitTimeSeconds", 0, maximum, f"Must be >= 0 and <= {maximum}, if provided.")


def visibility_timeout(value: int | None) -> None:
    maximum = limits.VISIBILITY_SECONDS_MAX
    in_range(value, "VisibilityTimeout", 0, maximum, f"Must be between 0 and {maximum}, if provided.")


def delay_seconds(value: int | None, maximum: int, fifo: bool) -> int | None:
    """Delay of a message; None: the queue's own delay applies."""
    if value is None:
        return None
    if fifo:
        if value:
            raise invalid_value(
                value, "DelaySeconds", "The request include parameter that is not valid for this queue type."
            )
        return None
    in_range(value, "DelaySeconds", 0, maximum, f"DelaySeconds must be >= 0 and <= {maximum}.")
    return value


# --- identifiers -------------------------------------------------------------------------------------------


def _check_id(value: str, name: str) -> None:
    if not _ID.match(value):
        raise invalid_value(
            value,
            name,
            f"{name} can only include alphanumeric and punctuation characters. 1 to 128 in length.",
            secret=True,
        )


def group_id(value: str) -> None:
    _check_id(value, "MessageGroupId")


def deduplication_id(value: str) -> None:
    _check_id(value, "MessageDeduplicationId")


def attempt_id(value: str) -> None:
    _check_id(value, "ReceiveRequestAttemptId")


def is_batch_id(value: str) -> bool:
    return _BATCH_ID.match(value) is not None


# --- bodies and attributes ---------------------------------------------------------------------------------


def has_invalid_characters(text: bytes) -> bool:
    """True if UTF-8 text has a character outside #x9 #xA #xD #x20-#xD7FF #xE000-#xFFFD #x10000-#x10FFFF."""
    return text.translate(_WITHOUT_CONTROLS) != text or (
        not text.isascii() and (_NONCHARACTERS[0] in text or _NONCHARACTERS[1] in text)
    )


def check_body(body: bytes) -> None:
    if has_invalid_characters(body):
        raise SqsError(INVALID_MESSAGE_CONTENTS)


def too_long(maximum: int, in_batch: bool = False) -> SqsError:
    how = "cannot be validated" if in_batch else "are invalid"
    return SqsError(
        INVALID_PARAMETER_VALUE,
        f"One or more parameters {how}. Reason: Message must be shorter than {maximum} bytes.",
    )


def size_of(attributes: tuple[Attribute, ...]) -> int:
    """Bytes that attributes count towards a message's length."""
    return sum(
        len(name.encode()) + len(type_.encode()) + (len(value) if isinstance(value, bytes) else len(value.encode()))
        for name, type_, value in attributes
    )


def message_attributes(given: dict[str, dict[str, Any]]) -> tuple[Attribute, ...]:
    if len(given) > limits.MESSAGE_ATTRIBUTES_MAX:
        raise SqsError(
            INVALID_PARAMETER_VALUE,
            f"Number of message attributes [{len(given)}] exceeds the allowed maximum "
            f"[{limits.MESSAGE_ATTRIBUTES_MAX}].",
        )
    attributes = []
    for name, value in given.items():
        _check_attribute_name(name)
        attributes.append(_attribute(name, value))
    return tuple(attributes)


def trace_header(given: dict[str, dict[str, Any]]) -> str | None:
    """Parse the only system attribute that can be sent."""
    for name, value in given.items():
        if name != TRACE_HEADER:
            raise SqsError(
                INVALID_PARAMETER_VALUE,
                f"Message system attribute name '{name}' is invalid. The only name that can be sent is {TRACE_HEADER}.",
            )
        _, type_, text = _attribute(name, value, "Message system attribute")
        if type_ != "String" or isinstance(text, bytes):
            raise SqsError(
                INVALID_PARAMETER_VALUE, f"Message system attribute '{name}' must have the data type String."
            )
        return text
    return None


def _check_attribute_name(name: str) -> None:
    if not name:
        raise SqsError(INVALID_PARAMETER_VALUE, "The request must contain non-empty message attribute name.")
    reason = ""
    if len(name) > limits.MESSAGE_ATTRIBUTE_NAME_LENGTH_MAX:
        reason = f"it is longer than {limits.MESSAGE_ATTRIBUTE_NAME_LENGTH_MAX} characters"
    elif name[0] == "." or name[-1] == "." or ".." in name:
        reason = "it begins or ends with a period, or has periods in succession"
    elif name.lower().startswith(("aws.", "amazon.")):
        reason = "the prefixes AWS. and Amazon. are reserved"
    elif not all(letter.isalnum() or letter in "_-." for letter in name):
        reason = "it has other characters than letters, digits, underscores, hyphens and periods"
    if reason:
        raise SqsError(INVALID_PARAMETER_VALUE, f"Message (user) attribute name '{name[:300]}' is invalid: {reason}.")


def _attribute(name: str, value: dict[str, Any], what: str = "Message (user) attribute") -> Attribute:
    if value.get("StringListValues") or value.get("BinaryListValues"):
        raise SqsError(
            UNSUPPORTED_OPERATION, "Message attribute list values in SendMessage operation are not supported."
        )
    type_: str = value.get("DataType", "")
    match = _TYPE.match(type_)
    if not match or len(type_) > limits.MESSAGE_ATTRIBUTE_TYPE_LENGTH_MAX or has_invalid_characters(type_.encode()):
        raise SqsError(
            INVALID_PARAMETER_VALUE,
            f"The type of {what[0].lower()}{what[1:]} '{name}' is invalid. "
            "You must use only the following supported type prefixes: Binary, Number, String.",
        )
    kind = match[1]
    content: str | bytes | None = value.get("BinaryValue" if kind == "Binary" else "StringValue")
    if not content:
        raise SqsError(INVALID_PARAMETER_VALUE, f"{what} '{name}' must contain a non-empty value of type '{kind}'.")
    if value.get("StringValue" if kind == "Binary" else "BinaryValue"):
        raise SqsError(
            INVALID_PARAMETER_VALUE, f"{what} '{name}' has values of more than one type, of which only one can count."
        )
    if isinstance(content, str):
        if has_invalid_characters(content.encode()):
            raise SqsError(
                INVALID_PARAMETER_VALUE,
                f"Invalid binary character was found in the value of {what[0].lower()}{what[1:]} '{name}', "
                "the set of allowed characters is "
                "#x9 | #xA | #xD | [#x20-#xD7FF] | [#xE000-#xFFFD] | [#x10000-#x10FFFF]",
            )
        if kind == "Number":
            _check_number(name, content)
    return name, type_, content


def _check_number(name: str, text: str) -> None:
    number: Decimal | None = None
    if len(text) <= limits.MESSAGE_ATTRIBUTE_TYPE_LENGTH_MAX and _NUMBER.match(text):
        try:
            number = Decimal(text)
        except InvalidOperation:
            pass
    if number is None:
        raise SqsError(
            INVALID_PARAMETER_VALUE, f"Can't cast the value of message (user) attribute '{name}' to a number."
        )
    digits = "".join(map(str, number.as_tuple().digits)).strip("0")
    exponent = number.adjusted() if number else 0
    if (
        len(digits) > limits.NUMBER_DIGITS_MAX
        or not limits.NUMBER_EXPONENT_MIN <= exponent <= limits.NUMBER_EXPONENT_MAX
    ):
        raise SqsError(
            INVALID_PARAMETER_VALUE,
            f"Number attribute value of message (user) attribute '{name}' should have at most "
            f"{limits.NUMBER_DIGITS_MAX} digits and be in range "
            f"(-10**{limits.NUMBER_EXPONENT_MAX}..10**{limits.NUMBER_EXPONENT_MAX})",
        )

"""Limits of a body's content, checked in one pass before it is parsed.

Parsers create an object per string, list and map, which takes up to 60 times the memory of ``[],`` or ``"a",``,
and one wide character makes a text take four bytes per character.  So a long body is counted first: its
strings, its brackets and commas outside of strings, and its length without escapes.  C routines over the whole
body do all of this, in milliseconds for 8 MiB, with at most two copies.
"""

from __future__ import annotations

from collections.abc import Iterator

from frontend.sqs.protocol import limits
from frontend.sqs.protocol.errors import BATCH_REQUEST_TOO_LONG, REQUEST_TOO_LARGE, SERIALIZATION, SqsError
from frontend.sqs.protocol.validation import too_long

SMALL_BYTES = 16 * 1024
"""Maximum length of a body that is parsed without a count, because its cost is small."""
STRINGS_MAX = 5_000
"""Maximum number of strings in a JSON text, including names of members.  A batch of 10 with all its attributes
has fewer than 1,000."""
STRUCTURE_MAX = 20_000
"""Maximum number of opening brackets and commas in a JSON text, outside of strings."""
CONTENT_BYTES_MAX = limits.MESSAGE_BYTES_MAX * 4 // 3 + 256 * 1024
"""Maximum length of a request without escapes, in bytes: a whole batch as base64, and its other members."""


def check_json(action: str, text: bytes) -> None:
    """Check that a JSON text may be parsed as the input of this action; it may still be invalid.

    Raises SerializationException, BatchRequestTooLong, InvalidParameterValue and RequestEntityTooLarge.
    """
    content_bytes = check_structure(text)
    if content_bytes > CONTENT_BYTES_MAX:
        raise too_much_content(action)


def check_structure(text: bytes) -> int:
    """Check that a JSON text has few enough strings, lists and maps to be parsed.  Raises
    SerializationException.

    Returns its minimum length without escapes, in bytes.  The counts are exact for the valid part of the text,
    up to its first error; a parser stops there.
    """
    content_bytes = len(text)
    if b"\\" in text:
        # with escaped backslashes removed, each remaining backslash belongs to the next character
        unpaired = text.replace(rb"\\", b"")
        pairs = (len(text) - len(unpaired)) // 2
        points = unpaired.count(rb"\u")
        content_bytes -= pairs + 5 * points + (unpaired.count(b"\\") - points)
        text = unpaired.replace(rb"\"", b"")
        del unpaired
    outside = b"".join(_outside_strings(text))
    if outside.count(b"[") + outside.count(b"{") + outside.count(b",") > STRUCTURE_MAX:
        raise _too_many("members and elements")
    return content_bytes


def _outside_strings(text: bytes) -> Iterator[bytes]:
    """Parts of a JSON text without escaped quotes between its strings.  Raises SerializationException."""
    start = 0
    for _ in range(STRINGS_MAX + 1):
        first = text.find(b'"', start)
        last = text.find(b'"', first + 1) if first >= 0 else -1
        if last < 0:
            yield text[start:] if first < 0 else text[start:first]
            return
        yield text[start:first]
        start = last + 1
    raise _too_many("strings")


def too_much_content(action: str) -> SqsError:
    """Error for a request whose content is longer than any valid one of this action."""
    if action == "SendMessage":
        return too_long(limits.MESSAGE_BYTES_MAX)
    if action == "SendMessageBatch":
        return SqsError(
            BATCH_REQUEST_TOO_LONG, f"Batch requests cannot be longer than {limits.MESSAGE_BYTES_MAX} bytes."
        )
    return SqsError(REQUEST_TOO_LARGE)


def _too_many(what: str) -> SqsError:
    return SqsError(SERIALIZATION, f"The request has more {what} than any valid one.")

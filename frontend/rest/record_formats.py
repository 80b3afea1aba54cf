"""Formats of records over REST: the records of a request's body, and records as JSON shows them."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

import msgspec
from pydantic import ValidationError

from frontend.rest.problems import invalid
from frontend.rest.stream_models import RecordGiven, RecordsGiven
from frontend.sqs.protocol import bounds
from frontend.sqs.protocol.errors import SqsError
from frontend.streams.reading import RecordFilter
from frontend.streams.records import HEADERS_MAX, StreamRecord

JSON = "application/json"
PART_LENGTH = 65_536
"""Characters that are encoded together."""


def parse_records(content_type: str, body: bytes, key: str | None) -> list[RecordGiven]:
    """Parse the records in a request's body; ``key`` is that of the query.  Raises :class:`Problem`."""
    if content_type.partition(";")[0].strip().lower() != JSON:
        return [RecordGiven.model_validate({"value_base64": b64encode(body).decode(), "key": key})]
    if key is not None:
        raise invalid("With Content-Type application/json the key of a record is its member `key`.")
    if len(body) > bounds.SMALL_BYTES:
        try:
            bounds.check_structure(body)
        except SqsError:
            raise invalid("There are too many texts, lists or members in one request: send fewer records.") from None
    try:
        members = msgspec.json.decode(body)  # orjson would reserve 12 times the length of the body
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"The body is not JSON: {error}.") from None
    try:
        if isinstance(members, dict) and "records" in members:
            return RecordsGiven.model_validate(members).records
        return [RecordGiven.model_validate(members)]
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"{part}: " for part in first["loc"])
        raise invalid(
            'With Content-Type application/json the body is a record such as {"key": "a", "value": "b"}, or '
            f'{{"records": [...]}}: {place}{first["msg"]}. With another Content-Type, such as text/plain, the body '
            "is the record's value."
        ) from None


def stream_record(place: int, given: RecordGiven, now_ms: int) -> StreamRecord:
    """Build the record at a place of the request, whose time is by default ``now_ms``.  Raises :class:`Problem`."""
    if len(given.headers) > HEADERS_MAX:
        raise invalid(f"Record {place} has {len(given.headers)} headers; it can have {HEADERS_MAX}.")
    headers = (
        [(name, None if value is None else _encoded(value)) for name, value in given.headers.items()]
        if isinstance(given.headers, dict)
        else [(one.name, _bytes(place, "value", one.value, one.value_base64)) for one in given.headers]
    )
    return StreamRecord(
        _bytes(place, "value", given.value, given.value_base64),
        _bytes(place, "key", given.key, given.key_base64),
        headers,
        now_ms if given.timestamp is None else round(given.timestamp * 1000),
    )


def _bytes(place: int, member: str, text: str | None, encoded: str | None) -> bytes | None:
    if encoded is None:
        return None if text is None else _encoded(text)
    if text is not None:
        raise invalid(f"Record {place} has both `{member}` and `{member}_base64`; give one of them.")
    try:
        return b64decode(encoded, validate=True)
    except ValueError:
        raise invalid(f"The member `{member}_base64` of record {place} is not base64.") from None


def _encoded(text: str) -> bytes:
    """Encode a text as UTF-8, in parts: Python reserves four bytes for each character if one of them is wide."""
    if len(text) <= PART_LENGTH or text.isascii():
        return text.encode()
    return b"".join(text[start : start + PART_LENGTH].encode() for start in range(0, len(text), PART_LENGTH))


def record_filter(key: str | None, header: str) -> RecordFilter:
    """Build the filter for a key, and for a header given as ``NAME`` or ``NAME=VALUE``."""
    name, has_value, value = header.partition("=")
    return RecordFilter(
        None if key is None else key.encode(), name or None, value.encode() if has_value and name else None
    )


def shown_record(number: int, record: StreamRecord) -> dict[str, Any]:
    """Members of a record of a partition, as :class:`RecordShown` describes them."""
    shown: dict[str, Any] = {
        "partition": number,
        "offset": record.offset,
        "timestamp": record.timestamp_ms / 1000 if record.timestamp_ms >= 0 else None,
    }
    if record.key is not None:
        _put(shown, "key", record.key)
    _put(shown, "value", record.value)
    shown["headers"] = [_put({"name": name}, "value", value) for name, value in record.headers]
    return shown


def _put(shown: dict[str, Any], member: str, content: bytes | None) -> dict[str, Any]:
    """Set a member to a text, or another one to base64."""
    try:
        shown[member] = None if content is None else content.decode()
    except UnicodeDecodeError:
        assert content is not None
        shown[f"{member}_base64"] = b64encode(content).decode()
    return shown

"""Fuzz targets of the REST interface of streams: bodies with records, and positions."""

from __future__ import annotations

import json
from typing import Any

import orjson

from frontend.rest.problems import Problem
from frontend.rest.record_formats import parse_records, record_filter, shown_record, stream_record
from frontend.rest.stream_access import read_position, write_position
from frontend.settings import FrontendSettings
from frontend.streams.appends import split_into_batches
from frontend.streams.records import build_batch, read_records
from metadata_service.streams import PARTITIONS_MAX, NewStream
from tests.fuzz.grammar import Draws
from tests.fuzz.kafka_targets import promise
from tests.fuzz.large import JSON_UNITS, TEXT_UNITS, repeated

NOW_MS = 1_800_000_000_000
BATCH_BYTES_MAX = 1_048_588
"""Length of a batch by default (``max.message.bytes``)."""
SMALL_BYTES = 16 * 1024
BODY_BYTES_MAX = FrontendSettings().max_body_bytes
PROBLEM_LENGTH_MAX = 2_000
JSON_TYPES = ("application/json", "application/json", "application/json", "Application/JSON; charset=utf-8")
OTHER_TYPES = ("", "text/plain", "application/jsonp", "application/octet-stream")
MEMBERS = ("value", "value_base64", "key", "key_base64", "headers", "partition", "timestamp", "offset", "records")

RecordsBody = tuple[str, bytes, str | None]
"""Content type, body, and key of the query."""


# --- records -----------------------------------------------------------------------------------------------


def _header(draws: Draws) -> Any:
    kind = draws.below(4)
    if kind == 0:
        return {"name": draws.text(), draws.one(("value", "value_base64", "nonsense")): draws.text()}
    return {"name": draws.text(), "value": draws.text()} if kind == 1 else draws.anything()


def _record(draws: Draws) -> Any:
    if draws.chance(5):
        return draws.anything()
    record: dict[str, Any] = {}
    for member in ("value", "key"):
        if draws.chance(60):
            record[member] = draws.text()
        elif draws.chance(50):
            record[f"{member}_base64"] = draws.one(("", "QQ==", "QUI", "=", draws.text()))
    if draws.chance(40):
        record["headers"] = (
            {draws.text(): draws.text() for _ in range(draws.below(4))}
            if draws.chance(50)
            else [_header(draws) for _ in range(draws.below(4))]
        )
    if draws.chance(20):
        record["partition"] = draws.one((0, 1, -1, draws.integer(), "1", 1.5))
    if draws.chance(20):
        record["timestamp"] = draws.one((0, 1.5e9, 1e11, 1e12, -1, draws.integer(), "now"))
    if draws.chance(10):
        record[draws.one(MEMBERS)] = draws.anything()
    return record


def make_records(draws: Draws) -> RecordsBody:
    """A body with a record or some, mostly as JSON."""
    key = draws.text() if draws.chance(10) else None
    if draws.chance(10):
        return draws.one(OTHER_TYPES), draws.text().encode("utf-8", "surrogatepass"), key
    records = [_record(draws) for _ in range(draws.one((0, 1, 1, 2, 5)))]
    body = json.dumps({"records": records} if draws.chance(70) or not records else records[0]).encode()
    return draws.one(JSON_TYPES), draws.broken(body) if draws.chance(15) else body, key


def large_records(draws: Draws, length: int) -> RecordsBody:
    """A body with many records or headers, or a large member; at most as long as the door admits."""
    length = min(length, BODY_BYTES_MAX)
    kind = draws.below(5)
    if kind == 0:
        return draws.one(OTHER_TYPES), repeated(draws.one((b"a", b"\xff", b"\0")), length), None
    if kind == 1:
        one = draws.one((b"{}", b'{"value":"a"}', b'{"headers":{"":""}}', b'{"headers":[{"name":""}]}', b"0"))
        filling = b'{"records":[%b]}' % b",".join([one] * (length // (len(one) + 1)))
    elif kind == 2:
        one = draws.one((b'{"name":""}', b'{"name":"a","value_base64":"QQ=="}', b"{}", b"0"))
        filling = b'{"headers":[%b]}' % b",".join([one] * (length // (len(one) + 1)))
    elif kind == 3:
        member = draws.one(("value", "key", "value_base64", "key_base64", "headers", "nonsense")).encode()
        filling = b'{"%b":"%b"}' % (member, repeated(draws.one(TEXT_UNITS), length))
    else:
        member = draws.one(("records", "headers", "value", "nonsense")).encode()
        filling = b'{"%b":[%b]}' % (member, repeated(draws.one(JSON_UNITS), length)[:-1])
    return "application/json", filling, None


def records_size(given: RecordsBody) -> int:
    return len(given[1])


def feed_records(given: RecordsBody) -> bool:
    """Check that accepted records can be stored, and are read and shown as they were sent."""
    content_type, body, key = given
    try:
        parsed = parse_records(content_type, body, key)
        records = [stream_record(place, one, NOW_MS) for place, one in enumerate(parsed)]
    except Problem as problem:
        _check_problem(problem)
        return False
    parsed.clear()
    if len(body) > SMALL_BYTES:  # only one call of the service is measured: a read of the records is another
        fitting = [record for record in records if len(record.key or b"") + len(record.value or b"") <= BATCH_BYTES_MAX]
        return all(build_batch(group) for group in split_into_batches(fitting, BATCH_BYTES_MAX) if group)
    chosen = record_filter(records[0].key.decode(errors="replace") if records[0].key else None, "")
    for group in split_into_batches(records, BATCH_BYTES_MAX):
        batch = build_batch(group)
        for sent, read in zip(group, read_records(batch, len(batch)), strict=True):
            promise((sent.key, sent.value) == (read.key, read.value), "another record is read")
            promise(list(sent.headers) == list(read.headers), "other headers are read")
            promise(sent.timestamp_ms == read.timestamp_ms, "another time is read")
            shown = orjson.loads(orjson.dumps(shown_record(0, read)))
            promise(("value_base64" in shown) != ("value" in shown), "a record is shown without its value")
            chosen.accepts(read)
    return True


def _check_problem(problem: Problem) -> None:
    promise(400 <= problem.status < 500, "an error that does not lie with the caller")
    promise(len(problem.detail) < PROBLEM_LENGTH_MAX, f"a text of {len(problem.detail)} characters")
    problem.detail.encode()


# --- positions ---------------------------------------------------------------------------------------------


STREAM = NewStream("000000000000", "orders", {}, {}, NOW_MS, (0,) * PARTITIONS_MAX).made(1, range(PARTITIONS_MAX))


def make_position(draws: Draws) -> str:
    """A position, or what is nearly one."""
    parts = [
        f"{draws.one((0, 1, 999, 1000, draws.integer()))}:{draws.one((0, 2**63 - 1, 10**18, draws.integer()))}"
        for _ in range(draws.below(5))
    ]
    text = draws.one((",", ",", ",", ";", ", ")).join(parts)
    if draws.chance(10):
        return draws.text()
    return draws.broken(text.encode()).decode("latin-1") if draws.chance(20) else text


def large_position(draws: Draws, length: int) -> str:
    """A long text that begins as positions do."""
    unit = draws.one(("0:1,", "1:", "0:0,1:", ",", "9" * 100, "0:1,,"))
    return (unit * (length // len(unit)))[:-1]


def feed_position(text: str) -> bool:
    """Check that a position that is accepted is written as one that means the same."""
    try:
        offsets = read_position("after", text, STREAM)
    except Problem as problem:
        _check_problem(problem)
        return False
    promise(all(0 <= number < STREAM.partitions and offset >= 0 for number, offset in offsets.items()), "out of range")
    promise(read_position("after", write_position(offsets), STREAM) == offsets, "another position")
    return True

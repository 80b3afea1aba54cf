"""Files of streams: ``holdfast stream export`` and ``holdfast stream import``.

The format is JSON lines.  The first line is the stream, then come the positions of consumer groups, then the records,
each partition's in their order, and at last the end; a file without it is incomplete.  Unknown members are refused.

An import begins each partition at offset 0, so that the n-th record of a partition in the file has offset n: this is
how an interrupted import finds where to go on, and how positions of groups are carried over.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.commandline.base import Parsed, pages
from holdfast.commandline.client import NOT_FOUND, UNREACHABLE, CommandFailed, persistently
from holdfast.commandline.files import complete_file
from holdfast.commandline.progress import Progress
from holdfast.migrate.file_format import opened

if TYPE_CHECKING:
    from holdfast.commandline.client import RestClient

VERSION: Final = 1
LINE_BYTES_MAX: Final = 16 << 20
"""Maximum length of a line: a record of some MiB, each byte of it escaped."""
_PAGE: Final = 1_000
_PROGRESS_RECORDS: Final = 10_000
_REQUEST_RECORDS: Final = 500
_REQUEST_BYTES: Final = 2 << 20
"""A request to store records ends when their lines are longer than this."""
_RECORD_MEMBERS: Final = ("key", "key_base64", "value", "value_base64", "headers", "timestamp", "partition")


class StreamDefinitionLine(msgspec.Struct, tag="stream", tag_field="type", forbid_unknown_fields=True):
    """The first line."""

    version: int
    name: str
    partitions: int
    settings: dict[str, str]
    """Settings that differ from their defaults, by Kafka's names."""
    exported: str
    """Time of the export."""


class GroupPositionLine(msgspec.Struct, tag="group", tag_field="type", forbid_unknown_fields=True):
    """Committed offsets of a consumer group, as they are at the source."""

    name: str
    offsets: dict[int, int]
    """Offset of the next record to be consumed, by partition."""


class StreamRecordLine(
    msgspec.Struct, tag="record", tag_field="type", forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """A record, with the members that it has over REST."""

    partition: int
    offset: int
    """Offset at the source."""
    timestamp: float | None = None
    key: str | None = None
    key_base64: str | None = None
    value: str | None = None
    value_base64: str | None = None
    headers: list[dict[str, str | None]] = []


class StreamEndLine(msgspec.Struct, tag="end", tag_field="type", forbid_unknown_fields=True):
    """The last line."""

    records: int


StreamLine = StreamDefinitionLine | GroupPositionLine | StreamRecordLine | StreamEndLine
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(StreamLine).decode


# --- export ------------------------------------------------------------------------------------------------


def export_stream(client: RestClient, parsed: Parsed) -> None:
    """Run ``holdfast stream export``.  Raises :class:`CommandFailed`."""
    account: dict[str, Any] = {"account": parsed.account}
    found = client.call("GET", "streams", parsed.name, query=account)
    unknown = [one["partition"] for one in found["partitions"] if one["end_offset"] is None]
    if unknown:
        raise CommandFailed(f"partition {unknown[0]} of {parsed.name} cannot be read now", UNREACHABLE)
    heading = StreamDefinitionLine(
        VERSION,
        parsed.name,
        len(found["partitions"]),
        found["settings"],
        f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
    )
    progress = Progress()
    progress.step(f"Writing stream {parsed.name}")
    groups = [] if parsed.without_groups else list(_group_positions(client, parsed.name, account))
    records = missing = 0
    with complete_file(parsed.file) as output:
        for line in (heading, *groups):
            output.write(_encode(line) + b"\n")
        for one in found["partitions"]:
            before = records
            for record in _records(client, parsed.name, account, one):
                output.write(_encode(record) + b"\n")
                records += 1
                if not records % _PROGRESS_RECORDS:
                    progress.within(f"{records:,} records")
            missing += one["end_offset"] - one["first_offset"] - (records - before)
        output.write(_encode(StreamEndLine(records)) + b"\n")
    progress.done()
    text = f"{records} records of stream {parsed.name} and positions of {len(groups)} consumer groups are written."
    if missing:
        text += f"  {missing} more were deleted meanwhile by the retention, or are lost."
    counts = {"stream": parsed.name, "records": records, "missing": missing, "groups": len(groups)}
    print(_encode(counts).decode() if parsed.json else text, file=sys.stderr)


def _group_positions(client: RestClient, stream: str, account: dict[str, Any]) -> Iterator[GroupPositionLine]:
    for group in list(pages(client, ("consumer-groups",), "groups", account)):
        described = persistently(lambda name=group["name"]: client.call("GET", "consumer-groups", name, query=account))  # type: ignore[misc]
        offsets = {one["partition"]: one["offset"] for one in described["positions"] if one["stream"] == stream}
        if offsets:
            yield GroupPositionLine(group["name"], offsets)


def _records(
    client: RestClient, stream: str, account: dict[str, Any], partition: dict[str, Any]
) -> Iterator[StreamRecordLine]:
    """Read a partition from its first offset to the end that it had when the export began."""
    number, end = partition["partition"], partition["end_offset"]
    position, at = f"{number}:{partition['first_offset']}", partition["first_offset"]
    while at < end:
        query = {**account, "partition": number, "after": position, "limit": _PAGE}
        page = persistently(lambda query=query: client.call("GET", "streams", stream, "records", query=query))  # type: ignore[misc]
        if page is None:
            return
        for record in page["records"]:
            if record["offset"] < end:
                yield StreamRecordLine(**record)
        position = page["next"]
        at = int(position.partition(":")[2])


# --- import ------------------------------------------------------------------------------------------------


class _CheckedFile(msgspec.Struct):
    """A file whose lines are all in order."""

    definition: StreamDefinitionLine
    groups: list[GroupPositionLine]
    counts: list[int]
    """Records of each partition."""
    positions: dict[str, dict[int, int]]
    """Positions of the groups by partition, as they are after the import."""


def import_stream(client: RestClient, parsed: Parsed) -> None:
    """Run ``holdfast stream import``.  Raises :class:`CommandFailed`."""
    checked = _check(parsed.file)
    name = parsed.name or checked.definition.name
    account: dict[str, Any] = {"account": parsed.account}
    stored = _prepare(client, name, account, checked, goes_on=parsed.goes_on)
    progress = Progress()
    progress.step(f"Importing {sum(checked.counts):,} records into stream {name}")
    done = sum(stored)
    for request in _requests(parsed.file, stored):
        answer = client.call("POST", "streams", name, "records", query=account, body={"records": request})
        failed = [one for one in answer["records"] if one.get("offset") is None]
        done += len(request) - len(failed)
        if failed:
            raise CommandFailed(f"{done} records are stored; then: {failed[0]['detail']}  Repeat with --continue.")
        progress.within(f"{done:,} records")
    progress.done()
    for number, end in enumerate(_ends(client, name, account)):
        if end != checked.counts[number]:
            raise CommandFailed(
                f"partition {number} of stream {name} ends at {end}, and the file has {checked.counts[number]} records "
                "of it: others have stored records meanwhile, or a request was stored twice; delete the stream, and "
                "import it again"
            )
    for group, offsets in checked.positions.items():
        committed = [{"partition": number, "offset": offset} for number, offset in offsets.items()]
        body = {"stream": name, "offsets": committed}
        client.call("POST", "consumer-groups", group, "commit", query=account, body=body)
    text = (
        f"{sum(checked.counts)} records are in stream {name}, and positions of {len(checked.positions)} consumer groups"
    )
    counts = {"stream": name, "records": sum(checked.counts), "groups": len(checked.positions)}
    print(_encode(counts).decode() if parsed.json else f"{text} are set.")


def _prepare(
    client: RestClient, name: str, account: dict[str, Any], checked: _CheckedFile, *, goes_on: bool
) -> list[int]:
    """Create the stream unless it exists; returns the number of records that each partition has already."""
    wanted = checked.definition
    try:
        ends = _ends(client, name, account)
    except CommandFailed as error:
        if error.code != NOT_FOUND:
            raise
        body = {"name": name, "partitions": wanted.partitions, "settings": wanted.settings}
        client.call("POST", "streams", query=account, body=body)
        return [0] * wanted.partitions
    if not goes_on:
        raise CommandFailed(
            f"stream {name} exists already: give the import another name with --as, or continue an interrupted import "
            "with --continue"
        )
    if len(ends) != wanted.partitions or any(end > count for end, count in zip(ends, checked.counts, strict=True)):
        raise CommandFailed(f"stream {name} is not one that an import of this file has begun: it has other records")
    return ends


def _ends(client: RestClient, name: str, account: dict[str, Any]) -> list[int]:
    found = persistently(lambda: client.call("GET", "streams", name, query=account))
    ends = [one["end_offset"] for one in found["partitions"]]
    if None in ends:
        raise CommandFailed(f"partition {ends.index(None)} of {name} cannot be read now: try again", UNREACHABLE)
    return ends


def _requests(path: Path, stored: list[int]) -> Iterator[list[dict[str, Any]]]:
    """Records of the file in requests, without those that are stored already."""
    left, size = list(stored), 0
    request: list[dict[str, Any]] = []
    for text, line in _lines(path):
        if not isinstance(line, StreamRecordLine):
            continue
        if left[line.partition]:
            left[line.partition] -= 1
            continue
        if request and (len(request) == _REQUEST_RECORDS or size + len(text) > _REQUEST_BYTES):
            yield request
            request, size = [], 0
        found = msgspec.to_builtins(line)
        request.append({member: found[member] for member in _RECORD_MEMBERS if found.get(member) is not None})
        size += len(text)
    if request:
        yield request


def _check(path: Path) -> _CheckedFile:
    """Check each line of a file.  Raises :class:`CommandFailed`."""
    definition: StreamDefinitionLine | None = None
    end: StreamEndLine | None = None
    groups: list[GroupPositionLine] = []
    counts: list[int] = []
    offsets: list[int] = []
    positions: dict[str, dict[int, int]] = {}
    for number, (_, line) in enumerate(_lines(path), 1):
        problem = ""
        if end is not None:
            problem = "there is a line behind the end"
        elif isinstance(line, StreamDefinitionLine):
            problem = _definition_problem(line, number)
            definition, counts, offsets = line, [0] * line.partitions, [-1] * line.partitions
        elif definition is None:
            problem = "the first line is not that of a stream"
        elif isinstance(line, GroupPositionLine):
            if any(counts) or not _are_partitions(line.offsets, definition):
                problem = "positions of a group stand before the records, and are of partitions of the stream"
            groups.append(line)
            positions[line.name] = dict.fromkeys(line.offsets, 0)
        elif isinstance(line, StreamRecordLine):
            if not _are_partitions([line.partition], definition) or line.offset <= offsets[line.partition]:
                problem = "its partition is not one of the stream's, or its offset does not follow the one before"
            else:
                counts[line.partition] += 1
                offsets[line.partition] = line.offset
                for group in groups:
                    if line.offset < group.offsets.get(line.partition, -1):
                        positions[group.name][line.partition] += 1
        else:
            end = line
            if line.records != sum(counts):
                problem = f"it says {line.records} records, and there are {sum(counts)}"
        if problem:
            raise CommandFailed(f"{path}, line {number}: {problem}")
    if definition is None or end is None:
        raise CommandFailed(f"{path} is incomplete: it has no line of the end")
    return _CheckedFile(definition, groups, counts, positions)


def _definition_problem(line: StreamDefinitionLine, number: int) -> str:
    if number > 1:
        return "the line of the stream is not the first one"
    if line.version != VERSION:
        return f"the file has version {line.version}; this release reads version {VERSION}"
    return "" if 1 <= line.partitions <= 100_000 else "a stream has at least one partition"


def _are_partitions(numbers: Iterable[int], definition: StreamDefinitionLine) -> bool:
    return all(0 <= number < definition.partitions for number in numbers)


def _lines(path: Path) -> Iterator[tuple[bytes, StreamLine]]:
    """Lines of a file with their content.  Raises :class:`CommandFailed` for a malformed one."""
    with opened(path) as file:
        number = 0
        while text := file.readline(LINE_BYTES_MAX + 1):
            number += 1
            if len(text) > LINE_BYTES_MAX:
                raise CommandFailed(f"{path}, line {number}: it is longer than {LINE_BYTES_MAX >> 20} MiB")
            try:
                if not text.endswith(b"\n"):
                    raise CommandFailed(f"{path}, line {number}: it is incomplete: a line ends with a line feed")
                line: StreamLine = _decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise CommandFailed(f"{path}, line {number}: {error}") from None
            yield text, line

"""``holdfast stream``: streams, their records, and consumer groups."""

from __future__ import annotations

import argparse
import base64
import io
import json
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.commandline.base import Group, Parsed, account_option, confirm, pages, print_result

if TYPE_CHECKING:
    from holdfast.commandline.client import RestClient

_WAIT_SECONDS: Final = 20
_TAIL_RECORDS: Final = 500
_PRODUCE_RECORDS: Final = 500
_READ_BYTES: Final = 256 * 1024


def _create(client: RestClient, parsed: Parsed) -> None:
    body = {"name": parsed.name, "partitions": parsed.partitions, "settings": dict(parsed.set)}
    made = client.call("POST", "streams", query={"account": parsed.account}, body=body)
    print_result(parsed, made, lambda: f"Stream {parsed.name} is created, with {parsed.partitions} partitions.")


def _list(client: RestClient, parsed: Parsed) -> None:
    from holdfast.commandline.text_tables import moment, table

    found = list(pages(client, ("streams",), "streams", {"account": parsed.account, "prefix": parsed.prefix}))
    rows = [(one["name"], one["partitions"], moment(one["created"])) for one in found]
    print_result(
        parsed,
        {"streams": found},
        lambda: table(("STREAM", "PARTITIONS", "CREATED"), rows, nothing="There are no streams."),
    )


def _describe(client: RestClient, parsed: Parsed) -> None:
    found = client.call("GET", "streams", parsed.name, query={"account": parsed.account})
    print_result(parsed, found, lambda: _facts(found))


def _facts(stream: dict[str, Any]) -> str:
    from holdfast.commandline.text_tables import facts, moment, table

    about = {"stream": stream["name"], "arn": stream["arn"], "created": moment(stream["created"])}
    rows = [
        (one["partition"], one["first_offset"], one["end_offset"], one["stored_bytes"]) for one in stream["partitions"]
    ]
    partitions = table(("PARTITION", "FIRST", "END", "BYTES"), rows, nothing="")
    return f"{facts({**about, **stream['settings']})}\n\n{partitions}"


def _set(client: RestClient, parsed: Parsed) -> None:
    settings: dict[str, str | None] = {**dict(parsed.set), **dict.fromkeys(parsed.unset)}
    body = {"partitions": parsed.partitions, "settings": settings}
    changed = client.call("PATCH", "streams", parsed.name, query={"account": parsed.account}, body=body)
    print_result(parsed, changed, lambda: _facts(changed))


def _delete(client: RestClient, parsed: Parsed) -> None:
    confirm(parsed, f"Delete stream {parsed.name} with all its records?  This cannot be undone.")
    client.call("DELETE", "streams", parsed.name, query={"account": parsed.account})
    print_result(parsed, {"deleted": parsed.name}, lambda: f"Stream {parsed.name} is deleted.")


# --- records -------------------------------------------------------------------------------------------------


def _produce(client: RestClient, parsed: Parsed) -> None:
    from holdfast.commandline.client import CommandFailed

    stored = 0
    for lines in _lines():
        for first in range(0, len(lines), _PRODUCE_RECORDS):
            records = [_record(line, parsed) for line in lines[first : first + _PRODUCE_RECORDS]]
            answer = client.call(
                "POST", "streams", parsed.name, "records", query={"account": parsed.account}, body={"records": records}
            )
            failed = [one for one in answer["records"] if one.get("offset") is None]
            stored += len(records) - len(failed)
            if failed:
                raise CommandFailed(f"{stored} records were stored, and {len(failed)} were not: {failed[0]['detail']}")
    print_result(parsed, {"stored": stored}, lambda: f"{stored} records are stored.")


def _lines() -> Iterator[list[bytes]]:
    """Whole lines of standard input, as they arrive."""
    typed = sys.stdin.buffer
    assert isinstance(typed, io.BufferedReader)
    rest = b""
    while read := typed.read1(_READ_BYTES):
        *lines, rest = (rest + read).split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]


def _record(line: bytes, parsed: Parsed) -> dict[str, Any]:
    key: bytes | None = None if parsed.key is None else parsed.key.encode()
    if parsed.key_separator:
        before, found, after = line.partition(parsed.key_separator.encode())
        if found:
            key, line = before, after
    made: dict[str, Any] = {} if parsed.partition is None else {"partition": parsed.partition}
    for member, content in (("key", key), ("value", line)):
        if content is None:
            continue
        try:
            made[member] = content.decode()
        except UnicodeDecodeError:
            made[f"{member}_base64"] = base64.b64encode(content).decode()
    return made


def _tail(client: RestClient, parsed: Parsed) -> None:
    query: dict[str, str | int | None] = {
        "account": parsed.account,
        "partition": parsed.partition,
        "key": parsed.key,
        "header": parsed.header,
        **_beginning(client, parsed),
    }
    left: int | None = parsed.max
    while left is None or left > 0:
        query["limit"] = _TAIL_RECORDS if left is None else min(left, _TAIL_RECORDS)
        query["wait"] = 0 if parsed.no_wait else _WAIT_SECONDS
        page = client.call("GET", "streams", parsed.name, "records", query=query)
        if page is None:
            if parsed.no_wait:
                return
            continue
        for record in page["records"]:
            print(json.dumps(record) if parsed.json else _line(record))
        sys.stdout.flush()
        if parsed.group:
            body = {"stream": parsed.name, "position": page["next"]}
            client.call("POST", "consumer-groups", parsed.group, "commit", query={"account": parsed.account}, body=body)
        else:
            query = {**query, "offset": None, "timestamp": None, "after": page["next"]}
        left = None if left is None else left - len(page["records"])


def _beginning(client: RestClient, parsed: Parsed) -> dict[str, Any]:
    """Parameters of the first read."""
    if parsed.group:
        return {"group": parsed.group}
    if parsed.since is not None:
        return {"timestamp": parsed.since}
    if parsed.offset != "latest":
        return {"offset": parsed.offset}
    # The end is read once: records that arrive between two reads that wait are not missed.
    found = client.call("GET", "streams", parsed.name, query={"account": parsed.account})
    ends = [(one["partition"], one["end_offset"] or 0) for one in found["partitions"]]
    return {"after": ",".join(f"{number}:{end}" for number, end in ends)}


def _line(record: dict[str, Any]) -> str:
    from holdfast.commandline.text_tables import moment, shown

    key = _content(record, "key")
    parts = (f"{record['partition']}:{record['offset']}", moment(record["timestamp"]), key, _content(record, "value"))
    return "  ".join(map(shown, parts))


def _content(record: dict[str, Any], member: str) -> str | None:
    encoded = record.get(f"{member}_base64")
    content: str | None = record.get(member)
    return content if encoded is None else f"base64:{encoded}"


# --- groups --------------------------------------------------------------------------------------------------


def _groups(client: RestClient, parsed: Parsed) -> None:
    from holdfast.commandline.text_tables import table

    if parsed.group is not None:
        found = client.call("GET", "consumer-groups", parsed.group, query={"account": parsed.account})
        positions = [
            (one["stream"], one["partition"], one["offset"], one["end_offset"], one["lag"])
            for one in found["positions"]
        ]

        def text() -> str:
            headings = ("STREAM", "PARTITION", "OFFSET", "END", "LAG")
            members = [(one["client"], one["host"], one["id"]) for one in found["members"]]
            shown = table(headings, positions, nothing="The group has committed no position.")
            return f"{shown}\n\n{table(('CLIENT', 'HOST', 'MEMBER'), members, nothing='The group has no members.')}"

        print_result(parsed, found, text)
        return
    groups = list(pages(client, ("consumer-groups",), "groups", {"account": parsed.account}))
    rows = [(one["name"], one["state"]) for one in groups]
    print_result(
        parsed, {"groups": groups}, lambda: table(("GROUP", "STATE"), rows, nothing="There are no consumer groups.")
    )


def _reset(client: RestClient, parsed: Parsed) -> None:
    from holdfast.commandline.text_tables import table

    body: dict[str, Any] = {"stream": parsed.stream, "partitions": parsed.partition}
    if parsed.since is not None:
        body["timestamp"] = parsed.since
    elif parsed.to in ("earliest", "latest"):
        body["to"] = parsed.to
    else:
        body["offset"] = int(parsed.to)
    confirm(parsed, f"Reset the position of group {parsed.group} in stream {parsed.stream}?")
    done = client.call("POST", "consumer-groups", parsed.group, "reset", query={"account": parsed.account}, body=body)
    rows = [(one["partition"], one["offset"]) for one in done["offsets"]]
    print_result(parsed, done, lambda: table(("PARTITION", "OFFSET"), rows, nothing=""))


# --- files ---------------------------------------------------------------------------------------------------


def _export(client: RestClient, parsed: Parsed) -> None:
    from holdfast.migrate.stream_files import export_stream

    export_stream(client, parsed)


def _import(client: RestClient, parsed: Parsed) -> None:
    from holdfast.migrate.stream_files import import_stream

    import_stream(client, parsed)


# --- parsers -------------------------------------------------------------------------------------------------


def _setting(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is no setting: NAME=VALUE, such as retention.ms=3600000")
    return name, value


def _place(text: str) -> str:
    if text not in ("earliest", "latest") and not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"earliest, latest or an offset, not {text!r}")
    return text


def _time(text: str) -> float:
    try:
        return float(text) if text.replace(".", "", 1).isdigit() else datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time: seconds since 1970, or such as 2026-11-25T03:00:00Z"
        ) from None


def add_stream_commands(parser: argparse.ArgumentParser) -> None:
    group = Group(parser)
    create = group.add("create", _create, "create a stream", "name")
    create.add_argument("--partitions", metavar="N", type=int, default=1, help="default: 1")
    listing = group.add("list", _list, "list streams")
    listing.add_argument("--prefix", metavar="TEXT", help="only names with this prefix")
    describe = group.add("describe", _describe, "show a stream's settings, and the offsets of its partitions", "name")
    change = group.add("set", _set, "change settings of a stream, or give it more partitions", "name")
    change.add_argument("--partitions", metavar="N", type=int, help="number in all; it can only grow")
    change.add_argument("--unset", metavar="NAME", action="append", default=[], help="repeat; back to the default")
    for one in (create, change):
        one.add_argument(
            "--set", metavar="NAME=VALUE", type=_setting, action="append", default=[], help="repeat; by Kafka's names"
        )
    delete = group.add("delete", _delete, "delete a stream with all its records", "name", asks=True)
    produce = group.add("produce", _produce, "store each line of standard input as a record", "name")
    produce.add_argument("--key", metavar="KEY", help="key of all records")
    produce.add_argument("--key-separator", metavar="TEXT", help="what stands before it in a line is the record's key")
    produce.add_argument("--partition", metavar="N", type=int, help="default: by the key, or in turn")
    tail = group.add("tail", _tail, "print records, and wait for further ones", "name")
    tail.add_argument("--partition", metavar="N", type=int, help="default: all")
    begin = tail.add_mutually_exclusive_group()
    begin.add_argument("--offset", metavar="PLACE", type=_place, default="latest", help="earliest, latest or an offset")
    begin.add_argument("--since", metavar="TIME", type=_time, help="from the first record of this time on")
    begin.add_argument("--group", metavar="GROUP", help="from the group's position on, which is committed")
    tail.add_argument("--key", metavar="KEY", help="only records with this key")
    tail.add_argument("--header", metavar="NAME=VALUE", help="only records with this header, or with this NAME")
    tail.add_argument("--max", metavar="N", type=int, help="end after so many records")
    tail.add_argument("--no-wait", action="store_true", help="end when no further records are there")
    groups = group.add("groups", _groups, "list consumer groups, or show one with its positions and its lag")
    groups.add_argument("group", metavar="GROUP", nargs="?")
    reset = group.add("reset", _reset, "set the position of a consumer group", "group", "stream", asks=True)
    where = reset.add_mutually_exclusive_group(required=True)
    where.add_argument("--to", metavar="PLACE", type=_place, help="earliest, latest or an offset")
    where.add_argument("--since", metavar="TIME", type=_time, help="the first record of this time or later")
    reset.add_argument("--partition", metavar="N", type=int, action="append", help="repeat; default: all")
    export = group.add(
        "export", _export, "write a stream as JSON lines: settings, positions of groups, records", "name"
    )
    export.add_argument("--file", metavar="FILE", type=Path, help="default: standard output")
    export.add_argument("--without-groups", action="store_true", help="leave positions of consumer groups out")
    importing = group.add("import", _import, "create a stream from a file of holdfast stream export")
    importing.add_argument("file", metavar="FILE", type=Path)
    importing.add_argument("--as", metavar="NAME", dest="name", help="default: the name in the file")
    importing.add_argument("--continue", dest="goes_on", action="store_true", help="go on with an interrupted import")
    account_option(create, listing, describe, change, delete, produce, tail, groups, reset, export, importing)

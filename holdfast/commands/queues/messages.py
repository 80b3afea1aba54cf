"""``holdfast message``: send, receive, peek at and follow the messages of a queue."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from holdfast.commandline.base import Group, Parsed, account_option, print_result

if TYPE_CHECKING:
    from holdfast.commandline.client import RestClient

_PEEK_MAX: Final = 100
_RECEIVE_MAX: Final = 10
_TAIL_INTERVAL_SECONDS: Final = 1.0
_BODY_SHOWN: Final = 500
"""Characters of a body in a table on a terminal."""
_STATE_COLORS: Final = {"visible": "green", "in_flight": "yellow", "delayed": "cyan", "moving": "magenta"}


# --- sending and receiving -----------------------------------------------------------------------------------


def _send(client: RestClient, parsed: Parsed) -> None:
    message = {
        "body": _body(parsed),
        "delay_seconds": parsed.delay,
        "group": parsed.group,
        "deduplication_id": parsed.deduplication_id,
        "attributes": dict(parsed.attribute),
    }
    sent = client.call("POST", "queues", parsed.queue, "messages", query={"account": parsed.account}, body=message)
    print_result(parsed, sent, lambda: f"Message {sent['id']} is sent to {parsed.queue}.")


def _body(parsed: Parsed) -> str:
    """Return the body: the argument, the file, or standard input, exactly as it is.  Raises :class:`CommandFailed`."""
    from holdfast.commandline.client import USAGE, CommandFailed

    try:
        if parsed.body is not None:
            parsed.body.encode()
            return str(parsed.body)
        if parsed.file is not None:
            with parsed.file.open("rb") as file:
                return _read_body(file)
        if sys.stdin.isatty():
            print("Type the message, and end it with Ctrl-D on a line of its own:", file=sys.stderr)
        return _read_body(sys.stdin.buffer)
    except OSError as error:
        raise CommandFailed(f"the file {parsed.file} cannot be read: {error.strerror}", USAGE) from None
    except UnicodeError:
        raise CommandFailed("the body of a message is text in UTF-8, and this is not", USAGE) from None


def _read_body(file: BinaryIO) -> str:
    from frontend.sqs.protocol.limits import MESSAGE_BYTES_MAX
    from holdfast.commandline.client import USAGE, CommandFailed

    content = file.read(MESSAGE_BYTES_MAX + 1)
    if len(content) > MESSAGE_BYTES_MAX:
        raise CommandFailed(f"a message has at most {MESSAGE_BYTES_MAX:,} bytes, and this has more", USAGE)
    return content.decode()


def _receive(client: RestClient, parsed: Parsed) -> None:
    query = {
        "account": parsed.account,
        "max": parsed.max,
        "wait": parsed.wait,
        "visibility": parsed.visibility,
    }
    received = client.call("GET", "queues", parsed.queue, "messages", query=query) or {"messages": []}
    messages = received["messages"]
    text = f"\n{'-' * 20}\n".join(_message_text(one, handle=not parsed.delete) for one in messages)
    print_result(parsed, received, lambda: text or "No message was received.")
    if not parsed.delete or not messages:
        return
    sys.stdout.flush()  # a message is deleted once it is shown, and not before
    for one in messages:
        query = {"account": parsed.account, "receipt_handle": one["receipt_handle"]}
        client.call("DELETE", "queues", parsed.queue, "messages", query=query)
    if not parsed.json:
        print(f"\n{len(messages)} received, and deleted.")


def _message_text(message: dict[str, Any], *, handle: bool) -> str:
    from holdfast.commandline.text_tables import facts, moment, shown_text

    about = {
        "id": message["id"],
        "sent": moment(message["sent"]),
        "receives": message["receives"],
        "group": message["group"],
        "deduplication_id": message["deduplication_id"],
        "sequence_number": message["sequence_number"],
        "origin": message["origin"],
        "receipt_handle": message["receipt_handle"] if handle else None,
    }
    given = {name: value for name, value in about.items() if value is not None}
    attributes = {
        f"attribute {name}": f"{value['value']} ({value['type']})" for name, value in message["attributes"].items()
    }
    return f"{facts({**given, **_shown_names(attributes)})}\n\n{shown_text(message['body'])}"


def _shown_names(values: dict[str, str]) -> dict[str, str]:
    from holdfast.commandline.text_tables import shown

    return {shown(name): value for name, value in values.items()}


# --- reading without receiving -------------------------------------------------------------------------------


def _peek(client: RestClient, parsed: Parsed) -> None:
    from holdfast.commandline.text_tables import moment, table

    query = {"account": parsed.account, "limit": parsed.max, "after": parsed.after}
    peeked = client.call("GET", "queues", parsed.queue, "peek", query=query)

    def text() -> str:
        headings = ("SENT", "STATE", "UNTIL", "RECEIVES", "GROUP", "BODY")
        rows = [
            (
                moment(message["sent"]),
                message["state"],
                moment(message["due"]),
                message["receives"],
                message["group"],
                _short(message["body"]),
            )
            for message in peeked["messages"]
        ]
        nothing = "There are no further messages." if parsed.after else "The queue is empty."
        return table(headings, rows, nothing=nothing, colors=_STATE_COLORS)

    print_result(parsed, peeked, text)


def _short(body: str | None) -> str:
    if body is None:
        return "(cannot be read)"
    if len(body) <= _BODY_SHOWN or not sys.stdout.isatty():
        return body
    return f"{body[:_BODY_SHOWN]}… ({len(body):,} characters)"


def _tail(client: RestClient, parsed: Parsed) -> None:
    """Print messages as they are stored."""
    from holdfast.commandline.deferred_signals import DeferredSignals

    left: int | None = parsed.max
    position = ""
    with DeferredSignals() as signals:
        try:
            for page in _follow(client, parsed):
                messages = page["messages"][:left]
                with signals.whole():  # the position is that behind the printed messages
                    for message in messages:
                        print(json.dumps(message) if parsed.json else _line(message))
                    sys.stdout.flush()
                    position = page["next"]
                if left is not None:
                    left -= len(messages)
                if left == 0 or (parsed.no_wait and not messages):
                    return
                if not messages:
                    time.sleep(_TAIL_INTERVAL_SECONDS)
        finally:
            if position:
                print(f"holdfast: to go on from here: --after {position}", file=sys.stderr, flush=True)


def _follow(client: RestClient, parsed: Parsed) -> Iterator[dict[str, Any]]:
    """Yield pages of the messages that are stored, for ever, also empty ones.

    A connection that breaks after the first page is reported once, and the position outlasts it.  Raises
    :class:`CommandFailed` for all else.
    """
    from holdfast.commandline.client import UNREACHABLE, CommandFailed
    from holdfast.commandline.text_tables import shown

    limit = _PEEK_MAX if parsed.max is None else min(_PEEK_MAX, parsed.max)
    query = {"account": parsed.account, "limit": limit, "after": parsed.after or ("" if parsed.all else "latest")}
    answered, broken = False, False
    while True:
        try:
            page: dict[str, Any] = client.call("GET", "queues", parsed.queue, "peek", query=query)
        except CommandFailed as error:
            if not answered or error.code != UNREACHABLE:
                raise
            if not broken:
                print(f"holdfast: {shown(str(error))}; trying again", file=sys.stderr, flush=True)
            broken = True
            time.sleep(_TAIL_INTERVAL_SECONDS)
            continue
        if broken:
            print("holdfast: answered again; going on", file=sys.stderr, flush=True)
        answered, broken = True, False
        query["after"] = page["next"]
        yield page


def _line(message: dict[str, Any]) -> str:
    from holdfast.commandline.text_tables import moment, shown

    body = "(cannot be read)" if message["body"] is None else message["body"]
    parts = (moment(message["sent"]), message["id"], message["group"], body)
    return "  ".join(shown(part) for part in parts if part is not None)


# --- parsers -------------------------------------------------------------------------------------------------


def _up_to(number: int) -> Any:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= number:
            raise argparse.ArgumentTypeError(f"a number from 1 to {number}, not {text!r}")
        return int(text)

    return parse


def _attribute(text: str) -> tuple[str, dict[str, str]]:
    """Parse ``NAME=VALUE`` or ``NAME:TYPE=VALUE``."""
    before, found, value = text.partition("=")
    name, _, type_ = before.partition(":")
    if not found or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is no attribute: NAME=VALUE, or such as NAME:Number=VALUE")
    return name, {"type": type_ or "String", "value": value}


def add_message_commands(parser: argparse.ArgumentParser) -> None:
    group = Group(parser)
    send = group.add("send", _send, "send a message", "queue")
    content = send.add_mutually_exclusive_group()
    content.add_argument("body", metavar="BODY", nargs="?", help="default: standard input, as it is")
    content.add_argument("--file", metavar="FILE", type=Path, help="file with the body")
    send.add_argument(
        "--attribute",
        metavar="NAME[:TYPE]=VALUE",
        type=_attribute,
        action="append",
        default=[],
        help="repeat; types: String (default), Number, Binary (a value in base64)",
    )
    send.add_argument("--delay", metavar="SECONDS", type=int, help="until it becomes visible; default: the queue's")
    send.add_argument("--group", metavar="GROUP", help="message group")
    send.add_argument("--deduplication-id", metavar="ID", help="FIFO queues: messages with one id are stored once")
    receive = group.add("receive", _receive, "receive messages: they are hidden from other consumers", "queue")
    receive.add_argument("--max", metavar="N", type=_up_to(_RECEIVE_MAX), default=1, help="1 (default) to 10")
    receive.add_argument("--wait", metavar="SECONDS", type=int, help="for the first one, up to 20")
    receive.add_argument("--visibility", metavar="SECONDS", type=int, help="until they are visible again")
    receive.add_argument("--delete", action="store_true", help="delete them once they are printed")
    peek = group.add("peek", _peek, "show the first messages without receiving them", "queue")
    peek.add_argument("--max", metavar="N", type=_up_to(_PEEK_MAX), default=10, help="up to 100 (default: 10)")
    tail = group.add("tail", _tail, "print messages as they arrive, without receiving them", "queue")
    begin = tail.add_mutually_exclusive_group()
    begin.add_argument("--all", action="store_true", help="begin with the messages that are stored now")
    for place in (peek, begin):
        place.add_argument("--after", metavar="POSITION", help="only messages behind the `next` of an earlier peek")
    tail.add_argument("--max", metavar="N", type=_up_to(999_999_999), help="end after so many messages")
    tail.add_argument("--no-wait", action="store_true", help="end when no further messages are there")
    account_option(send, receive, peek, tail)

"""``holdfast export``: a queue, as JSON lines.

Nothing is received: consumers are not affected.  If the queue is used during the export, the file contains:

- each message that was stored when the export started and was still there when its page was read, exactly once;
- some of the messages sent or deleted meanwhile;
- a message moved meanwhile to another queue, or back, in the file of one of the two, in both, or in none.

So the file is exact if the queue is not in use.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from holdfast.commandline.base import Parsed
from holdfast.commandline.client import NOT_FOUND, CommandFailed, persistently
from holdfast.commandline.files import complete_file
from holdfast.commandline.progress import Progress
from holdfast.migrate import file_format
from holdfast.migrate.target import TargetService

if TYPE_CHECKING:
    from holdfast.commandline.client import RestClient

_PAGE = 250
"""Messages per page; other callers wait while the service decrypts one."""
_PROGRESS_MESSAGES = 1_000
_MEMBERS = (
    *("body", "group", "deduplication_id", "trace_header", "state", "due", "id", "sent", "receives", "first_received"),
    *("sequence_number", "sender", "origin"),
)


def export(client: RestClient, parsed: Parsed) -> None:
    """Run the command.  Raises :class:`CommandFailed`, also if messages could not be read: the others are written."""
    found = TargetService(client).find(parsed.queue, parsed.account)
    if found is None:
        raise CommandFailed(f"there is no queue {parsed.queue}", NOT_FOUND)
    dead = found.dead_letter_queue
    heading = file_format.QueueDefinitionLine(
        file_format.VERSION,
        found.name,
        str(found.arn),
        dict(found.attributes),
        dict(found.tags),
        None if dead is None else dead.name,
        f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
    )
    progress = Progress()
    progress.step(f"Writing queue {parsed.queue}")
    counts = {"messages": 0, "in_flight": 0, "delayed": 0, "unreadable": 0}
    with complete_file(parsed.file) as output:
        output.write(file_format.encode(heading) + b"\n")
        for message in () if parsed.definition_only else _messages(client, parsed.queue, parsed.account):
            output.write(file_format.encode(_line(message, counts)) + b"\n")
            if not counts["messages"] % _PROGRESS_MESSAGES:
                progress.within(f"{counts['messages']:,} messages")
        output.write(file_format.encode(file_format.EndLine(counts["messages"], counts["unreadable"])) + b"\n")
    progress.done()
    if parsed.json:
        print(file_format.encode({"queue": parsed.queue, **counts}).decode(), file=sys.stderr)
    else:
        print(
            f"{counts['messages']} messages of queue {parsed.queue} are written, of which {counts['in_flight']} are in "
            f"flight and {counts['delayed']} delayed.",
            file=sys.stderr,
        )
    if counts["unreadable"]:
        raise CommandFailed(
            f"{counts['unreadable']} messages of queue {parsed.queue} could not be read by the service: see its "
            "log, unless their data key was destroyed; the file has only their ids in their places"
        )


def _messages(client: RestClient, name: str, account: str | None) -> Iterator[dict[str, Any]]:
    after: str | None = ""
    while after is not None:
        query = {"account": account, "after": after, "limit": _PAGE}
        page = persistently(lambda query=query: client.call("GET", "queues", name, "export", query=query))  # type: ignore[misc]
        yield from page["messages"]
        after = page["next"]


def _line(message: dict[str, Any], counts: dict[str, int]) -> file_format.Line:
    if message["body"] is None:
        counts["unreadable"] += 1
        return file_format.UnreadableLine(message["id"])
    counts["messages"] += 1
    if message["state"] in ("in_flight", "moving"):
        counts["in_flight"] += 1
    elif message["state"] == "delayed":
        counts["delayed"] += 1
    values = {name: file_format.Value(one["type"], one["value"]) for name, one in message["attributes"].items()}
    return file_format.MessageLine(attributes=values, **{name: message[name] for name in _MEMBERS})

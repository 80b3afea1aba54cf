"""Short notation of histories for tests: ``0-1 send a; 2-3 receive a h1`` is a send of message ``a`` from second 0 to
second 1, and a receive of it, which returns the handle ``h1``."""

import itertools
import math
from typing import Any

from tests.histories.history import Kind, Operation, Outcome
from tests.tables import beside

KINDS = {"send": Kind.SEND, "receive": Kind.RECEIVE, "delete": Kind.DELETE, "change": Kind.CHANGE}
CASES: dict[str, Any] = beside(__file__, "cases.yaml")
_calls = itertools.count(1)


def made(text: str) -> list[Operation]:
    """Operations, separated by semicolons: their times, what they do, the messages, and any of the following.

    The handle (``h2``; ``h1`` if none is given), the queue (``@dead``), the group (``#g``), the seconds for which the
    message is hidden (``5s``), and its message id (``id-new``).  Without the time of an answer the outcome is unknown.
    """
    return [one for operation in text.split(";") for one in _call(operation.split())]


def _call(words: list[str]) -> list[Operation]:
    times, kind, *rest = words
    called, _, answered = times.partition("-")
    outcome = Outcome.DONE if answered else Outcome.UNKNOWN
    between = (float(called), float(answered or math.inf), outcome)
    if not rest:
        return [Operation(KINDS[kind], "q", *between)]
    call = next(_calls)
    seconds = 10.0 if kind == "receive" else 0.0
    queue, group, handle, message_id = "q", "", "" if kind == "send" else "h1", ""
    for word in rest[1:]:
        if word[0] == "@":
            queue = word[1:]
        elif word[0] == "#":
            group = word[1:]
        elif word[0] == "h":
            handle = word
        elif word.startswith("id-"):
            message_id = word
        else:
            seconds = float(word.removesuffix("s"))
    named = kind in ("send", "receive")
    return [
        Operation(
            KINDS[kind],
            queue,
            *between,
            key,
            message_id or (f"id-{key}" if named else ""),
            handle,
            seconds,
            group,
            call,
        )
        for key in rest[0].split(",")
    ]

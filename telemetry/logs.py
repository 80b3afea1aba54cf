"""The log as JSON: one object on one line for each event, whatever its text holds.

===============  ==============================================================================================
``time``         UTC, as RFC 3339 has it
``level``        debug, info, warning, error or critical
``logger``       which part tells it
``message``      the text that the other format has
``role``         of the process: all, supervisor, frontend, backend, metadata or manager
``process``      its name among those that write one log
``pid``          of the process
``request_id``   of the call that the event belongs to, as its client sees it; left out where there is none
``trace_id``     and ``span_id``, where that call is sampled (:mod:`telemetry.traces`)
``exception``    the traceback, left out where there is none
===============  ==============================================================================================
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping

from telemetry import calls, traces
from telemetry.texts import shown

ARGUMENT_LENGTH_MAX = 500
"""Characters of a text that a log line repeats: it may be a client's."""
MESSAGE_LENGTH_MAX = 4_000
"""Characters of a log line's message."""
TRACEBACK_LINES_MAX = 400


def message_of(record: logging.LogRecord) -> str:
    """The message of a record, in which no value, and which as a whole, is longer than some hundred or thousand
    characters: a client can make a value of any length stand in a log line, and have as many lines as it likes."""
    arguments = record.args
    if not arguments:
        return shown(record.getMessage(), MESSAGE_LENGTH_MAX)
    bounded: object = (
        {name: _bounded(value) for name, value in arguments.items()}
        if isinstance(arguments, Mapping)
        else tuple(map(_bounded, arguments))
    )
    return shown(str(record.msg) % bounded, MESSAGE_LENGTH_MAX)


def bounded_lines(traceback: str) -> str:
    """A traceback whose lines, and their number, are bounded: its last lines are the text of the error."""
    lines = traceback.split("\n", TRACEBACK_LINES_MAX)
    if len(lines) > TRACEBACK_LINES_MAX:
        lines[-1] = "..."
    return "\n".join(shown(line, ARGUMENT_LENGTH_MAX) for line in lines)


def _bounded(value: object) -> object:
    if isinstance(value, str):
        return shown(value, ARGUMENT_LENGTH_MAX)
    if isinstance(value, bytes | bytearray) and len(value) > ARGUMENT_LENGTH_MAX:
        return bytes(value[:ARGUMENT_LENGTH_MAX]) + b"..."
    return value


class JsonLines(logging.Formatter):
    """All that is not ASCII is escaped, so that nothing in a text, such as a line break of Unicode, ends a line."""

    def __init__(self, role: str, process: str, pid: int) -> None:
        super().__init__()
        self._told_of_process = {"role": role, "process": process, "pid": pid}

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{when}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message_of(record),
            **self._told_of_process,
        }
        call = calls.current.get()
        if call is not None and call[0] is not None:
            line["request_id"] = call[0]
        span = traces.current.get()
        if span is not None and not span.ended:
            line["trace_id"], line["span_id"] = span.trace_id, span.span_id
        if record.exc_info:
            line["exception"] = bounded_lines(self.formatException(record.exc_info))
        if record.stack_info:
            line["stack"] = record.stack_info
        return json.dumps(line)

"""JSON log format: one object on one line per event, whatever its text contains.

===============  ==============================================================================================
``time``         UTC, in the format of RFC 3339
``level``        debug, info, warning, error or critical
``logger``       component that logged the event
``message``      the text, as in the other format
``role``         role of the process: all, supervisor, frontend, backend, metadata or manager
``process``      name of the process among those that write one log
``pid``          id of the process
``request_id``   request id of the event's call, as its client sees it; absent if there is none
``trace_id``     with ``span_id``, if the call is sampled (:mod:`telemetry.traces`)
``exception``    traceback, absent if there is none
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
"""Maximum length of a value in a log line, which may be a client's."""
MESSAGE_LENGTH_MAX = 4_000
"""Maximum length of a log line's message."""
TRACEBACK_LINES_MAX = 400


def message_of(record: logging.LogRecord) -> str:
    """Format a record's message with bounded values and bounded total length: clients can put values of any
    length into log lines, and cause any number of lines."""
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
    """Bound a traceback's line length and number of lines; the end of the last line is the error's text."""
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
    """Formats records as JSON.  Non-ASCII is escaped, so that no Unicode line break in a text ends a line."""

    def __init__(self, role: str, process: str, pid: int) -> None:
        super().__init__()
        self._process_fields = {"role": role, "process": process, "pid": pid}

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{when}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message_of(record),
            **self._process_fields,
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

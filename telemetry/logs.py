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

from telemetry import calls, traces


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
            "message": record.getMessage(),
            **self._told_of_process,
        }
        call = calls.current.get()
        if call is not None and call[0] is not None:
            line["request_id"] = call[0]
        span = traces.current.get()
        if span is not None and not span.ended:
            line["trace_id"], line["span_id"] = span.trace_id, span.span_id
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return json.dumps(line)

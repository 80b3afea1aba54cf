"""The log: one line for each event on standard error, as text with key=value facts, or as JSON (:mod:`telemetry.logs`).

With JSON, standard error is read by a program: a process prints nothing else, so that all lines have one format.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from telemetry.logs import JsonLines, bounded_lines, message_of

if TYPE_CHECKING:
    from holdfast.settings import Settings

Role = Literal["all", "supervisor", "frontend", "backend", "metadata", "manager"]
"""Role of a process; ``all`` if it is the only one."""

log = logging.getLogger("holdfast")

_is_json = False
_role: Role = "all"
_process = ""
"""Process name given to :func:`set_up`."""


class _Formatter(logging.Formatter):
    """Formats as ``2026-11-21T10:00:00.123Z info holdfast: started pid=1 ...``; a traceback follows indented.

    If several processes write one log, the process's name follows the level: ``info frontend-1 holdfast: ...``.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = f"{process} " if process else ""

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        message = message_of(record).replace("\n", "\\n")
        line = f"{when}.{int(record.msecs):03}Z {record.levelname.lower()} {self._process}{record.name}: {message}"
        if record.exc_info:
            line += "\n    " + bounded_lines(self.formatException(record.exc_info)).replace("\n", "\n    ")
        return line


def set_up(settings: Settings, role: Role, process: str = "") -> None:
    """Write records from ``log_level`` up to standard error, formatted by ``log_format``.

    ``process``: name of this process, if several write one log.
    """
    global _is_json, _role, _process
    _role, _process = role, process
    _is_json = settings.log_format == "json"
    handler = logging.StreamHandler(sys.stderr)
    if _is_json:
        handler.setFormatter(JsonLines(role, process or os.uname().nodename, os.getpid()))
        logging.captureWarnings(True)
        sys.excepthook = _uncaught
        threading.excepthook = _uncaught_in_thread
    else:
        handler.setFormatter(_Formatter(process))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(max(logging.WARNING, logging.getLogger().level))  # it logs each request


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    log.critical("an unhandled error ends the process", exc_info=(kind, error, trace))


def _uncaught_in_thread(arguments: threading.ExceptHookArgs) -> None:
    log.error("an unhandled error ends a thread", exc_info=arguments.exc_value)


def say(text: str) -> None:
    """Print text for the person at the terminal; with JSON, log it."""
    if _is_json:
        log.info("%s", text)
    else:
        print(text, flush=True)


def complain(error: Exception) -> None:
    """Report the reason why a process ends, or does not start."""
    if _is_json:
        log.error("%s", error)
    else:
        print(f"holdfast: {error}", file=sys.stderr)


def is_json() -> bool:
    return _is_json


def who() -> tuple[Role, str]:
    """Return the role of this process, and its name; empty if it has none."""
    return _role, _process


def facts(**values: Any) -> str:
    """Format facts as ``key=value``, quoted if a value contains spaces."""
    return " ".join(f"{key}={_shown(value)}" for key, value in values.items())


def _shown(value: Any) -> str:
    text = str(value)
    return repr(text) if not text or any(character in text for character in ' "=\n') else text

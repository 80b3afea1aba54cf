"""The log: one line for each event on standard error, its facts as key=value."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any


class _Formatter(logging.Formatter):
    """``2026-11-21T10:00:00.123Z info holdfast: started pid=1 ...``; a traceback follows indented.

    Where several processes write one log, the process's name follows the level: ``info frontend-1 holdfast: ...``.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = f"{process} " if process else ""

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        message = record.getMessage().replace("\n", "\\n")
        line = f"{when}.{int(record.msecs):03}Z {record.levelname.lower()} {self._process}{record.name}: {message}"
        if record.exc_info:
            line += "\n    " + self.formatException(record.exc_info).replace("\n", "\n    ")
        return line


def set_up(level: str, process: str = "") -> None:
    """Let everything from ``level`` up go to standard error, under the process's name."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(process))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(max(logging.WARNING, logging.getLogger().level))  # it tells of each request


def facts(**values: Any) -> str:
    """``key=value`` of each, quoted where a value holds spaces."""
    return " ".join(f"{key}={_shown(value)}" for key, value in values.items())


def _shown(value: Any) -> str:
    text = str(value)
    return repr(text) if not text or any(character in text for character in ' "=\n') else text

"""Progress of a long command, printed on standard error."""

from __future__ import annotations

import sys


class Progress:
    """Prints each step as a line; progress within a step is shown on a terminal only, in one line that changes."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._shown = 0

    def step(self, text: str) -> None:
        self._clear()
        print(f"{text} …", file=sys.stderr, flush=True)

    def within(self, text: str) -> None:
        if not self._terminal:
            return
        self._clear()
        sys.stderr.write(f"  {text}")
        sys.stderr.flush()
        self._shown = len(text) + 2

    def done(self) -> None:
        self._clear()

    def _clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r" + " " * self._shown + "\r")
            self._shown = 0

"""Full-screen view of a terminal that is refreshed in place, with single keys as input."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from holdfast.commandline.deferred_signals import DeferredSignals

if TYPE_CHECKING:
    from rich.console import RenderableType


class Screen:
    """The terminal's alternate screen; the terminal is as before at the end, also if the process gets SIGTERM."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console()
        self._live = Live(console=self._console, screen=True, auto_refresh=False)
        self._keys = sys.stdin.fileno() if sys.stdin.isatty() else None
        """File descriptor of the keyboard; None: there is none."""
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        self._undo.enter_context(DeferredSignals())
        with ExitStack() as undo:
            if self._keys is not None:
                undo.callback(termios.tcsetattr, self._keys, termios.TCSADRAIN, termios.tcgetattr(self._keys))
                tty.setcbreak(self._keys)
            undo.enter_context(self._live)
            self._undo.push(undo.pop_all())
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    @property
    def lines(self) -> int:
        """Height of the terminal now."""
        return self._console.size.height

    def show(self, content: RenderableType) -> None:
        """Replace the content of the screen."""
        self._live.update(content, refresh=True)

    def wait_for_key(self, seconds: float, sleep: Callable[[float], None]) -> str | None:
        """Wait for a key at most this long; returns None if there was none."""
        if self._keys is None:
            sleep(seconds)
            return None
        if not select.select([self._keys], [], [], seconds)[0]:
            return None
        typed = os.read(self._keys, 1)
        if not typed:  # the end of the input is no key, and would be there for ever
            self._keys = None
        return typed.decode("ascii", "replace") or None

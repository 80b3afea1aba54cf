"""SIGINT and SIGTERM whose exceptions wait for the end of a step that has to be whole."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final, NoReturn, Self

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class DeferredSignals:
    """Handlers of SIGINT and SIGTERM, as a context manager; for the main thread.

    A signal raises :class:`KeyboardInterrupt` or :class:`SystemExit`, which has the exit code of the signal.  One that
    arrives in a :meth:`whole` block raises it at the end of the block, a second one at once: a block that waits for
    a slow reader can still be ended.  An ignored signal stays ignored.  At the end of the context the earlier handlers
    are back.
    """

    def __init__(self) -> None:
        self._undo = ExitStack()
        self._in_block = False
        self._deferred: int | None = None

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            if signal.getsignal(number) in (signal.SIG_IGN, None):
                continue  # as a shell starts what is in the background; or the handler is not Python's
            self._undo.callback(signal.signal, number, signal.signal(number, self._handle))
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Defer the exception of the first signal that arrives in the block to its end."""
        self._in_block = True
        try:
            yield
        finally:
            self._in_block = False
        if self._deferred is not None:
            _raise(self._deferred)

    def _handle(self, number: int, _: object) -> None:
        if self._in_block and self._deferred is None:
            self._deferred = number
        else:
            _raise(number)


def _raise(number: int) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)

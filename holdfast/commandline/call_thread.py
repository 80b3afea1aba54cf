"""A thread for the calls of the main thread, so that the exceptions of signals are not raised inside them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

_T = TypeVar("_T")
_Answers = SimpleQueue[tuple[Any, BaseException | None]]
_Calls = SimpleQueue[tuple[Callable[[], Any], _Answers] | None]

THREAD_NAME: Final = "calls"
_NOTICED_SECONDS: Final = 1.0
"""Maximum delay of a signal that arrives just before the main thread begins to wait, and so does not end the wait."""


class CallThread:
    """Carries out blocking calls that must not be interrupted at any moment.

    Python raises :class:`KeyboardInterrupt`, and what handlers of signals raise, between any two steps of the main
    thread.  In the connection pool of httpcore a moment is enough in which its lock was taken and the ``with`` block
    was not entered yet: the lock stays locked, and the next use of the pool, such as its close, waits for ever.
    In another thread nothing is raised, and the main thread only waits for it.  An interrupted wait ends at once; its
    call ends in its own time, and its result is discarded.
    """

    def __init__(self) -> None:
        self._calls: _Calls | None = None
        """Queue of the thread, which starts with the first call."""
        self._waiting = False
        """True while a call is waited for, and for ever when that was interrupted."""

    def run(self, call: Callable[[], _T]) -> _T:
        """Return the result of the call, or raise its exception."""
        if threading.current_thread() is not threading.main_thread():
            return call()
        if self._calls is None:
            self._calls = _start()
        answers: _Answers = SimpleQueue()
        self._waiting = True
        self._calls.put((call, answers))
        result, error = _wait(answers)
        self._waiting = False
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    def close(self, last: Callable[[], None]) -> None:
        """Carry out the last call, and end the thread.  Neither is waited for if a wait was interrupted."""
        if self._calls is None:
            last()
            return
        answers: _Answers = SimpleQueue()
        self._calls.put((last, answers))
        self._calls.put(None)  # before the wait, which may be interrupted
        if not self._waiting:
            _, error = _wait(answers)
            if error is not None:
                raise error


def _start() -> _Calls:
    calls: _Calls = SimpleQueue()
    threading.Thread(target=_work, args=(calls,), name=THREAD_NAME, daemon=True).start()
    return calls


def _work(calls: _Calls) -> None:
    while (one := calls.get()) is not None:
        call, answers = one
        try:
            answers.put((call(), None))
        except BaseException as error:  # raised by run()
            answers.put((None, error))


def _wait(answers: _Answers) -> tuple[Any, BaseException | None]:
    while True:
        try:
            return answers.get(timeout=_NOTICED_SECONDS)
        except Empty:
            continue

"""Calls of the main thread, and signals that arrive during them."""

import os
import signal
import threading
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from holdfast.commandline.call_thread import CallThread
from tests.holdfast.command import interrupted_by_signals


@pytest.fixture
def calls() -> Iterator[CallThread]:
    made = CallThread()
    with interrupted_by_signals():
        yield made
    last: SimpleQueue[threading.Thread] = SimpleQueue()
    made.close(lambda: last.put(threading.current_thread()))
    thread = last.get(timeout=60)
    if thread is not threading.current_thread():
        thread.join(60)
        assert not thread.is_alive()


def test_results_and_exceptions_are_those_of_the_call(calls: CallThread) -> None:
    assert calls.run(lambda: "done") == "done"
    with pytest.raises(ValueError, match="refused"):
        calls.run(lambda: int("refused"))
    threads = {calls.run(threading.current_thread) for _ in range(3)}
    assert len(threads) == 1
    assert threading.main_thread() not in threads


def test_calls_of_other_threads_stay_in_them(calls: CallThread) -> None:
    found: list[threading.Thread] = []
    other = threading.Thread(target=lambda: found.append(calls.run(threading.current_thread)))
    other.start()
    other.join()
    assert found == [other]


def test_a_signal_ends_the_wait_and_not_the_call(calls: CallThread) -> None:
    released, finished = threading.Event(), threading.Event()

    def call() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        released.wait(60)
        finished.set()

    with pytest.raises(KeyboardInterrupt):
        calls.run(call)
    assert not finished.is_set()
    released.set()
    assert finished.wait(60)

"""Signals in blocks that have to be whole."""

import signal

import pytest

from holdfast.commandline.deferred_signals import DeferredSignals

RAISED = [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]


def _interrupted(steps: list[str], *numbers: signal.Signals, error: type[Exception] | None = None) -> None:
    """Get the signals in a block, and write down what is done after them."""
    with DeferredSignals() as signals:
        with signals.whole():
            for number in numbers:
                signal.raise_signal(number)
            if error is not None:
                raise error
            steps.append("the rest of the block")
        steps.append("behind the block")


@pytest.mark.parametrize(("number", "raised"), RAISED)
def test_a_signal_in_a_block_raises_at_its_end(number: signal.Signals, raised: type[BaseException]) -> None:
    steps: list[str] = []
    with pytest.raises(raised) as caught:
        _interrupted(steps, number)
    assert steps == ["the rest of the block"]
    assert caught.value.args == (() if number == signal.SIGINT else (143,))


@pytest.mark.parametrize(("number", "raised"), RAISED)
def test_a_signal_outside_of_blocks_raises_at_once(number: signal.Signals, raised: type[BaseException]) -> None:
    with DeferredSignals() as signals:
        with signals.whole():
            pass
        with pytest.raises(raised):
            signal.raise_signal(number)


def test_a_second_signal_ends_the_block() -> None:
    steps: list[str] = []
    with pytest.raises(SystemExit):
        _interrupted(steps, signal.SIGINT, signal.SIGTERM)
    assert steps == []


def test_an_error_in_the_block_is_raised_instead_of_the_signal() -> None:
    with pytest.raises(BrokenPipeError):
        _interrupted([], signal.SIGINT, error=BrokenPipeError)


def test_the_handlers_before_are_back_at_the_end() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with DeferredSignals():
        assert all(signal.getsignal(number) not in before for number in (signal.SIGINT, signal.SIGTERM))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with DeferredSignals() as signals, signals.whole():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)

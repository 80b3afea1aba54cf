"""Work that is ended between any two of its steps, and done again."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

RUNS_MAX = 200


class Interrupted(BaseException):
    """Simulated end of the process."""


def run_interrupted(
    work: Callable[[], object], *steps: tuple[Any, str], after: bool = True, then: Callable[[], object] = lambda: None
) -> int:
    """End ``work`` at its first step, then at its second, and so on, until it runs to its end; returns the runs.

    The steps are the calls of these methods: it is ended before each and, with ``after``, after each.  ``then`` is
    called when it was ended.
    """
    for runs in range(1, RUNS_MAX):
        moments = itertools.count(1)

        def reached(end: int = runs, moments: Any = moments) -> None:
            if next(moments) == end:
                raise Interrupted

        def ending(real: Callable[..., Any], reached: Callable[[], None] = reached) -> Callable[..., Any]:
            def step(*arguments: Any, **named: Any) -> Any:
                reached()
                answer = real(*arguments, **named)
                if after:
                    reached()
                return answer

            return step

        with pytest.MonkeyPatch.context() as patch:
            for owner, name in steps:
                patch.setattr(owner, name, ending(getattr(owner, name)))
            try:
                work()
                return runs
            except Interrupted:
                pass
        then()
    raise AssertionError("it never ends")

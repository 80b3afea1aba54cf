"""Search for an order, and a moment for each operation, in which a sequential object would have given these
answers.

The search is Wing and Gong's, with Lowe's memory of tried states: linearize any operation that began before all
other remaining ones had ended, ask the model if the object allows it in its present state, and backtrack when
nothing fits. A pair of (operations done, state) is tried once.

Operations of unknown outcome have no end: they constrain no other one, and may be left out.

The model includes time, because a visibility timeout does.  It gets the operation's first possible moment and
returns states, each with the moment at which the operation took effect; it has to take the earliest one that
its rules allow, and all its rules have to be lower bounds ("not before"), never upper ones.  Then an earlier
moment is never worse, and one moment for each order is enough; only the operation's answer is an upper bound of
its moment.

Sources: M. Herlihy, J. Wing, "Linearizability: A Correctness Condition for Concurrent Objects", 1990; J. Wing,
C. Gong, "Testing and Verifying Concurrent Objects", 1993; G. Lowe, "Testing for Linearizability", 2017; A.
Horn, D. Kroening, "Faster Linearizability Checking via P-Compositionality", 2015 (justifies checking each
message separately).
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from tests.histories.history import Operation, Outcome

State = TypeVar("State", bound=Hashable)
Step = Callable[[State, Operation, float], Iterable[tuple[State, float]]]
"""(state, operation, not before) -> states after it, each with the moment of the operation."""

TRIED_MAX = 200_000


class Undecided(Exception):
    """The search was given up: too many orders are possible."""


def linearizable(operations: Sequence[Operation], initial: State, step: Step[State]) -> list[Operation] | None:
    """None if such an order exists; otherwise the longest one found, followed by the operation that does not
    fit.

    Refused operations are ignored.  Raises :class:`Undecided`.
    """
    history = [operation for operation in operations if operation.outcome is not Outcome.REFUSED]
    must = sum(1 << at for at, operation in enumerate(history) if operation.outcome is Outcome.DONE)
    tried: set[tuple[int, State, float]] = set()
    longest: list[Operation] = []
    trail: list[tuple[int, State, float, tuple[Operation, ...]]] = [(0, initial, 0.0, ())]
    while trail:
        done, state, now, order = trail.pop()
        if done & must == must:
            return None
        if (done, state, now) in tried:
            continue
        tried.add((done, state, now))
        if len(tried) > TRIED_MAX:
            raise Undecided(f"{len(history)} operations of {history[0].key!r}: more than {TRIED_MAX} tried")
        if len(order) >= len(longest):
            longest = list(order)
        open_until = min(
            operation.answered for at, operation in enumerate(history) if must >> at & 1 and not done >> at & 1
        )
        for at in reversed(range(len(history))):  # earlier operations are tried first
            operation = history[at]
            if done >> at & 1 or operation.called > open_until:
                continue
            for after, moment in step(state, operation, max(now, operation.called)):
                if moment <= operation.answered:
                    trail.append((done | 1 << at, after, moment, (*order, operation)))
    stuck = min(
        (one for one in history if one.outcome is Outcome.DONE and one not in longest), key=lambda one: one.answered
    )
    return [*longest, stuck]

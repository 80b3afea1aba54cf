"""Bounds on the work of filter policies for one publication.

Shared work, as reading the body and indexing its values, is done once for all policies, and is bounded by the size of
the message.  All other work is that of one policy, which has its own share of the steps, so that no subscriber can use
up those of the others.
"""

from __future__ import annotations

STEPS_MAX = 4_000_000
"""Steps of all policies for one publication besides shared work [own]: one to two seconds of CPU."""
STEPS_AT_ONCE = 20_000
"""Steps on the event loop before other calls get their turn: about 5 ms of CPU."""
TRIAL_STEPS = 4_000
"""Steps of one policy on the event loop; one that needs more is evaluated in a thread."""
CHARACTERS_PER_STEP = 512
"""Characters that are copied, compared or sorted in the time of a step."""
LOOKUPS_PER_STEP = 16
"""Elements that an operation on whole sets or arrays handles in the time of a step."""


class TooMuchWork(Exception):
    """The steps that were allowed are used up."""


class WorkCounter:
    """A counter of steps, each of about 0.3 microseconds of CPU: a matcher's call for one value, or as much."""

    __slots__ = ("_shared_is_free", "limit", "shared", "steps")

    def __init__(self) -> None:
        self.steps = 0
        """Steps so far."""
        self.shared = 0
        """Those of shared work."""
        self.limit = STEPS_MAX
        """Number of steps that are allowed."""
        self._shared_is_free = True

    @property
    def left(self) -> int:
        """Steps that are left for policies."""
        return max(0, STEPS_MAX - (self.steps - self.shared))

    def allow(self, steps: int) -> None:
        """Allow so many more steps, with those of shared work."""
        self.limit = self.steps + steps
        self._shared_is_free = False

    def allow_policy(self, steps: int) -> None:
        """Allow one policy so many steps besides shared work."""
        self.limit = self.steps + steps
        self._shared_is_free = True

    def add(self, steps: int) -> None:
        """Count steps that are about to be made; they are not counted if they exceed the limit.  Raises
        :class:`TooMuchWork`."""
        after = self.steps + steps
        if after > self.limit:
            raise TooMuchWork
        self.steps = after

    def add_shared(self, steps: int) -> None:
        """Count steps of shared work that are about to be made, as :meth:`add` does."""
        if self._shared_is_free:
            self.limit += steps
        self.add(steps)
        self.shared += steps

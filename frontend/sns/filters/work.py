"""Bounds on the work of filter policies for one publication."""

from __future__ import annotations

STEPS_MAX = 4_000_000
"""Steps of all policies for one publication [own]: one to two seconds of CPU, which no message comes near that is not
made for it."""
STEPS_AT_ONCE = 20_000
"""Steps of one policy on the event loop: about 5 ms of CPU."""
CHARACTERS_PER_STEP = 512
"""Characters that are copied, compared or sorted in the time of a step."""
LOOKUPS_PER_STEP = 16
"""Elements that an operation on whole sets or arrays handles in the time of a step."""


class TooMuchWork(Exception):
    """The steps that were allowed are used up."""


class WorkCounter:
    """A counter of steps, each of about 0.3 microseconds of CPU: a matcher's call for one value, or as much."""

    __slots__ = ("limit", "steps")

    def __init__(self) -> None:
        self.steps = 0
        """Steps so far."""
        self.limit = STEPS_MAX
        """Number of steps that are allowed."""

    def allow(self, steps: int) -> None:
        """Allow so many more steps, within those of the publication."""
        self.limit = min(self.steps + steps, STEPS_MAX)

    def add(self, steps: int) -> None:
        """Count steps that are about to be made.  Raises :class:`TooMuchWork`."""
        self.steps += steps
        if self.steps > self.limit:
            raise TooMuchWork

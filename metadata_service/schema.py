"""Versions of what is stored: which programs may use it, and what leads from one version to the next, and back.

A schema is a list of steps, and what is stored has taken the first so many of them: that is its *version*.  A program
knows the steps that there were when it was made.  Beside the version is stored the *oldest* version whose programs can
use it as it is, so that a program need not know the steps that came after it to know whether it may work:

* what is stored has a version that the program knows: it takes the steps that are missing, and goes on;
* it has taken more steps, and ``oldest`` is no more than the program knows: the program goes on, and changes nothing;
* ``oldest`` is more than it knows: it refuses (:meth:`Schema.check`).

So a step *expands*: it adds what the release before neither reads nor has to write, and leaves ``oldest`` alone.
Then both releases work side by side, whichever made the step, and going back to the release before needs no step back.
What takes something away, or has to be written by everybody, *contracts*: it comes a release later, when no program is
left that needs what goes, and raises ``oldest`` (:attr:`Step.oldest`).

A step that was released is never changed; what comes later is a step of its own, at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from metadata_service.opening import CannotOpen

RESTORING: Final = 1_000_000
"""The oldest version whose programs can use what is just being restored: none can, also no earlier release."""

RESTORE_AGAIN: Final = (
    "if holdfast restore runs, wait for it; else repeat that command, which goes on, or drop the keyspace and restore "
    "into another"
)
"""Advice for one that was not restored to its end."""


class CannotRollBack(CannotOpen):
    """Nothing leads back from here, or something would be lost; nothing was changed."""


class Step(NamedTuple):
    """What leads from one version to the next, and back."""

    forward: tuple[str, ...]
    back: tuple[str, ...] | None = None
    """Undoes it, in this order; None: nothing leads back."""
    lost: tuple[str, ...] = ()
    """Queries for what the way back would lose: it is refused unless none of them finds a row."""
    oldest: int | None = None
    """The oldest version whose programs can use what has taken this step; None: those that could before it."""


class Stored(NamedTuple):
    """How far what is stored has come."""

    version: int
    """0: nothing is there."""
    oldest: int
    leaving: int = 0
    """A step back from this version has begun, and has not been seen to end; 0: none has."""

    @property
    def restoring(self) -> bool:
        """A restore has begun to fill it, and has not ended."""
        return self.oldest == RESTORING


class Schema:
    """All steps that this program knows.  ``first``: the version of the first release, before which nothing leads."""

    def __init__(self, *steps: Step, first: int = 1) -> None:
        assert 1 <= first <= len(steps)
        self.steps = steps
        self.first = first

    @property
    def version(self) -> int:
        """What this program knows."""
        return len(self.steps)

    def stored(self, version: int) -> Stored:
        """What is stored when these steps have been taken."""
        oldest = min(version, self.first)
        for step in self.steps[:version]:
            oldest = step.oldest or oldest
        return Stored(version, oldest)

    def missing(self, stored: Stored) -> Iterator[tuple[int, Step]]:
        """The steps that are to be taken, each with the version that it leads to."""
        return enumerate(self.steps[stored.version :], stored.version + 1)

    def check(self, stored: Stored, where: str) -> None:
        """Raises :class:`CannotOpen`, unless this program may use what is stored ``where``, after the missing steps."""
        if stored.restoring:
            raise CannotOpen(f"{where} was not restored to its end: {RESTORE_AGAIN}")
        if stored.oldest > self.version:
            raise CannotOpen(
                f"{where} was written by a newer Holdfast: its schema has version {stored.version}, which takes a "
                f"program that knows version {stored.oldest}, and this one knows versions up to {self.version}. Start "
                "the newer release, or go one step back with it: holdfast schema rollback"
            )
        if 0 < stored.leaving <= self.version:
            raise CannotOpen(
                f"{where} is on its way back from version {stored.leaving} of its schema to {stored.version}, which "
                "was begun and has not ended: run holdfast schema rollback again, or start the release before"
            )

    def way_back(self, stored: Stored, to: int | None, where: str) -> Iterator[tuple[int, Step]]:
        """The steps that are to be undone, each with the version that it leads back to; none, if that is so already.

        ``to``: a version, or None: one less than this program knows.  So who repeats it goes no further.
        Raises :class:`CannotRollBack`.
        """
        if stored.version > self.version:
            raise CannotRollBack(
                f"{where} was written by a newer Holdfast: its schema has version {stored.version}, and only a release "
                f"that knows it can undo it; this one knows versions up to {self.version}"
            )
        target = self.version - 1 if to is None else to
        if target < self.first:
            raise CannotRollBack(
                f"nothing leads back from version {self.version} of the schema to {target}: the first release had "
                f"version {self.first}, and so it is to be used"
            )
        if target > stored.version:
            raise CannotRollBack(f"{where} has version {stored.version} of its schema: nothing leads back to {target}")
        numbers = range(stored.version, target, -1)
        if final := [number for number in numbers if self.steps[number - 1].back is None]:
            raise CannotRollBack(
                f"nothing leads back from version {final[0]} of the schema: restore a backup of {where} that was made "
                "before, with the release that made it"
            )
        return ((number - 1, self.steps[number - 1]) for number in numbers)


def would_lose(where: str, query: str) -> CannotRollBack:
    """What to raise when a query of :attr:`Step.lost` has found a row."""
    return CannotRollBack(
        f"{where} has something that only the newer release knows, and the step back would lose it: nothing was "
        f"changed. What is in the way is found by: {query}"
    )

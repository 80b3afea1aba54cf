"""Schema versions of stored data: the programs that may use it, and the steps between versions.

A schema is a list of steps; the number of steps that stored data has taken is its *version*.  A program knows
the steps that existed when it was built.  Beside the version the *oldest* version is stored whose programs can
use the data as it is, so that a program can decide without knowing the later steps:

* the stored version is known to the program: it runs the missing steps, and continues;
* the stored version is newer, and ``oldest`` is known to the program: it continues, and changes nothing;
* ``oldest`` is newer than the program: it refuses (:meth:`Schema.check`).

So a step *expands*: it adds what the previous release neither reads nor has to write, and does not change
``oldest``. Then both releases work side by side, whichever ran the step, and going back to the previous release
needs no rollback.  A step that removes something, or that every program has to write, *contracts*: it comes a
release later, when no program needs what is removed, and raises ``oldest`` (:attr:`Step.oldest`).

A released step is never changed; later changes are steps of their own, at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from metadata_service.opening import CannotOpen

RESTORING: Final = 1_000_000
"""Value of ``oldest`` during a restore: higher than any program's version, also of earlier releases."""

RESTORE_AGAIN: Final = (
    "if holdfast restore runs, wait for it; else repeat that command, which goes on, or drop the keyspace and restore "
    "into another"
)
"""Advice for a store whose restore did not finish."""


class CannotRollBack(CannotOpen):
    """There is no rollback from here, or it would lose data; nothing was changed."""


class Step(NamedTuple):
    """Statements that lead from one version to the next, and back."""

    forward: tuple[str, ...]
    back: tuple[str, ...] | None = None
    """Statements of the rollback, in this order; None: there is none."""
    lost: tuple[str, ...] = ()
    """Queries for data that the rollback would lose: it is refused if one of them finds a row."""
    oldest: int | None = None
    """Oldest version whose programs can use data with this step; None: unchanged."""


class SchemaState(NamedTuple):
    """Schema state of stored data."""

    version: int
    """Version; 0: nothing is stored."""
    oldest: int
    leaving: int = 0
    """A rollback from this version has begun and was not seen to end; 0: none."""

    @property
    def restoring(self) -> bool:
        """True while a restore has begun and not ended."""
        return self.oldest == RESTORING


class Schema:
    """All steps that this program knows.  ``first``: version of the first release, to which a rollback may go
    at most."""

    def __init__(self, *steps: Step, first: int = 1) -> None:
        assert 1 <= first <= len(steps)
        self.steps = steps
        self.first = first

    @property
    def version(self) -> int:
        """Version of this program."""
        return len(self.steps)

    def stored(self, version: int) -> SchemaState:
        """State of stored data that has taken these steps."""
        oldest = min(version, self.first)
        for step in self.steps[:version]:
            oldest = step.oldest or oldest
        return SchemaState(version, oldest)

    def missing(self, stored: SchemaState) -> Iterator[tuple[int, Step]]:
        """Steps to run, each with the version that it leads to."""
        return enumerate(self.steps[stored.version :], stored.version + 1)

    def check(self, stored: SchemaState, where: str) -> None:
        """Raise :class:`CannotOpen`, unless this program may use the data stored ``where``, after the missing
        steps."""
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

    def way_back(self, stored: SchemaState, to: int | None, where: str) -> Iterator[tuple[int, Step]]:
        """Steps to undo, each with the version that it leads back to; empty if that is the version already.

        ``to``: a version, or None: one less than this program's.  Repeating it therefore goes no further.
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
    """Error for a query of :attr:`Step.lost` that has found a row."""
    return CannotRollBack(
        f"{where} has something that only the newer release knows, and the step back would lose it: nothing was "
        f"changed. What is in the way is found by: {query}"
    )

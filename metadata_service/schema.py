"""Schema versions of stored data: the programs that may use it, and the steps between versions.

A schema is a list of steps; the number of steps that stored data has taken is its *version*.  A program knows the steps
that existed when it was built.  Beside the version, the data has *oldest*: the oldest version whose programs can use it
as it is.  So a program can decide without knowing later steps:

* the stored version is known to the program: it runs the missing steps, and continues;
* the stored version is newer, and ``oldest`` is known to the program: it continues, and changes nothing;
* ``oldest`` is newer than the program: it refuses (:meth:`Schema.check`).

So a step *expands*: it adds what the previous release neither reads nor has to write, and does not change
``oldest``.  Then both releases work side by side, whichever ran the step, and going back to the previous release needs
no rollback.  A step that removes something, or that every program has to write, *contracts*: it follows a release
later, when no program needs what is removed, and raises ``oldest`` (:attr:`Step.oldest`).

A released step is never changed; later changes are steps of their own, at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from metadata_service.opening import CannotOpen

RESTORING: Final = 1_000_000
"""Value of ``oldest`` during a restore: higher than any program's version, also of earlier releases."""

RESTORE_AGAIN: Final = (
    "if holdfast restore is running, wait for it; otherwise repeat that command, which continues, or drop the "
    "keyspace and restore into another"
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
    """A rollback from this version was started and not seen to end; 0: none."""

    @property
    def restoring(self) -> bool:
        """True while a restore was started and not ended."""
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
            raise CannotOpen(f"{where} has an incomplete restore: {RESTORE_AGAIN}")
        if stored.oldest > self.version:
            raise CannotOpen(
                f"{where} was written by a newer Holdfast: its schema has version {stored.version}, which needs "
                f"a program that knows version {stored.oldest}, and this one knows versions up to "
                f"{self.version}. Start "
                "the newer release, or go one step back with it: holdfast schema rollback"
            )
        if 0 < stored.leaving <= self.version:
            raise CannotOpen(
                f"{where} has an incomplete rollback from version {stored.leaving} of its schema to "
                f"{stored.version}: run holdfast schema rollback again, or start the previous release"
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
                f"version {self.version} of the schema cannot be rolled back to {target}: the first release had "
                f"version {self.first}"
            )
        if target > stored.version:
            raise CannotRollBack(
                f"{where} has version {stored.version} of its schema, which cannot be rolled back to {target}"
            )
        numbers = range(stored.version, target, -1)
        if final := [number for number in numbers if self.steps[number - 1].back is None]:
            raise CannotRollBack(
                f"version {final[0]} of the schema cannot be rolled back: restore an earlier backup of {where}, "
                "with the release that made it"
            )
        return ((number - 1, self.steps[number - 1]) for number in numbers)


def would_lose(where: str, query: str) -> CannotRollBack:
    """Error for a query of :attr:`Step.lost` that has found a row."""
    return CannotRollBack(
        f"{where} has data that only the newer release understands, and the rollback would lose it: nothing was "
        f"changed. To find it: {query}"
    )

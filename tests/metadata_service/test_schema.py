"""The rule of schema versions: permitted programs, migration, and rollback."""

import pytest

from metadata_service.opening import CannotOpen
from metadata_service.schema import CannotRollBack, Schema, SchemaState, Step

FIRST = Step(("first",))
EXPAND = Step(("expand",), back=("shrink",), lost=("found",))
CONTRACT = Step(("contract",), back=("restore",), oldest=2)
FINAL = Step(("final",))

RELEASED = Schema(FIRST)
NEXT = Schema(FIRST, EXPAND)
AFTER = Schema(FIRST, EXPAND, CONTRACT)
LAST = Schema(FIRST, EXPAND, CONTRACT, FINAL)


@pytest.mark.parametrize(
    ("schema", "stored"),
    [(RELEASED, SchemaState(1, 1)), (NEXT, SchemaState(2, 1)), (AFTER, SchemaState(3, 2)), (LAST, SchemaState(4, 2))],
)
def test_only_expanding_steps_are_compatible_with_older_releases(schema: Schema, stored: SchemaState) -> None:
    assert schema.stored(schema.version) == stored


def test_versions_before_the_first_release_are_refused() -> None:
    grown = Schema(FIRST, FIRST, FIRST, EXPAND, first=3)
    assert [grown.stored(version).oldest for version in range(5)] == [0, 1, 2, 3, 3]


def test_the_steps_that_are_missing_are_taken_in_order() -> None:
    assert list(AFTER.missing(SchemaState(0, 0))) == [(1, FIRST), (2, EXPAND), (3, CONTRACT)]
    assert list(AFTER.missing(SchemaState(2, 1))) == [(3, CONTRACT)]
    assert list(AFTER.missing(SchemaState(3, 2))) == []
    assert list(NEXT.missing(SchemaState(3, 2))) == [], "the newer program's steps are not this one's"


def test_a_program_continues_with_what_it_can_use_and_refuses_what_it_cannot() -> None:
    for schema in (RELEASED, NEXT, AFTER):
        schema.check(NEXT.stored(2), "it")
    for stored in (AFTER.stored(3), LAST.stored(4)):
        NEXT.check(stored, "it")
        with pytest.raises(CannotOpen, match=r"it was written by a newer Holdfast: its schema has version \d, which"):
            RELEASED.check(stored, "it")


def test_a_half_rolled_back_schema_is_for_the_release_before() -> None:
    half = SchemaState(1, 1, leaving=2)
    RELEASED.check(half, "it")
    for schema in (NEXT, AFTER):
        with pytest.raises(CannotOpen, match="run holdfast schema rollback again, or start the previous release"):
            schema.check(half, "it")


def test_one_step_back_is_one_however_often_it_is_requested() -> None:
    assert list(AFTER.way_back(SchemaState(3, 2), None, "it")) == [(2, CONTRACT)]
    assert list(AFTER.way_back(SchemaState(2, 1), None, "it")) == []
    with pytest.raises(CannotRollBack, match="it has version 1 of its schema, which cannot be rolled back to 2"):
        AFTER.way_back(SchemaState(1, 1), None, "it")


def test_a_step_further_back_is_reported() -> None:
    assert list(AFTER.way_back(SchemaState(3, 2), 1, "it")) == [(2, CONTRACT), (1, EXPAND)]
    with pytest.raises(CannotRollBack, match="the first release had version 1"):
        AFTER.way_back(SchemaState(3, 2), 0, "it")
    with pytest.raises(CannotRollBack, match="the first release had version 1"):
        RELEASED.way_back(SchemaState(1, 1), None, "it")


def test_a_step_without_a_way_back_is_reported() -> None:
    with pytest.raises(
        CannotRollBack, match="version 4 of the schema cannot be rolled back: restore an earlier backup of it"
    ):
        LAST.way_back(SchemaState(4, 2), 1, "it")
    with pytest.raises(CannotRollBack, match="only a release that knows it can undo it; this one knows versions up"):
        NEXT.way_back(SchemaState(3, 2), None, "it")

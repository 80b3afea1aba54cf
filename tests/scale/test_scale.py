"""A small selection of ``make scale``: fewer nodes and queues, the same bounds."""

import pytest

from tests.scale.model import SHORT, BoundedFigure, rows, table


@pytest.fixture(scope="module")
def short() -> list[BoundedFigure]:
    return list(rows(SHORT))


def test_every_figure_keeps_its_bound(short: list[BoundedFigure]) -> None:
    assert [row for row in short if not row.kept] == []


def test_the_table_has_every_figure_and_marks_missed_goals(short: list[BoundedFigure]) -> None:
    text = table([*short, BoundedFigure("a figure", 3, "too many", 2)])
    assert all(row.what in text for row in short)
    assert text.count("**missed**") == 1

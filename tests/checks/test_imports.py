"""Imports of the project's files: no circles."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

from tests.checks.sources import imports


def test_no_files_import_each_other_in_a_circle() -> None:
    """Imports in functions and for type checking count: a circle of them has to be read as a whole as well."""
    product = {file: targets for file, targets in imports().items() if not file.startswith("tests/")}
    assert len(product) > 100
    try:
        TopologicalSorter(product).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None

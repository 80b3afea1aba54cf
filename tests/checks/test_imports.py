"""Imports of the project's files and rooms: no circles."""

import re
import tomllib
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.checks.sources import PACKAGES, ROOT, imports, modules, rooms

BACKEND_FLOORS_MAX = 8


def test_no_files_import_each_other_in_a_circle() -> None:
    """Imports in functions and for type checking count: a circle of them has to be read as a whole as well."""
    product = {file: targets for file, targets in imports().items() if not file.startswith("tests/")}
    assert len(product) > 100
    _order(product)


@pytest.mark.parametrize("package", [one for one in PACKAGES if one not in ("bench", "tests")])
def test_no_rooms_of_a_package_import_each_other_in_a_circle(package: str) -> None:
    _order(rooms(package))


def test_the_backend_has_few_floors() -> None:
    backend = rooms("backend")
    floors: dict[str, int] = {}
    for room in _order(backend):
        floors[room] = 1 + max((floors[below] for below in backend[room]), default=0)
    assert max(floors.values()) <= BACKEND_FLOORS_MAX


@pytest.mark.parametrize("package", ["backend", "frontend"])
def test_a_contract_names_the_imports_of_each_file(package: str) -> None:
    """import-linter ignores files that no layer contains."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers: set[str] = set()
    for contract in contracts:
        if contract["type"] == "layers":
            of = [f"{container}." for container in contract.get("containers", [])] or [""]
            layers.update(
                f"{one}{name}" for one in of for line in contract["layers"] for name in re.split(r" [|:] ", line)
            )
    inner = [name for name in layers if name.startswith(f"{package}.")]
    files = [file for file in modules() if file.startswith(f"{package}/") and not file.endswith("__init__.py")]
    assert len(files) > 30
    assert [
        file
        for file in files
        if not any(f"{file.removesuffix('.py').replace('/', '.')}.".startswith(f"{name}.") for name in inner)
    ] == []


def _order(graph: Mapping[str, set[str]]) -> list[str]:
    """Nodes, each after those that it imports.  Fails if there is a circle."""
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def test_only_the_tests_of_the_bench_import_the_bench() -> None:
    """Servers and clients that both need are in tests/servers."""
    assert [
        file
        for file, targets in imports().items()
        if file.startswith("tests/") and not file.startswith("tests/bench/")
        if any(target.startswith("bench/") for target in targets)
    ] == []

"""Chains of functions in docs/architecture.md: the functions that they name exist in the files that they name."""

import ast
import re

import pytest

from tests.checks.sources import ROOT, modules

_PATHS = (ROOT / "docs" / "architecture.md").read_text().partition("\n## The path of a call\n")[2].partition("\n## ")[0]
CHAINS = {title: text for title, _, text in (one.partition("\n") for one in _PATHS.split("\n### ")[1:])}
NAME = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)?)`(?: \(`([\w/]+\.py)`)?")
FILE = re.compile(r"`([\w/]+\.py)`")


def test_the_three_calls_that_matter_have_chains() -> None:
    assert {"SendMessage", "ReceiveMessage", "A usage record on its way to an invoice"} <= set(CHAINS)


@pytest.mark.parametrize("title", CHAINS)
def test_the_functions_of_a_chain_exist(title: str) -> None:
    """A name with a file is in that file; one without is in some file that the lists name."""
    steps = re.findall(r"^\d+\. (.+)$", CHAINS[title], re.MULTILINE)
    known = set[str]().union(*(_defined(file) for file in FILE.findall(_PATHS) if file in modules()))
    named = [name for step in steps for name in NAME.findall(step) if not name[0].endswith(".py")]
    assert len(steps) >= 5
    assert len(named) >= 5
    assert [
        f"{name} in {file or 'the files of the lists'}"
        for name, file in named
        if name not in (_defined(file) if file else known)
    ] == []


def _defined(file: str) -> set[str]:
    """Classes, methods and functions of a file."""
    found = set()
    for node in modules()[file].body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found.add(node.name)
            methods = (one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
            found.update(f"{node.name}.{one.name}" for one in methods)
    return found

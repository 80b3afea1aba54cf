"""Edits fit the source that they change, and what does not fit is refused."""

from __future__ import annotations

import inspect
import re
from functools import cache
from pathlib import Path

import pytest

from tests.simulator.mutations import focus
from tests.simulator.mutations.edits import Edit, EditError, edited, edited_functions
from tests.simulator.mutations.tables import CLUSTER, FOCUSES, ONE_NODE, ORDINARY, PUBLICATIONS, STREAMS
from tests.simulator.scenarios import SCENARIOS
from tests.simulator.world.cluster import ClusterWorld

HERE = f"{__name__}:"
WORD = re.compile(r"\w+")
ATTRIBUTE = re.compile(r"\.(\w+)")
ALL = {
    f"{room}-{name}": mutation
    for room, table in (
        ("one_node", ONE_NODE),
        ("ordinary", ORDINARY),
        ("cluster", CLUSTER),
        ("streams", STREAMS),
        ("publications", PUBLICATIONS),
    )
    for name, mutation in table.items()
}


class _Base:
    def named(self) -> str:
        return "base"


class _Example(_Base):
    @property
    def ready(self) -> bool:
        """True at once."""
        return True

    def named(self) -> str:
        name = super().named()
        assert name
        return name.upper()


@cache
def _words() -> set[str]:
    """Words of the code that mutations edit."""
    folders = ("backend", "frontend", "metadata_service", "holdfast", "tests/simulator")
    return {
        word for folder in folders for path in Path(folder).rglob("*.py") for word in WORD.findall(path.read_text())
    }


@pytest.mark.parametrize("mutation", ALL)
def test_mutation_fits_the_source(mutation: str) -> None:
    one = ALL[mutation]
    assert edited_functions(one.edits) or one.set
    assert one.scenario in SCENARIOS
    code = [text or "" for edit in one.edits for text in (edit.by, edit.first, edit.body)]
    assert {name for text in code for name in ATTRIBUTE.findall(text)} <= _words()
    if one.set:
        with one.taken_out(ClusterWorld(1, local=False)):
            pass


@pytest.mark.parametrize("name", FOCUSES)
def test_focus_fits_the_world(name: str) -> None:
    FOCUSES[name].apply(ClusterWorld(1, local=name == "power_after_seals", scenario="usual"))


def test_focuses_are_those_of_mutations() -> None:
    assert {one.focus for one in CLUSTER.values()} - {None} == FOCUSES.keys()
    aimed = {name for name, one in vars(focus).items() if inspect.isfunction(one) and one.__module__ == focus.__name__}
    assert {name for name in aimed if not name.startswith("_")} <= FOCUSES.keys()


@pytest.mark.parametrize(
    ("edit", "ready", "named"),
    [
        (Edit("_Example.ready", body="return False"), False, "BASE"),
        (Edit("_Example.named", replace="name.upper()", by="name * 2"), True, "basebase"),
        (Edit("_Example.named", replace="assert name\nreturn name.upper()", by="return name"), True, "base"),
        (Edit("_Example.named", replace="name.upper()", by="str(len(memo))"), True, "0"),
        (Edit("_Base.named", first='return "first"'), True, "FIRST"),
    ],
)
def test_function_is_edited_for_a_while(edit: Edit, ready: bool, named: str) -> None:
    edit.where = HERE + edit.where
    example = _Example()
    with edited([edit], {}):
        assert (example.ready, example.named()) == (ready, named)
    assert (example.ready, example.named()) == (True, "BASE")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (Edit("_Example.named", replace="gone", by=""), "has 0 times, and not once: gone"),
        (Edit("_Example.named", replace="name", by=""), "times, and not once: name"),
        (Edit("_Example.gone", body="pass"), "_Example.gone"),
        (Edit("_Example.named", body="return ("), "_Example.named"),
        (Edit("_Example.named", body="return self.name"), "other variables of its class"),
        (Edit("_Example.named", first="world = 1"), "variables of its own named {'world'}"),
        (Edit("_Example.named", first="renamed.clear()"), "no variables named {'renamed'}"),
        (Edit("_Example.named", first="pass", body="pass"), "one of replace, first and body"),
    ],
)
def test_stale_edit_is_refused(edit: Edit, message: str) -> None:
    edit.where = HERE + edit.where
    with pytest.raises(EditError, match=message):
        edited_functions([edit])

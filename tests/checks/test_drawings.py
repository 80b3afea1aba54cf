"""Drawings of the packages (docs/internals/packages.md): each shows the rooms and the imports that exist."""

import re
from collections.abc import Iterator

import pytest

from tests.checks.sources import PACKAGES, ROOT, rooms

DOCUMENT = ROOT / "docs" / "internals" / "packages.md"
NOT_DRAWN = ("bench", "helm", "tests")


@pytest.mark.parametrize("package", [one for one in PACKAGES if one not in NOT_DRAWN])
def test_the_drawing_of_a_package_shows_its_imports(package: str) -> None:
    """If it fails, the second list is the drawing as it has to be."""
    section = DOCUMENT.read_text().partition(f"\n## {package}\n")[2].partition("\n## ")[0]
    drawn = re.findall(r"```mermaid\n(.*?)```", section, re.DOTALL)
    assert [one.splitlines() for one in drawn] == [list(_drawing(package))]


def _drawing(package: str) -> Iterator[str]:
    """The lines of a drawing.  Arrows that follow from others are left out, so that it can be read."""
    below = {
        room.removeprefix(f"{package}/"): {one.removeprefix(f"{package}/") for one in targets}
        for room, targets in rooms(package).items()
        if not room.endswith("/__init__.py")
    }
    yield "flowchart LR"
    for room in sorted(below):
        yield f"    {_name(room)}[{room}]"
    for room, targets in sorted(below.items()):
        direct = sorted(targets - {deep for target in targets for deep in _reached(below, target)})
        if direct:
            yield f"    {_name(room)} --> {' & '.join(map(_name, direct))}"


def _reached(below: dict[str, set[str]], room: str) -> set[str]:
    """All rooms that a room imports, also through others."""
    return below[room].union(*(_reached(below, one) for one in below[room]))


def _name(room: str) -> str:
    """The room's name in the drawing's source."""
    return re.sub(r"\W", "_", room.strip("_").removesuffix(".py")).strip("_")

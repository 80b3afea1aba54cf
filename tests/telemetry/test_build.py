"""The compiled build: its modules, what it refuses, and how a process tells which build it is."""

from __future__ import annotations

import json
import os
import runpy
from pathlib import Path

import pytest

from holdfast.commands.main import main
from telemetry.build import COMPILED_MODULES, is_compiled
from tests.servers.server import Server

ROOT = Path(__file__).resolve().parents[2]
SETUP = runpy.run_path(str(ROOT / "setup.py"))
EXPECTED = os.environ.get("HOLDFAST_COMPILED") == "1"
"""``make test-compiled`` sets it."""


def test_a_process_tells_its_build(capsys: pytest.CaptureFixture[str]) -> None:
    assert is_compiled() == EXPECTED
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.endswith(" (compiled)\n" if EXPECTED else " (not compiled)\n")


def test_servers_under_test_are_of_this_build(tmp_path: Path) -> None:
    with Server(tmp_path / "service") as server:
        status, answer = server.http("GET", "/health/live")
    assert status == 200
    assert json.loads(answer)["compiled"] == EXPECTED


@pytest.mark.parametrize("module", COMPILED_MODULES)
def test_no_compiled_module_has_classes_whose_keywords_mypyc_would_drop(module: str) -> None:
    source = (ROOT / (module.replace(".", "/") + ".py")).read_text()
    assert list(SETUP["dropped_keywords"](source)) == []


def test_classes_with_keywords_are_found() -> None:
    source = "class A(Struct): ...\ndef f():\n    class B(Struct, frozen=True): ...\nclass C(metaclass=Meta): ...\n"
    assert sorted(SETUP["dropped_keywords"](source)) == ["B", "C"]


def test_nothing_is_compiled_beside_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_COMPILED", "1")
    monkeypatch.setattr("sys.argv", ["setup.py", "editable_wheel"])
    with pytest.raises(SystemExit, match="would shadow them"):
        SETUP["main"]()


def test_no_compiled_module_is_beside_the_sources() -> None:
    for module in COMPILED_MODULES:
        folder = (ROOT / module.replace(".", "/")).parent
        assert not [*folder.glob("*.so"), *folder.glob("*.pyd")], f"{folder} has compiled modules, which shadow sources"

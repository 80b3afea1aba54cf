"""Properties of the project: its import contracts, and its locked dependencies."""

import re
import tomllib
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

from holdfast import __version__

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("build", "base", "dev")


def test_the_arrows_between_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    # The linter would disable every existing logger, for all later tests in this process.
    monkeypatch.setattr("logging.config.dictConfig", lambda config: None)
    assert lint_imports(config_filename="pyproject.toml", no_cache=True) == 0


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_names_no_host_and_hashes_everything(name: str) -> None:
    lock = (ROOT / "requirements" / f"{name}.txt").read_text()
    assert not re.search(r"https?://|--(extra-)?index-url|--find-links|@ ", lock)
    pins = re.findall(r"^[A-Za-z0-9][^\n]*", lock, re.MULTILINE)
    assert pins
    assert all("==" in pin and pin.endswith("\\") for pin in pins)
    assert lock.count("--hash=sha256:") >= len(pins)


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_all_required_packages(name: str) -> None:
    asked = (ROOT / "requirements" / f"{name}.in").read_text().splitlines()
    lock = (ROOT / "requirements" / f"{name}.txt").read_text().lower()
    for line in asked:
        wanted = re.match(r"[A-Za-z0-9_.-]+", line.partition("#")[0])
        if wanted and not line.startswith("-"):
            assert re.search(rf"^{re.escape(wanted[0].lower())}==", lock, re.MULTILINE), wanted[0]


def test_the_version_stands_in_one_more_place_only() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == __version__
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()

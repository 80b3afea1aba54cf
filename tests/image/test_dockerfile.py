"""Paths in the Dockerfile exist: images are built rarely, and packages are added often."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
LET_IN = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]


def copied() -> set[str]:
    """Return the paths copied from this folder."""
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    return {name for line in lines for name in line.split()}


def test_all_packages_are_in_the_image() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {pattern.rstrip("*") for pattern in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    assert packages <= copied()


def test_copied_credentials_exist_and_are_accepted() -> None:
    for name in copied():
        assert list(ROOT.glob(name)), name
        assert name.split("/")[0] in LET_IN or name in LET_IN, name
    assert all((ROOT / name).exists() for name in LET_IN)


def test_each_lock_file_that_is_installed_checks_hashes() -> None:
    locks = set(re.findall(r"-r (requirements/\S+)", DOCKERFILE))
    assert {Path(lock).stem for lock in locks} == {"build", "base", "compiled", "billing", "spark", "sbom"}
    for command in re.findall(r"pip install .*", DOCKERFILE):
        assert "--require-hashes" in command or "--no-deps" in command
    for lock in locks:
        text = (ROOT / lock).read_text()
        assert len(re.findall(r"^\S+==", text, re.MULTILINE)) <= text.count("--hash=sha256:")


def test_only_the_stage_of_the_wheel_has_a_compiler() -> None:
    stages = re.findall(r"^FROM (\S+) AS (\S+)\n(.*?)(?=^FROM|\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)
    assert len(stages) == len(re.findall(r"^FROM", DOCKERFILE, re.MULTILINE))
    assert [name for _, name, commands in stages if re.search(r"\bgcc\b", commands)] == ["wheel"]
    assert "wheel" not in {base for base, _, _ in stages}
    assert re.findall(r"--from=wheel (.+)$", DOCKERFILE, re.MULTILINE) == ["/wheel /wheel"]


def test_the_image_is_compiled_by_the_mypy_that_is_tested() -> None:
    compiled, tested = (
        set(re.findall(r"^\S+==\S+", (ROOT / "requirements" / lock).read_text(), re.MULTILINE))
        for lock in ("compiled.txt", "dev.txt")
    )
    assert compiled <= tested

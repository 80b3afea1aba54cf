"""Tables of tests: YAML in the folder of the test."""

import functools
from pathlib import Path
from typing import Any

import yaml


def table(test_file: str, name: str) -> Any:
    """Return the table of this name, most often a list of rows, in ``tables.yaml``."""
    return beside(test_file, "tables.yaml")[name]


def beside(test_file: str, name: str) -> Any:
    """Return the content of the file of this name; not to be changed."""
    return _content(Path(test_file).with_name(name))


@functools.cache
def _content(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))

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


def read_yaml(path: Path) -> Any:
    """Return the content of a file, parsed in C: each worker reads 20,000 lines of tables."""
    return yaml.load(path.read_text("utf-8"), yaml.CSafeLoader)


_content = functools.cache(read_yaml)

"""Sizes of folders: an engineer finds a file by reading one short list."""

import collections
from pathlib import PurePosixPath

from tests.checks.sources import modules

FILES_MAX = 16


def test_no_folder_has_too_many_files() -> None:
    sizes = collections.Counter(str(PurePosixPath(file).parent) for file in modules())
    assert {folder: size for folder, size in sizes.items() if size > FILES_MAX} == {}

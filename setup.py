"""Build of the wheel.  With HOLDFAST_COMPILED=1 it contains the hot modules also compiled with mypyc.

A compiled module shadows its source, so it is never put beside the sources: everything is built under .cache/compiled,
and an editable install cannot be compiled.
"""

from __future__ import annotations

import ast
import os
import runpy
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from setuptools import setup

ROOT = Path(__file__).resolve().parent
FOLDER = Path(".cache", "compiled")
"""Relative to ROOT."""
SHARED_LIBRARY = "holdfast"
"""Prefix of the module that has the code of all compiled modules."""


def sources() -> list[Path]:
    """Return the files of the modules to be compiled."""
    modules = runpy.run_path(str(ROOT / "telemetry" / "build.py"))["COMPILED_MODULES"]
    return [ROOT / (module.replace(".", "/") + ".py") for module in modules]


def dropped_keywords(source: str) -> Iterator[str]:
    """Yield the classes of a module that have keywords, which mypyc drops without a word.

    So a ``msgspec.Struct`` with ``frozen=True`` could be changed, and one with ``array_like=True`` would be encoded as
    an object.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and node.keywords:
            yield node.name


def extensions() -> list[Any]:
    """Translate the modules, and return the extensions to be built."""
    files = sources()
    for file in files:
        for name in dropped_keywords(file.read_text()):
            raise SystemExit(f"setup.py: {file.relative_to(ROOT)}: mypyc would drop the keywords of class {name}")
    from mypyc.build import mypycify

    found = mypycify(
        [
            "--config-file=pyproject.toml",
            f"--cache-dir={FOLDER / 'mypy'}",
            *(str(file.relative_to(ROOT)) for file in files),
        ],
        target_dir=str(FOLDER / "c"),
        group_name=SHARED_LIBRARY,
        multi_file=True,  # one C file for all modules takes the C compiler several times as long
        debug_level="0",
    )
    for extension in found:
        extension.sources = [os.path.relpath(source) for source in extension.sources]
        extension.depends = [os.path.relpath(source) for source in extension.depends]
        # mypyc's C code has warnings with some compilers, which no change of ours avoids.
        extension.extra_compile_args = [a for a in extension.extra_compile_args if a != "-Werror"] + ["-w"]
    return list(found)


def main() -> None:
    if os.environ.get("HOLDFAST_COMPILED") != "1":
        setup()
    elif "editable_wheel" in sys.argv:
        raise SystemExit("setup.py: compiled modules beside their sources would shadow them: build a wheel")
    elif "bdist_wheel" in sys.argv:
        os.chdir(ROOT)
        shutil.rmtree(FOLDER / "build", ignore_errors=True)  # modules no longer listed would stay in the wheel
        options = {"build": {"build_base": str(FOLDER / "build")}, "egg_info": {"egg_base": str(FOLDER)}}
        setup(ext_modules=extensions(), options=options)
    else:
        setup()  # pip asks for the metadata first


if __name__ == "__main__":
    main()

"""The project's own Python files, parsed, with their docstrings and definitions."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "auth",
    "backend",
    "bench",
    "billing",
    "frontend",
    "helm",
    "holdfast",
    "metadata_service",
    "ratelimit",
    "spark_analytics",
    "telemetry",
    "tests",
)


class SourceLine(NamedTuple):
    """A line of a file, relative to the project's folder."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Every file's syntax tree, by its path relative to the project's folder."""
    files = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_bytes())
        for path in files
        if "node_modules" not in path.parts
    }


def docstrings(package: str) -> Iterator[tuple[SourceLine, str]]:
    """Docstrings of a package's modules, classes and functions, and the strings below attributes."""
    for file, module in modules().items():
        if not file.startswith(f"{package}/"):
            continue
        for node in ast.walk(module):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                for index, statement in enumerate(node.body):
                    text = _text(statement)
                    if text is not None and (index == 0 or _is_assignment(node.body[index - 1])):
                        yield SourceLine(file, statement.lineno), text


def functions() -> Iterator[tuple[SourceLine, str]]:
    """Functions and methods, by their names."""
    for file, module in modules().items():
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield SourceLine(file, node.lineno), node.name


def classes() -> Iterator[tuple[SourceLine, str]]:
    """Public classes at the top of a module, by their names."""
    for file, module in modules().items():
        for node in module.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield SourceLine(file, node.lineno), node.name


def _text(statement: ast.stmt) -> str | None:
    match statement:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return text.strip()
    return None


def _is_assignment(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign | ast.AnnAssign)


@functools.cache
def imports() -> dict[str, set[str]]:
    """The imports of each file of the project, also those in functions and for type checking, as paths of files."""
    names = {_module(file): file for file in modules() if not file.endswith("__init__.py")}
    return {
        file: {names[name] for name in _imported(module) if name in names and names[name] != file}
        for file, module in modules().items()
    }


def rooms(package: str) -> dict[str, set[str]]:
    """The imports between a package's rooms: its folders, and the files beside them."""
    found: dict[str, set[str]] = {}
    for file, targets in imports().items():
        if file.startswith(f"{package}/"):
            own = _room(file)
            found.setdefault(own, set()).update(
                room for target in targets if target.startswith(f"{package}/") and (room := _room(target)) != own
            )
    return found


def _room(file: str) -> str:
    folder = PurePosixPath(file).parent
    return file if len(folder.parts) == 1 else str(folder)


def _module(file: str) -> str:
    return file.removesuffix(".py").replace("/", ".")


def _imported(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)

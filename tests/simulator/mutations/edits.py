"""Edits of the source of functions, for the length of a run.

An edit names a function (``in: backend.journal.local.log:LocalLog._committed``) and says what its source is instead:
``replace`` is a text that occurs in it exactly once, whatever the indentation of its lines, and ``by`` the text in its
place; ``first`` is code before the first statement; ``body`` stands for all statements.  The function stays the same
object and only its code is exchanged, so the edit counts wherever the function was imported, and for properties too.

``world`` is the cluster of the run in edited code, and ``memo`` a dictionary that lasts as long as the edits.
"""

from __future__ import annotations

import ast
import builtins
import dis
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import CodeType, FunctionType
from typing import Any
from unittest import mock

import msgspec

from tests.simulator.scenarios import attribute_at

GIVEN = ("world", "memo")
"""Variables that edited code has besides its own."""


class EditError(Exception):
    """An edit does not fit the source: its function or its text is gone, or the text occurs more than once."""


class Edit(msgspec.Struct, forbid_unknown_fields=True, rename={"where": "in"}):
    where: str
    replace: str | None = None
    by: str = ""
    first: str | None = None
    body: str | None = None

    def apply(self, source: str) -> str:
        """Return the edited source of the function."""
        if [self.replace, self.first, self.body].count(None) != 2:
            raise EditError(f"{self.where}: one of replace, first and body")
        if self.replace is not None:
            lines = self.replace.strip().splitlines()
            found = list(re.finditer(r"\n *".join(re.escape(line.strip()) for line in lines), source))
            if len(found) != 1:
                raise EditError(f"{self.where} has {len(found)} times, and not once: {self.replace}")
            start, end = found[0].span()
            indent = " " * _indent_of(source[source.rfind("\n", 0, start) + 1 :])
            return source[:start] + self.by.strip().replace("\n", "\n" + indent) + source[end:]
        statements = _parsed(source).body
        if ast.get_docstring(_parsed(source)) is not None:
            statements = statements[1:] or statements
        lines = source.splitlines()
        at = statements[0].lineno - 1
        new = textwrap.indent((self.first or self.body or "").strip(), " " * _indent_of(lines[at]))
        return "\n".join([*lines[:at], new, *(lines[at:] if self.first is not None else ())])


def _indent_of(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _parsed(source: str) -> ast.FunctionDef | ast.AsyncFunctionDef:
    function = ast.parse(source).body[0]
    assert isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
    return function


def _resolve(place: str, world: object) -> tuple[Any, str]:
    """Return the owner of what ``module:Class.name`` names, or ``world:attribute.name``, and its name there."""
    module, _, path = place.partition(":")
    return attribute_at(world if module == "world" else importlib.import_module(module), path)


def function_at(place: str) -> FunctionType:
    """Return the function that an edit names."""
    try:
        owner, name = _resolve(place, None)
        found: Any = inspect.getattr_static(owner, name)
    except (ImportError, AttributeError) as error:
        raise EditError(f"{place}: {error}") from error
    function = inspect.unwrap(getattr(found, "fget", getattr(found, "__func__", found)))
    assert isinstance(function, FunctionType), place
    return function


def compiled(function: FunctionType, source: str) -> CodeType:
    """Return the code of a function with this source, which shares its enclosing function's variables and class."""
    closure = function.__code__.co_freevars
    module = ast.parse(f"from __future__ import annotations\ndef enclosing({', '.join(closure)}): pass")
    enclosing = module.body[1]
    assert isinstance(enclosing, ast.FunctionDef)
    enclosing.body = [_parsed(source)]
    (outer,) = _codes_in(compile(module, f"<{function.__qualname__}, edited>", "exec"))
    (code,) = (one for one in _codes_in(outer) if one.co_name == function.__name__)
    if code.co_freevars != closure:
        raise EditError(f"{function.__qualname__} needs other variables of its class or enclosing function")
    if taken := {*GIVEN} & {*code.co_varnames, *code.co_cellvars}:
        raise EditError(f"{function.__qualname__} has variables of its own named {taken}")
    if unknown := _globals_of(code) - function.__globals__.keys() - vars(builtins).keys() - {*GIVEN}:
        raise EditError(f"{function.__qualname__} has no variables named {unknown}")
    return code


def _codes_in(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _globals_of(code: CodeType) -> set[str]:
    """Return the names of the global variables that the code reads."""
    read = {one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL"}
    return read.union(*map(_globals_of, _codes_in(code)))


def edited_functions(edits: Sequence[Edit]) -> dict[FunctionType, CodeType]:
    """Return the functions that these edits change, each with its new code.  Raises :class:`EditError`."""
    sources: dict[FunctionType, str] = {}
    try:
        for edit in edits:
            function = function_at(edit.where)
            source = sources.get(function) or textwrap.dedent(inspect.getsource(function))
            sources[function] = edit.apply(source)
        return {function: compiled(function, source) for function, source in sources.items()}
    except SyntaxError as error:
        raise EditError(f"{edit.where}: {error}") from error


@contextmanager
def edited(edits: Sequence[Edit], values: Mapping[str, object], world: object = None) -> Iterator[None]:
    """Change the source of functions, and set values (``module:NAME`` or ``world:attribute.name``), for a while."""
    given = dict(zip(GIVEN, (world, {}), strict=True))
    with ExitStack() as stack:
        functions = edited_functions(edits)
        for variables in {id(function.__globals__): function.__globals__ for function in functions}.values():
            if taken := given.keys() & variables.keys():
                raise EditError(f"{variables['__name__']} has variables of its own named {taken}")
            variables.update(given)
            for name in given:
                stack.callback(variables.pop, name)
        for function, code in functions.items():
            stack.callback(setattr, function, "__code__", function.__code__)
            function.__code__ = code
        for place, value in values.items():
            stack.enter_context(mock.patch.object(*_resolve(place, world), value))
        yield

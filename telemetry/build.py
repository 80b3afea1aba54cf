"""The build that runs: all modules as they are written, or the hot ones compiled with mypyc (``make compiled``)."""

from __future__ import annotations

from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from typing import Final

COMPILED_MODULES: Final = (
    # signatures: many short byte strings are compared, joined and looked up
    "auth.cache",
    "auth.guessing",
    "auth.lookup",
    "auth.signatures.percent",
    "auth.signatures.sigv4",
    # connection: a state machine with many small methods
    "holdfast.http.connection",
    "holdfast.http.request_cycle",
)
"""Modules that the compiled build translates.  docs/decisions/0028-compiled-rooms.md has the gain of each room."""


@cache
def is_compiled() -> bool:
    """Return True if this process runs the compiled build."""
    spec = find_spec(COMPILED_MODULES[0])
    assert spec is not None
    assert spec.origin is not None
    return spec.origin.endswith(tuple(EXTENSION_SUFFIXES))

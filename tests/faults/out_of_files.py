"""A process that has no file descriptor left: it can open no file and take no connection for a while."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.faults.forms import Form

TAKEN = 3
"""Descriptors that every process has: so it may keep what it has, and open nothing more."""
OUT_SECONDS = 6.0


@contextmanager
def no_free_files(pid: int) -> Iterator[None]:
    """Let the process open no more files meanwhile."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (TAKEN, hard))
    try:
        yield
    finally:
        try:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        except ProcessLookupError:
            pass  # it has ended, and another one is in its place, which has what it needs


def out_of_files(form: Form, name: str, seconds: float = OUT_SECONDS) -> None:
    """A process of the form has no descriptor left for a while."""
    with no_free_files(form.pid(name)):
        time.sleep(seconds)

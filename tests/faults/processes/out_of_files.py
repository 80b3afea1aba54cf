"""A process without free file descriptors: for a while it can neither open files nor accept connections."""

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.faults.campaign.forms import Form

TAKEN = 3
"""Limit of descriptors that every process exceeds: it keeps those it has, and opens none."""
OUT_SECONDS = 6.0


@contextmanager
def no_free_files(pid: int) -> Iterator[None]:
    """Let the process open no files during the block."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (TAKEN, hard))
    try:
        yield
    finally:
        try:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        except ProcessLookupError:
            pass  # it has ended, and its replacement has the normal limit


def out_of_files(form: Form, name: str) -> None:
    """Leave a process of the form without free descriptors for a while."""
    with no_free_files(form.pid(name)):
        time.sleep(OUT_SECONDS)

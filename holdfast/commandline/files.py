"""Output files of commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def put(file: Path, content: bytes) -> None:
    """Write a file atomically.  Raises :class:`OSError`, which names the file."""
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        aside.write_bytes(content)
        aside.replace(file)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from None
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def complete_file(path: Path | None) -> Iterator[BinaryIO]:
    """Output file, which appears under its name only when complete; None: standard output.

    Raises :class:`~holdfast.commandline.client.CommandFailed`.
    """
    from holdfast.commandline.client import CommandFailed

    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    aside = path.with_name(f"{path.name}.partial")
    try:
        if path.exists():
            raise CommandFailed(f"{path} already exists: name another file, or move that one away")
        with aside.open("wb") as output:
            yield output
        aside.replace(path)
    except OSError as error:
        raise CommandFailed(f"{error.filename or aside} cannot be written: {error.strerror}") from None
    finally:
        aside.unlink(missing_ok=True)

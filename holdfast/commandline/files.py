"""Output files of commands."""

from __future__ import annotations

import os
from pathlib import Path


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

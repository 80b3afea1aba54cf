"""Container engine of this machine."""

from __future__ import annotations

import shutil
import subprocess


class NoEngine(Exception):
    """No engine is installed; the text says what is needed."""


def engine() -> str:
    """Return docker or podman, whichever works.  Raises :class:`NoEngine`."""
    for name in ("docker", "podman"):
        if shutil.which(name) is not None and _works(name):
            return name
    raise NoEngine("this needs docker or podman, to run the image with")


def _works(name: str) -> bool:
    return subprocess.run([name, "info"], capture_output=True, timeout=60, check=False).returncode == 0

"""Clock and disk faults for processes that are not Python, by a library (``wrong.c``) preloaded before libc."""

import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).parent / "wrong.c"


class NoCompiler(Exception):
    """The library cannot be compiled on this machine."""


def make_library(folder: Path) -> Path:
    """Compile the library in this folder; returns its path.  Raises :class:`NoCompiler`."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise NoCompiler("there is no cc on this machine: clocks and disks of Cassandra cannot be made wrong")
    made = folder / "wrong.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", str(made), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=60)
    return made


class Wrong:
    """Faults of one process; at first, none."""

    def __init__(self, library: Path, name: str) -> None:
        self._library = library
        self._file = library.parent / f"{name}.wrong"
        self.set()

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "FAULTS_WRONG": str(self._file)}

    def set(self, *, clock_seconds: float = 0.0, sync_seconds: float = 0.0) -> None:
        """Set the clock's offset, and the delay of each sync, from now on."""
        numbers = struct.pack("=qq", int(clock_seconds * 1e9), int(sync_seconds * 1e9))
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(numbers)  # in place: the process has mapped the file

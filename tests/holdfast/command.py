"""Commands run for tests: in this process, or each as a process of its own."""

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self
from unittest import mock

from holdfast.commands.main import main
from tests.servers.server import REPOSITORY, Server, clean_environment


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


def holdfast(
    server: Server, *arguments: str | Path, data: bool = True, environment: Mapping[str, str] | None = None
) -> CommandResult:
    """Run a command in this process, non-interactively; ``data``: authenticated by the data folder."""
    with mock.patch.dict(os.environ, _environment(server, environment), clear=True):
        return plainly(*_command(server, *arguments, data=data))


def plainly(*arguments: str | Path) -> CommandResult:
    """Run a command with exactly these arguments and the environment as it is."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with (
        open(os.devnull) as no_input,
        mock.patch.object(sys, "stdin", no_input),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as exit_:
            code = int(str(exit_.code))
    out.flush()
    assert isinstance(out.buffer, io.BytesIO)
    return CommandResult(code, out.buffer.getvalue().decode(), err.getvalue())


def checked(*arguments: str | Path, code: int = 0) -> CommandResult:
    """Run a command plainly, which must end with this code."""
    done = plainly(*arguments)
    assert done.code == code, done
    return done


END_OF_INPUT = "\x04"
"""Ctrl-D."""


def process(server: Server, *arguments: str | Path, typed: str | None = None) -> CommandResult:
    """Run a command as a process; ``typed``: whole lines at a terminal, where the end of the input follows them."""
    ours, terminal = pty.openpty()
    try:
        os.write(ours, f"{typed or ''}{END_OF_INPUT}".encode())
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *_command(server, *arguments)],
            env=_environment(server),
            stdin=subprocess.DEVNULL if typed is None else terminal,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(ours)
        os.close(terminal)
    return CommandResult(done.returncode, done.stdout, done.stderr)


def started(
    server: Server, *arguments: str | Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a command as a process, without its output."""
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast", *_command(server, *arguments)],
        env=_environment(server, environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


class PipedCommand:
    """A command as a process, whose outputs are read while it runs."""

    def __init__(self, *arguments: str | Path, module: str = "holdfast", **settings: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            cwd=REPOSITORY,
            env=clean_environment() | {f"HOLDFAST_{name.upper()}": value for name, value in settings.items()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_accept_sigint,
        )
        self.printed = ""
        """Standard output, as far as it was read."""

    def wait_for(self, pattern: str) -> Self:
        """Wait until it has printed a line in which the pattern is found."""
        assert self.process.stdout is not None
        while not re.search(pattern, self.printed):
            line = self.process.stdout.readline()
            assert line, self.process.communicate()[1]
            self.printed += line
        return self

    def end(self) -> tuple[int, str]:
        """Wait for the end; returns the exit code and standard error."""
        out, errors = self.process.communicate(timeout=60)
        self.printed += out
        return self.process.returncode, errors

    def close(self) -> None:
        """Kill it, if it has not ended."""
        if self.process.poll() is None:
            self.process.kill()
        if self.process.stdout is not None and not self.process.stdout.closed:
            self.process.communicate(timeout=60)


class TerminalCommand:
    """A command as a process at a terminal of 100 columns and 24 lines, authenticated by the data folder."""

    def __init__(self, server: Server, *arguments: str | Path) -> None:
        self._ours, self._terminal = pty.openpty()
        termios.tcsetwinsize(self._terminal, (24, 100))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *_command(server, *arguments)],
            env=_environment(server, {"TERM": "xterm-256color"}),
            stdin=self._terminal,
            stdout=self._terminal,
            stderr=self._terminal,
            preexec_fn=_control_terminal,  # so that Ctrl-C is a signal
        )
        self.printed = ""
        """Output, as far as it was read."""
        self._matched = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._terminal)

    def wait_for(self, pattern: str) -> None:
        """Wait until the pattern is found in the output behind the last one; styles do not count."""
        deadline = time.monotonic() + 60
        while True:
            found = re.search(pattern, re.sub(r"\x1b\[[0-9;]*m", "", self.printed[self._matched :]))
            if found:
                self._matched = len(self.printed)
                return
            assert time.monotonic() < deadline, self.printed
            self._read(1.0)

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def end(self) -> int:
        """Wait for the end; returns the exit code."""
        while self.process.poll() is None:
            self._read(0.1)
        self._read(0.0)
        return self.process.returncode

    @property
    def echoes(self) -> bool:
        """True if the terminal shows what is typed, and passes whole lines on."""
        return bool(termios.tcgetattr(self._terminal)[3] & (termios.ECHO | termios.ICANON))

    def _read(self, seconds: float) -> None:
        while select.select([self._ours], [], [], seconds)[0]:
            self.printed += os.read(self._ours, 65_536).decode(errors="replace")
            seconds = 0.0


@contextlib.contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt at SIGINT also in a process that a shell runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _accept_sigint() -> None:
    """Undo that SIGINT is ignored, as in processes that a shell runs in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _control_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    _accept_sigint()


def _command(server: Server, *arguments: str | Path, data: bool = True) -> list[str]:
    return [*map(str, arguments), *(["--data", str(server.data)] if data else [])]


def _environment(server: Server, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment in which the server's data folder is read with the server's settings."""
    return {
        **clean_environment(),
        **server.settings,
        "HOLDFAST_ENDPOINT": server.endpoint,
        "PYTHONPATH": str(REPOSITORY),
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        **(more or {}),
    }

"""Servers: contexts that are closed whatever happens in between, and processes that end with this one."""

import http.client
import os
import signal
import socket
import ssl
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.servers import proc

STOP_SECONDS_MAX = 60.0


class ServerContext(ABC):
    """A server, or several, in a ``with``.  One that fails to start is also closed."""

    @abstractmethod
    def start(self) -> object: ...

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def is_free(host: str, port: int) -> bool:
    """Return whether a server can listen on this TCP port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def is_ready(port: int, trust: ssl.SSLContext | None = None) -> bool:
    """Return whether a Holdfast's ``/health/ready`` answers 200 on this loopback port now.  ``trust``: by TLS."""
    connection = (
        http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        if trust is None
        else http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=trust)
    )
    with closing(connection):
        try:
            connection.request("GET", "/health/ready")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False


class KeptProcess:
    """A process that can be ended, suspended and started again.

    When the process that started it ends, it ends too, and its folder is removed.
    """

    def __init__(self, name: str, log_file: Path, folder: Path) -> None:
        self.name = name
        self.log_file = log_file
        """Output of all its starts."""
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper: subprocess.Popen[bytes] | None = None

    def launch(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the process in the folder of its log."""
        assert not self.running, f"{self.name} is running"
        self._forget()
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.log_file.parent,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a terminal's interrupt goes only to the process that started it
            )
        self._keeper = subprocess.Popen(
            ["sh", "-c", 'read _; kill -9 "$1"; rm -rf "$2"', "keeper", str(self._process.pid), str(self._folder)],
            stdin=subprocess.PIPE,  # ends with this process
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        """True if it was started, and has not ended since."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Exit code of its last run; None: it runs, or was never started."""
        return self._process.poll() if self._process is not None else None

    def kill(self) -> None:
        """Send SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Send SIGTERM, and SIGKILL if that does not end it; return the exit code."""
        return self._end(signal.SIGTERM)

    def pause(self) -> None:
        """Send SIGSTOP: it keeps its connections and does not answer."""
        proc.pause(self.pid)

    def resume(self) -> None:
        """Send SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, how: int) -> int:
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.send_signal(how)
            self._process.send_signal(signal.SIGCONT)  # a suspended process would not handle the other signal
        try:
            code = self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._forget()
        return code

    def _forget(self) -> None:
        self._process = None
        if self._keeper is not None:
            self._keeper.kill()
            self._keeper.communicate()
            self._keeper = None

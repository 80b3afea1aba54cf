"""A real Redis, for the bench and for tests: on a socket of its own, without persistence."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import redis

from bench.servers.started import ServerContext

READY_SECONDS = 30


class RedisServer(ServerContext):
    """A Redis that is started by :meth:`start`, and can be killed, suspended, flushed and started again."""

    def __init__(self) -> None:
        program = shutil.which("redis-server")
        assert program is not None, "this needs redis-server (Debian, Ubuntu: sudo apt-get install redis-server)"
        self._program = program
        self._folder = Path(tempfile.mkdtemp(prefix="redis-"))  # pytest's own folders are too long for a socket's path
        self._socket = self._folder / "socket"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self._socket}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """True if it was started, and has not ended since."""
        return self._process is not None and self._process.poll() is None

    @property
    def client(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(self._socket))

    def start(self) -> None:
        self._process = subprocess.Popen(
            [self._program, "--port", "0", "--unixsocket", str(self._socket), "--save", "", "--appendonly", "no"],
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                with self.client as client:
                    client.ping()
                return
            except redis.RedisError:
                assert self._process.poll() is None, "redis-server ended"
                assert time.monotonic() < deadline, "redis-server does not answer"
                time.sleep(0.01)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def flush(self) -> None:
        with self.client as client:
            client.flushall()
            client.script_flush()

    def pause(self, seconds: float) -> None:
        """Accept calls without answering them for this time."""
        with self.client as client:
            client.client_pause(int(seconds * 1000), all=True)

    def close(self) -> None:
        if self._process is not None:
            self.kill()
        shutil.rmtree(self._folder)

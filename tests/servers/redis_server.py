"""A real Redis, for the bench and for tests: on a socket of its own, without persistence."""

import os
import shutil
import tempfile
from pathlib import Path

import redis

from tests.servers.started import KeptProcess, ServerContext
from tests.servers.waiting import wait_until

READY_SECONDS = 30


class RedisServer(KeptProcess, ServerContext):
    """A Redis that is started by :meth:`start`, and can be killed, stalled, flushed and started again."""

    def __init__(self) -> None:
        program = shutil.which("redis-server")
        assert program is not None, "this needs redis-server (Debian, Ubuntu: sudo apt-get install redis-server)"
        folder = Path(tempfile.mkdtemp(prefix="redis-"))  # pytest's own folders are too long for a socket's path
        super().__init__("redis-server", folder / "log", folder)
        self._socket = str(folder / "socket")
        self._command = [program, "--port", "0", "--unixsocket", self._socket, "--save", "", "--appendonly", "no"]

    @property
    def url(self) -> str:
        return f"unix://{self._socket}"

    @property
    def client(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=self._socket)

    def start(self) -> None:
        self.launch(self._command, os.environ)
        wait_until(self._answers, "redis-server answers", READY_SECONDS)

    def _answers(self) -> bool:
        assert self.running, f"redis-server ended:\n{self.log_file.read_text()}"
        try:
            with self.client as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def flush(self) -> None:
        with self.client as client:
            client.flushall()
            client.script_flush()

    def stall(self, seconds: float) -> None:
        """Accept calls without answering them for this time."""
        with self.client as client:
            client.client_pause(int(seconds * 1000), all=True)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self._folder)

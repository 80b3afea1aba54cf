"""Keep-alive connections without a call in progress, held by processes of their own: one has too few files for all.

``python -m bench.idle_callers PORT CONNECTIONS ADDRESS`` is one of these processes.  It opens connections from an
address of its own, because the ports of one address are too few as well, and holds them until its input ends.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from types import TracebackType
from typing import Self

from bench.machine import allow_many_files, connections_max
from bench.servers.servers import CREDENTIALS, HOST, ServerError
from tests.servers.signing import RequestSigner

CONNECTIONS_MAX = 20_000
"""Connections of one process; fewer than the ports of an address."""
FIRST_PORT = 10_000
AT_ONCE = 100
"""Connections that are opened, and make their calls, together."""
READY = b"ready"


class IdleCallers:
    """Connections to a server, used as a context: on entry each is opened and has made one call."""

    def __init__(self, port: int, connections: int) -> None:
        self._port = port
        self._connections = connections
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        left = self._connections
        while left:
            count = min(left, CONNECTIONS_MAX, connections_max())
            left -= count
            address = f"127.0.1.{len(self._processes) + 1}"
            command = [sys.executable, "-m", __name__, str(self._port), str(count), address]
            self._processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        try:
            for process in self._processes:
                assert process.stdout is not None
                if process.stdout.readline().strip() != READY:
                    raise ServerError("idle connections could not be opened")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        for process in self._processes:
            process.communicate()
        self._processes.clear()


def hold(port: int, connections: int, address: str) -> None:
    """Open connections, make a call on each, and wait until the standard input ends."""
    signer = RequestSigner(f"{HOST}:{port}", CREDENTIALS)
    held: list[socket.socket] = []
    while len(held) < connections:
        last = min(len(held) + AT_ONCE, connections)
        opened = [_opened(port, address, FIRST_PORT + number) for number in range(len(held), last)]
        for each in opened:
            each.sendall(signer.request("ListQueues", b'{"MaxResults":1}'))
        for each in opened:
            if not each.recv(65_536).startswith(b"HTTP/1.1 200 "):
                raise ServerError("a call on a new connection failed")
        held += opened
    print(READY.decode(), flush=True)
    sys.stdin.read()


def _opened(port: int, address: str, own_port: int) -> socket.socket:
    """Connect from a given port: the kernel's search for a free one takes long when most are in use."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the last run may have used it
    connection.bind((address, own_port))
    connection.connect((HOST, port))
    return connection


def main() -> None:
    """Run as one of the processes."""
    allow_many_files()
    port, connections, address = sys.argv[1:]
    hold(int(port), int(connections), address)


if __name__ == "__main__":
    main()

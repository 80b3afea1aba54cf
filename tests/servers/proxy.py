"""TCP proxy that simulates a bad network: it can reset, hold back in either direction, or delay connections, and drop
answers of HTTP.

Held data are not lost: as with TCP over a network that recovers, they arrive late, unless the connection has been
closed by then.
"""

import asyncio
import enum
import socket
import struct
import threading
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.servers.several import files_of
from tests.servers.started import ServerContext


class Direction(enum.Flag):
    """Direction of the affected bytes."""

    TO_SERVER = enum.auto()
    TO_CLIENT = enum.auto()
    BOTH = TO_SERVER | TO_CLIENT


NEITHER = Direction(0)


@dataclass(frozen=True)
class _Weather:
    """Current state of the network."""

    held: Direction = NEITHER
    refusing: bool = False
    delay_seconds: float = 0.0
    pids: frozenset[int] | None = None
    """Processes whose connections are affected; None: all."""


_FAIR = _Weather()


class _Connection:
    """A client's connection, and its connection to the server."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.client = client
        self.server: asyncio.StreamWriter | None = None
        self.port: int = client.get_extra_info("peername")[1]
        self.seen: _Weather | None = None
        """Last network state for which it was checked whether it affects this client."""
        self.sees = False

    def abort(self) -> None:
        for writer in (self.client, self.server):
            if writer is not None:
                line = writer.get_extra_info("socket")
                if line is not None and line.fileno() >= 0:  # so that the other end sees a reset, not an end
                    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()


class Proxy(ServerContext):
    """Proxy in front of an address, in a thread of its own, for the duration of the ``with`` block.

    Faults affect the connections of all clients, or only of the processes ``pids``.
    """

    def __init__(
        self, *upstreams: tuple[str, int], listen: tuple[str, int] = ("127.0.0.1", 0), lost_share: float | None = None
    ) -> None:
        """Set up the proxy.  Of several ``upstreams``, each connection gets the next one that accepts it.

        ``lost_share``: it reads each HTTP answer whole, and drops this share of them together with the connection.
        """
        self.host, self.port = listen
        self.lost_share = lost_share
        self.lost = 0
        """Number of dropped answers."""
        self._random = Random(1)
        self._upstreams = deque(upstreams)
        self._weather = _FAIR
        self._changed = asyncio.Event()
        self._connections: set[_Connection] = set()
        self._loop = asyncio.new_event_loop()
        self._listening: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name=f"proxy of {upstreams[0][1]}", daemon=True)

    @property
    def address(self) -> str:
        """Return the listening address, as host:port."""
        return f"{self.host}:{self.port}"

    def start(self) -> None:
        """Listen.  Raises OSError."""
        listening = socket.create_server((self.host, self.port))
        self.port = listening.getsockname()[1]
        self._listening = listening
        self._thread.start()

    def close(self) -> None:
        if self._listening is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)

    # --- the weather --------------------------------------------------------------------------------------

    def hold(self, direction: Direction = Direction.BOTH, pids: Collection[int] | None = None) -> None:
        """Hold back all bytes in this direction, silently."""
        self._turn(_Weather(held=direction, pids=_frozen(pids)))

    def cut(self, pids: Collection[int] | None = None) -> None:
        """Reset connections, including new ones."""
        self._turn(_Weather(refusing=True, pids=_frozen(pids)))

    def delay(self, seconds: float, pids: Collection[int] | None = None) -> None:
        """Delay everything by this, each way."""
        self._turn(_Weather(delay_seconds=seconds, pids=_frozen(pids)))

    def heal(self) -> None:
        """End all faults, and deliver held bytes."""
        self._turn(_FAIR)

    def _turn(self, weather: _Weather) -> None:
        done = threading.Event()

        def turn() -> None:
            self._weather = weather
            for connection in list(self._connections):
                if self._of(connection).refusing:
                    connection.abort()
            self._changed.set()
            self._changed = asyncio.Event()
            done.set()

        self._loop.call_soon_threadsafe(turn)
        assert done.wait(10), "the proxy hangs"

    def _of(self, connection: _Connection) -> _Weather:
        weather = self._weather
        if weather.pids is None:
            return weather
        if connection.seen is not weather:
            connection.seen, connection.sees = weather, _has_port(weather.pids, connection.port)
        return weather if connection.sees else _FAIR

    # --- carrying -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, sock=self._listening))
        self._loop.run_forever()
        server.close()
        for connection in self._connections:
            connection.abort()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(writer)
        self._connections.add(connection)
        try:
            if self._of(connection).refusing:
                return
            # A connection is established when its first packets pass, in both directions.
            await self._passes(connection, Direction.BOTH)
            answers, connection.server = await self._connect()
            up = asyncio.create_task(self._carry(connection, reader, connection.server, Direction.TO_SERVER))
            try:
                await self._carry(connection, answers, writer, Direction.TO_CLIENT)
            finally:
                up.cancel()
        except OSError:
            pass  # the server is down, or one side has closed: close the other one
        finally:
            self._connections.discard(connection)
            connection.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for left in reversed(range(len(self._upstreams))):
            self._upstreams.rotate()
            try:
                return await asyncio.open_connection(*self._upstreams[0])
            except OSError:
                if not left:
                    raise
        raise AssertionError("the proxy has no upstream")

    async def _carry(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        try:
            answers = self.lost_share is not None and direction is Direction.TO_CLIENT
            while data := await (_whole(reader) if answers else reader.read(1 << 16)):
                if answers and self._random.random() < (self.lost_share or 0.0):
                    self.lost += 1
                    return
                await self._passes(connection, direction)
                writer.write(data)
                await writer.drain()
            await self._passes(connection, direction)
        except OSError:
            pass
        finally:
            connection.abort()

    async def _passes(self, connection: _Connection, direction: Direction) -> None:
        weather = self._of(connection)
        if weather.delay_seconds:
            await asyncio.sleep(weather.delay_seconds)
        while self._of(connection).held & direction:
            await self._changed.wait()


async def _whole(reader: asyncio.StreamReader) -> bytes:
    """Read one answer, header and body; empty when the connection has closed."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        lower = head.lower()
        at = lower.find(b"\r\ncontent-length:")
        length = int(lower[at + 17 : lower.index(b"\r\n", at + 2)]) if at >= 0 else 0
        return head + await reader.readexactly(length)
    except asyncio.IncompleteReadError:
        return b""


def _frozen(pids: Collection[int] | None) -> frozenset[int] | None:
    return None if pids is None else frozenset(pids)


def _has_port(pids: frozenset[int], port: int) -> bool:
    """Return whether one of these processes has the client's side of a connection from this local port."""
    end = f":{port:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(end) and any(f"socket:[{fields[9]}]" in files_of(pid) for pid in pids):
            return True
    return False

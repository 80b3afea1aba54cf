"""Health checks of the roles that clients do not call: backends, metadata nodes and managers.

They listen at ``health_listen``, apart from what the role serves: who asks (a kubelet, a load balancer) knows no secret
of the cluster and shows no certificate.  So nothing else is told here, and it is plain HTTP.

    GET /health/live     200 from the process's start to its end, also while it replays a journal
    GET /health/ready    200 while the role does its work; 503 before that, and while it drains
"""

from __future__ import annotations

import asyncio
from typing import Final, Literal

from backend.address import Address
from holdfast.serve import CannotStart

_HEAD_BYTES_MOST: Final = 8192
_SECONDS: Final = 5.0
"""For a request to arrive, and its answer to be taken."""

Status = Literal["starting", "ready", "draining"]


class Health:
    """What a role says of itself.  Made by :func:`serve_health`."""

    def __init__(self) -> None:
        self.status: Status = "starting"
        self._server: asyncio.Server | None = None

    async def listen(self, address: Address) -> None:
        """Raises :class:`CannotStart`."""
        try:
            self._server = await asyncio.start_server(self._answer, address.host, address.port, limit=_HEAD_BYTES_MOST)
        except OSError as error:
            raise CannotStart(f"health_listen {address} cannot be listened on: {error.strerror}") from error

    async def close(self) -> None:
        """Answer nobody any more."""
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer_to(head.partition(b"\r\n")[0]))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a connection that is only opened, as some checks do, or one that asks for nothing
        finally:
            writer.close()

    def _answer_to(self, line: bytes) -> bytes:
        method, _, rest = line.partition(b" ")
        path = rest.partition(b" ")[0]
        if path not in (b"/health/live", b"/health/ready"):
            return _response("404 Not Found", "not found")
        if method != b"GET":
            return _response("405 Method Not Allowed", "only GET", "Allow: GET\r\n")
        if path == b"/health/live":
            return _response("200 OK", "live")
        return _response("200 OK" if self.status == "ready" else "503 Service Unavailable", self.status)


def _response(status: str, told: str, header: str = "") -> bytes:
    body = f'{{"status":"{told}"}}'
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{header}"
        f"Connection: close\r\n\r\n{body}"
    ).encode()


async def serve_health(health_listen: str) -> Health:
    """Answer health checks there; with an empty setting, nobody asks.  Raises :class:`CannotStart`."""
    health = Health()
    if health_listen:
        await health.listen(Address.parse(health_listen))
    return health

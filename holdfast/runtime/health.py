"""Health checks and metrics of a process.

They are served at ``health_listen``, apart from the role's own port: callers (a kubelet, a load balancer, Prometheus)
have neither a secret of the service nor a certificate.  So nothing else is served here, and it is plain HTTP.

    GET /health/live     200 from the process's start to its end, also while it replays a journal; and its build
    GET /health/ready    200 while the role does its work; 503 before that, and while it drains
    GET /metrics         the metrics of the process, in Prometheus's format
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Literal

from backend.rpc.address import Address
from holdfast.runtime.errors import CannotStart
from telemetry.build import is_compiled
from telemetry.prometheus import CONTENT_TYPE

_HEAD_BYTES_MAX: Final = 8192
_SECONDS: Final = 5.0
"""Timeout for a whole request: receiving it, and sending its answer."""
_LIVE: Final = b'{"status":"live","compiled":%b}' % (b"true" if is_compiled() else b"false")

Metrics = Callable[[], Awaitable[bytes]]
Status = Literal["starting", "ready", "draining"]


class Health:
    """Health of a role.  Made by :func:`serve_health`."""

    def __init__(self, metrics: Metrics | None = None) -> None:
        """Set up the health checks.  ``metrics``: returns metrics in Prometheus's format; None: there are none."""
        self.status: Status = "starting"
        self.not_ready_reason: Callable[[], str] = lambda: ""
        """Function that returns the reason why a ready role cannot work now, as one word; "": it can."""
        self._metrics = metrics
        self._server: asyncio.Server | None = None

    async def listen(self, address: Address) -> None:
        """Start listening.  Raises :class:`CannotStart`."""
        try:
            self._server = await asyncio.start_server(self._answer, address.host, address.port, limit=_HEAD_BYTES_MAX)
        except OSError as error:
            raise CannotStart(f"health_listen {address} cannot be listened on: {error.strerror}") from error

    async def close(self) -> None:
        """Stop answering."""
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._answer_to(*head.split(b"\r\n")))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a connection without a request, as some checks make
        finally:
            writer.close()

    async def _answer_to(self, line: bytes, *headers: bytes) -> bytes:
        hosts = sum(header[:5].lower() == b"host:" for header in headers)
        if hosts != 1 and (hosts or line.endswith(b"/1.1")):  # RFC 9112, 3.2
            return _status_answer("400 Bad Request", "one Host header is needed")
        method, _, rest = line.partition(b" ")
        path = rest.partition(b" ")[0]
        if path not in (b"/health/live", b"/health/ready") and (path != b"/metrics" or self._metrics is None):
            return _status_answer("404 Not Found", "not found")
        if method != b"GET":
            return _status_answer("405 Method Not Allowed", "only GET", "Allow: GET\r\n")
        if path == b"/health/live":
            return _response("200 OK", "application/json", _LIVE)
        if path == b"/metrics":
            assert self._metrics is not None
            return _response("200 OK", CONTENT_TYPE, await self._metrics())
        status = (self.status == "ready" and self.not_ready_reason()) or self.status
        return _status_answer("200 OK" if status == "ready" else "503 Service Unavailable", status)


def _status_answer(status: str, text: str, header: str = "") -> bytes:
    return _response(status, "application/json", f'{{"status":"{text}"}}'.encode(), header)


def _response(status: str, content_type: str, body: bytes, header: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n{header}"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body


async def serve_health(health_listen: str, metrics: Metrics | None = None) -> Health:
    """Serve health checks at this address; an empty one disables them.  Raises :class:`CannotStart`."""
    health = Health(metrics)
    if health_listen:
        await health.listen(Address.parse(health_listen))
    return health

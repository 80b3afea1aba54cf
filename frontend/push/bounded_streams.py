"""Connections that read little, in small pieces, for answers of untrusted endpoints.

Parsing is done on the event loop: an endless head, such as one informational answer after the other, would take as much
of it as the network delivers.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Any, Final

import httpcore

READ_BYTES: Final = 4096
"""Bytes of one read."""
ANSWER_BYTES_MAX: Final = 32_768
"""Maximum length of an answer with its head; more is an error."""


class BoundedStream(httpcore.AsyncNetworkStream):
    """A stream with a bound on what is read after each write."""

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._read = 0
        """Bytes read since the last write."""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._read >= ANSWER_BYTES_MAX:
            raise httpcore.ReadError(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
        read = await self._stream.read(min(max_bytes, READ_BYTES), timeout)
        self._read += len(read)
        return read

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._read = 0
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        return BoundedStream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class BoundedBackend(httpcore.AsyncNetworkBackend):
    """Opens connections as :class:`BoundedStream`."""

    def __init__(self) -> None:
        self._backend = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return BoundedStream(await self._backend.connect_tcp(host, port, timeout, local_address, socket_options))

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)

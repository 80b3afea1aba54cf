"""A server that answers every request with 200 and the same bytes: ``python -m bench.servers.null_server PORT``."""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop

_BODY = b'{"MessageId":"0","MD5OfMessageBody":"d41d8cd98f00b204e9800998ecf8427e"}'
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(_BODY), _BODY)


class _Null(asyncio.Protocol):
    """Treats each received piece of data as one request, as the generator writes them."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(_ANSWER)


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Null, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))

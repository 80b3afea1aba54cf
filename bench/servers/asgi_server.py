"""A raw ASGI application that answers at once, under uvicorn: ``python -m bench.servers.asgi_server PORT``."""

from __future__ import annotations

import sys
from typing import Any

import uvicorn

_BODY = b'{"MessageId":"0","MD5OfMessageBody":"d41d8cd98f00b204e9800998ecf8427e"}'
_START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"application/x-amz-json-1.0"), (b"content-length", b"%d" % len(_BODY))],
}
_END = {"type": "http.response.body", "body": _BODY}


async def answer(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body", False):
        pass
    await send(_START)
    await send(_END)


if __name__ == "__main__":
    uvicorn.run(
        answer,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        lifespan="off",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=600,  # other servers are measured in between
    )

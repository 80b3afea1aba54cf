"""What the load generator could do at most: the same calls against a server that only answers."""

from __future__ import annotations

from bench.jobs import Sqs
from bench.scenarios.run import Run, again
from bench.servers import Server


async def ceiling(run: Run, server: Server) -> None:
    await run.closed("generator", server, Sqs(server.signer).send(again("http://nobody/0/nothing")))

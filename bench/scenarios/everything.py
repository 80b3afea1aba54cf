"""The cost of a SendMessage with every feature on, as in a service with many billed and monitored tenants."""

from __future__ import annotations

from bench.jobs import Sqs
from bench.run import BenchRun, again
from bench.scenarios import guarded
from bench.scenarios.observed import watched
from bench.servers.servers import CREDENTIALS, HOST, Asgi, ServerProcess
from bench.sides import Side, in_turn
from tests.servers.signing import RequestSigner


async def send(run: BenchRun, _: ServerProcess) -> None:
    """Measure SendMessage with every feature, in turn with the same requests to a raw ASGI application.

    The calls are signed, encrypted, within rate limits, safe to retry, counted for billing, measured and traced at the
    usual ratio.  The ASGI application answers at once.
    """
    async with watched(guarded.SETTINGS) as server:
        naming = RequestSigner(f"{HOST}:{server.port}", CREDENTIALS, invocation_ids=True)
        with Asgi() as asgi:
            to_asgi = RequestSigner(f"{HOST}:{asgi.port}", CREDENTIALS, invocation_ids=True)
            sides = [
                Side("send-nothing", asgi, Sqs(to_asgi).send(again("http://nobody/0/nothing"))),
                Side("send-everything", server, Sqs(naming).send(again(server.create_queue("send-everything")))),
            ]
            least_row, all_row = await in_turn(run, sides)
    times = all_row.cpu_us_per_call / least_row.cpu_us_per_call
    run.figure("send-everything", server, "over a raw ASGI call", times, "times")

"""The cost of serving many tenants: SendMessage with encryption, rate limits and safe retries, and with everything."""

from __future__ import annotations

from bench.jobs import Sqs
from bench.run import BenchRun, again
from bench.scenarios.observed import watched
from bench.servers.servers import CREDENTIALS, HOST, Asgi, Holdfast, ServerProcess
from bench.sides import Side, in_turn
from tests.servers.signing import RequestSigner

_HIGHEST = "1000000:1000000"
"""A rate that is counted, and never reached."""
SETTINGS = {"HOLDFAST_DEFAULT_LIMITS": f"calls={_HIGHEST} send={_HIGHEST} each_queue={_HIGHEST}"}
"""Limits for all calls.  Encryption and safe retries are on by default."""
BARE = {"HOLDFAST_ENCRYPTION": "off", "HOLDFAST_SEND_RETRY_WINDOW_SECONDS": "0"}


async def send_guarded(run: BenchRun, server: ServerProcess) -> None:
    """Measure SendMessage with these features and SDK-like invocation ids, in turn with a server without them."""
    naming = RequestSigner(f"{HOST}:{server.port}", CREDENTIALS, invocation_ids=True)
    with Holdfast(BARE) as bare:
        sides = [
            Side("send-bare", bare, Sqs(bare.signer).send(again(bare.create_queue("send-bare")))),
            Side("send-guarded", server, Sqs(naming).send(again(server.create_queue("send-guarded")))),
        ]
        bare_row, guarded_row = await in_turn(run, sides)
    added = guarded_row.cpu_us_per_call - bare_row.cpu_us_per_call
    run.figure("send-guarded", server, "added to a SendMessage", added, "µs")


async def send(run: BenchRun, _: ServerProcess) -> None:
    """Measure SendMessage with every feature, in turn with the same requests to a raw ASGI application.

    The calls are signed, encrypted, within rate limits, safe to retry, counted for billing, measured and traced at the
    usual ratio.  The ASGI application answers at once.
    """
    async with watched(SETTINGS) as server:
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

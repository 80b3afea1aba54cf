"""What it costs to serve many tenants: encryption, rate limits and safe retries on top of the signature."""

from __future__ import annotations

from bench import proc
from bench.jobs import Sqs
from bench.load import Load, Window
from bench.report import Row, row_of
from bench.scenarios.run import CONNECTIONS, Run, again, quiet_memory
from bench.servers import CREDENTIALS, HOST, Holdfast, Meter, Server
from bench.signing import Signer

_HIGHEST = "1000000:1000000"
"""A rate that is counted, and never reached."""
SETTINGS = {"HOLDFAST_DEFAULT_LIMITS": f"calls={_HIGHEST} send={_HIGHEST} each_queue={_HIGHEST}"}
"""Encryption and safe retries are on by default."""
BARE = {"HOLDFAST_ENCRYPTION": "off", "HOLDFAST_SEND_RETRY_WINDOW_SECONDS": "0"}
ROUNDS = 4


async def send(run: Run, server: Server) -> None:
    """SendMessage with all of that, named by its client as SDKs do, in turn with SendMessage of a server without."""
    naming = Signer(f"{HOST}:{server.port}", CREDENTIALS, invocation_ids=True)
    with Holdfast(BARE) as bare:
        sides = [
            _Side("send-bare", bare, Sqs(bare.signer), bare.create_queue("send-bare")),
            _Side("send-guarded", server, Sqs(naming), server.create_queue("send-guarded")),
        ]
        for number in range(ROUNDS):
            for side in sides if number % 2 else reversed(sides):
                await side.measure(run.plan.warm_up_s, run.plan.measure_s / 2)
        bare_row, guarded_row = (run.add(side.row()) for side in sides)
    added = guarded_row.cpu_us_per_call - bare_row.cpu_us_per_call
    run.figure("send-guarded", server, "added to a SendMessage", added, "µs")


class _Side:
    """One of the two servers, and what was measured of it."""

    def __init__(self, scenario: str, server: Server, sqs: Sqs, url: str) -> None:
        self._scenario = scenario
        self._server = server
        self._jobs = sqs.send(again(url))
        self._windows: list[Window] = []
        self._cpu_s = 0.0

    async def measure(self, warm_up_s: float, seconds: float) -> None:
        meter = Meter(self._server)
        async with Load(HOST, self._server.port, CONNECTIONS) as load:
            with quiet_memory():
                self._windows.append(await load.closed(self._jobs, warm_up_s, seconds, meter.mark))
        self._cpu_s += meter.cpu_s

    def row(self) -> Row:
        rss_mib = proc.rss_mib(self._server.pid)
        return row_of(self._scenario, self._server.name, CONNECTIONS, self._windows, self._cpu_s, rss_mib)

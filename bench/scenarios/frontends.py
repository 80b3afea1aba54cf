"""The cost of separate processes: SendMessage to two frontends and a backend, in turn with one process."""

from __future__ import annotations

from bench.jobs import Sqs
from bench.load import Jobs
from bench.run import BenchRun, again
from bench.servers.servers import Holdfast, ServerProcess
from bench.sides import Side, in_turn

FRONTENDS = 2


async def send(run: BenchRun, server: ServerProcess) -> None:
    with Holdfast({"HOLDFAST_FRONTENDS": str(FRONTENDS)}) as several:
        apart = _Apart("send-frontends", several, Sqs(several.signer).send(again(several.create_queue("send"))))
        whole = Side("send-one-process", server, Sqs(server.signer).send(again(server.create_queue("send"))))
        whole_row, apart_row = await in_turn(run, [whole, apart])
    for part, cpu_s in sorted(apart.by_part().items()):
        run.figure("send-frontends", several, f"CPU of the {part}, a call", cpu_s / max(apart.calls, 1) * 1e6, "µs")
    added = apart_row.cpu_us_per_call - whole_row.cpu_us_per_call
    run.figure("send-frontends", several, "added to a SendMessage", added, "µs")
    more = apart_row.calls_per_s / whole_row.calls_per_s
    run.figure("send-frontends", several, "calls/s against one process", more, "times")


class _Apart(Side):
    """A server of several processes, with separate CPU times."""

    def __init__(self, scenario: str, server: ServerProcess, jobs: Jobs) -> None:
        super().__init__(scenario, server, jobs)
        self._seen: list[dict[str, float]] = []

    def mark(self) -> None:
        self._seen.append(self.server.parts())

    def by_part(self) -> dict[str, float]:
        """Return the CPU seconds in the windows, by role."""
        total: dict[str, float] = {}
        for before, after in zip(self._seen[::2], self._seen[1::2], strict=True):
            for part, cpu_s in after.items():
                total[part] = total.get(part, 0.0) + cpu_s - before.get(part, 0.0)
        return total

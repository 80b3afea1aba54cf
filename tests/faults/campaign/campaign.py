"""The long campaign: random faults one after the other, and a table of the results."""

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

from tests.faults.campaign import steps
from tests.faults.campaign.whole import QUARANTINED
from tests.faults.processes.out_of_files import no_free_files
from tests.faults.tools.hooks import PlannedFault
from tests.faults.tools.process import FaultyServer
from tests.faults.tools.topic_traffic import TopicTraffic
from tests.faults.tools.traffic import Traffic

ENDS_A_ROUND = 12
"""Maximum number of faults after which the queues are emptied, and every message is accounted for."""
CALLS_MAX = 300


@dataclass
class FaultKindResults:
    done: int = 0
    not_reached: int = 0


@dataclass
class CampaignOutcome:
    seed: int
    rows: dict[str, FaultKindResults] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)

    def row(self, kind: str) -> FaultKindResults:
        return self.rows.setdefault(kind, FaultKindResults())


class Campaign:
    """Random faults for a given time, on one data folder after the other."""

    def __init__(self, seed: int, seconds: float, only: str = "") -> None:
        """Set up a campaign.  ``only``: run faults whose names contain this."""
        self.outcome = CampaignOutcome(seed)
        self._random = Random(seed)
        self._seconds = seconds
        self._faults: list[tuple[str, Callable[[FaultyServer, Traffic], Awaitable[bool]]]] = [
            ("kill -9 at a random moment", self._kill),
            ("power lost at a random moment", self._lose_power),
            ("SIGTERM under load", self._stop),
            ("EIO in a commit", self._fail_commit),
            ("no file descriptor left", self._no_files),
            *[
                (f"ended at {moment}", partial(self._at_work, moment))
                for group in steps.WHILE_SERVING.values()
                for moment in group
            ],
            *[
                (f"ended while starting, at {moment}", partial(self._starting, moment))
                for group in steps.AT_START.values()
                for moment in group
            ],
        ]
        self._faults = [(kind, fault) for kind, fault in self._faults if only in kind]

    async def run(self) -> CampaignOutcome:
        """Run until the time is over or a promise was broken."""
        started_at = time.monotonic()
        end = started_at + self._seconds
        while self._faults and time.monotonic() < end and not self.outcome.violations:
            with tempfile.TemporaryDirectory(prefix="holdfast-faults-") as folder:
                server = FaultyServer(Path(folder))
                try:
                    await self._round(server, end)
                except Exception as error:
                    self.outcome.violations.append(f"{error!r}\n{server.log_tail()}")
                finally:
                    server.kill()
            self.outcome.rounds += 1
            self.outcome.seconds = time.monotonic() - started_at
        return self.outcome

    async def _round(self, server: FaultyServer, end: float) -> None:
        server.seed = self._random.randrange(1 << 30)
        await server.start_with()
        broken: list[str] = []
        topics = TopicTraffic(server, self._random.randrange(1 << 30))
        async with Traffic(server, self._random.randrange(1 << 30)).running() as traffic, topics.running():
            try:
                done: list[str] = []
                while len(done) < ENDS_A_ROUND and time.monotonic() < end:
                    kind, fault = self._random.choice(self._faults)
                    done.append(kind)
                    row = self.outcome.row(kind)
                    if await fault(server, traffic):
                        row.done += 1
                    else:
                        row.not_reached += 1
                    if server.process is None:
                        await server.start_with()
                of_queues, of_topics = await asyncio.gather(traffic.verify(), topics.verify())
                broken = [*of_queues.broken, *traffic.failures, *of_topics.broken, *topics.failures]
            finally:
                self.outcome.counts.update(traffic.counts)
                self.outcome.counts["published"] += topics.acknowledged(topics.counts)
                self.outcome.counts["fanned out"] += topics.counts["received"]
        if broken:
            self.outcome.violations += [f"after {', '.join(done)}:", *broken, server.log_tail()]

    # --- the faults ---------------------------------------------------------------------------------------

    async def _kill(self, server: FaultyServer, traffic: Traffic) -> bool:
        await traffic.answered(self._random.randrange(CALLS_MAX))
        server.kill()
        return True

    async def _lose_power(self, server: FaultyServer, traffic: Traffic) -> bool:
        await traffic.answered(self._random.randrange(CALLS_MAX))
        await asyncio.to_thread(server.lose_power)
        return True

    async def _stop(self, server: FaultyServer, traffic: Traffic) -> bool:
        await traffic.answered(self._random.randrange(CALLS_MAX))
        code = await asyncio.to_thread(server.stop)
        assert code == 0, f"the drain ended with {code}"
        return True

    async def _fail_commit(self, server: FaultyServer, traffic: Traffic) -> bool:
        action = self._random.choice(("eio", "eio_lost"))
        step = self._random.choice(("commit.write.before", "commit.sync.before"))
        server.kill()
        await server.start_with([PlannedFault(step, action, self._random.randrange(1, 200))])
        before = server.log_text().count("the journal has been recovered")
        await traffic.until(
            lambda: server.log_text().count("the journal has been recovered") > before, "the journal is recovered"
        )
        await traffic.answered(50)
        return True

    async def _no_files(self, server: FaultyServer, traffic: Traffic) -> bool:
        await traffic.answered(self._random.randrange(50, CALLS_MAX))  # its clients are connected
        refused = traffic.counts["refused"]
        with no_free_files(server.pid):
            goal = refused + self._random.randrange(1, CALLS_MAX)
            await traffic.until(lambda: traffic.counts["refused"] > goal, "calls are refused for want of a descriptor")
        await traffic.answered(50)
        assert QUARANTINED not in server.log_text(), "a message was taken for damaged"
        return True

    async def _at_work(self, moment: str, server: FaultyServer, traffic: Traffic) -> bool:
        server.kill()
        nth = self._random.randrange(1, 200 if moment.startswith("commit") else 4)
        try:
            await steps.end_while_serving(server, traffic, moment, nth, self._action())
        except TimeoutError:
            server.kill()  # the step occurred less often
            return False
        return True

    async def _starting(self, moment: str, server: FaultyServer, traffic: Traffic) -> bool:
        server.kill()
        if self._random.random() < 0.5:
            await steps.serve_and_kill(server, traffic)
        return await steps.end_at_start(server, moment, self._random.choice((1, 1, 2)), self._action())

    def _action(self) -> str:
        return self._random.choice(("kill", "power"))

"""``python -m bench [--quick | --scale] [--only GROUP ...] [--scenario NAME ...] [--server NAME ...]``."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import uvloop

from bench.machine import MachineInfo, allow_many_files, machine
from bench.peers.kafka_servers import HoldfastStreams, Kafka, KafkaUnsynced
from bench.peers.peers import JetStream, RabbitMq
from bench.plan import FULL, QUICK, SCALE, BenchPlan
from bench.report import FORMAT, BenchReport, Book, table, verdicts, write
from bench.run import BenchRun
from bench.scenarios import SCALED, SCENARIOS, Scenario
from bench.scenarios.core import warm_up_java
from bench.servers.cluster_server import HoldfastCluster, HoldfastOnOneNode
from bench.servers.servers import HERE, WORK, Asgi, ElasticMq, Holdfast, Nothing, ServerProcess, missing
from bench.targets import targets
from telemetry.build import is_compiled

SERVERS: dict[str, type[ServerProcess]] = {
    each.name: each
    for each in (
        *(Nothing, Asgi, Holdfast, ElasticMq, RabbitMq, JetStream, HoldfastCluster, HoldfastOnOneNode),
        *(HoldfastStreams, Kafka, KafkaUnsynced),
    )
}
RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """Run the scenarios.  Fails if one could not run; a missed target is information."""
    options = _options()
    plan = QUICK if options.quick else SCALE if options.scale else FULL
    chosen = [
        s
        for s in SCENARIOS
        if (not options.scenario or s.name in options.scenario)
        and (not options.only or s.group in options.only)
        and (not options.scale or s.name in SCALED)
    ]
    allow_many_files()
    WORK.mkdir(parents=True, exist_ok=True)
    facts = machine(WORK)
    book = Book()
    run = BenchRun(plan, book)
    names = _available(options.server or ([Holdfast.name] if options.scale else None), chosen, book)
    failed = 0
    try:
        for name in names:
            failed += _all_on(run, SERVERS[name], [s for s in chosen if name in s.servers])
    except KeyboardInterrupt:
        book.notes.append("interrupted: what follows was not measured")
        failed += 1
    report = _report(plan, facts, book, names)
    if options.scenario or options.server or options.only or options.scale:
        report.targets = [verdict for verdict in report.targets if verdict.met is not None]
    print(table(report))
    print(f"\nwritten to {write(report, options.results)}")
    shutil.rmtree(WORK, ignore_errors=True)
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measures Holdfast, beside others.")
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", action="store_true", help="a few minutes, smaller backlogs")
    sizes.add_argument("--scale", action="store_true", help="the largest sizes for one process of Holdfast")
    parser.add_argument(
        "--scenario", action="append", choices=[s.name for s in SCENARIOS], help="only this (repeatable)"
    )
    groups = sorted({s.group for s in SCENARIOS})
    parser.add_argument("--only", action="append", choices=groups, help="only scenarios of this group (repeatable)")
    parser.add_argument("--server", action="append", choices=list(SERVERS), help="only on this server (repeatable)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON file")
    return parser.parse_args()


def _available(wanted: list[str] | None, chosen: list[Scenario], book: Book) -> list[str]:
    needed = {name for scenario in chosen for name in scenario.servers}
    names = [name for name in SERVERS if name in needed and (not wanted or name in wanted)]
    for name in list(names):
        if why := missing(SERVERS[name]):
            names.remove(name)
            book.notes.append(why)
            print(why, file=sys.stderr)
    return names


def _all_on(run: BenchRun, kind: type[ServerProcess], chosen: list[Scenario]) -> int:
    """Run the scenarios on servers of one kind; return the number that failed."""
    failed = 0
    shared = [scenario for scenario in chosen if scenario.shares_server]
    if shared:
        with _started(run, kind, {}) as server:
            if kind is ElasticMq and server is not None:
                uvloop.run(warm_up_java(run, server))
            for scenario in shared:
                failed += _one(run, scenario, server)
    for scenario in chosen:
        if not scenario.shares_server:
            with _started(run, kind, scenario.environment) as server:
                failed += _one(run, scenario, server)
    return failed


@contextmanager
def _started(
    run: BenchRun, kind: type[ServerProcess], environment: Mapping[str, str]
) -> Iterator[ServerProcess | None]:
    """Yield a server of this kind; None if it does not start, which fails its scenarios and no others."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(kind(environment))
        except Exception as error:
            # The report is kept with the project: it names no folder of the machine.
            text = str(error).replace(f"{HERE.parent}/", "")
            run.book.notes.append(f"{kind.name} does not start: {type(error).__name__}: {text[-500:]}")
            run.say(run.book.notes[-1])
            yield None
        else:
            yield server


def _one(run: BenchRun, scenario: Scenario, server: ServerProcess | None) -> int:
    if server is None:
        return 1
    run.say(f"{scenario.name} on {server.name}")
    try:
        uvloop.run(_measure(run, scenario, server))
    except Exception as error:
        run.book.notes.append(f"{scenario.name} on {server.name} failed: {type(error).__name__}: {error}")
        run.say(f"{run.book.notes[-1]}\n{server.log()[-2000:]}")
        return 1
    return 0


async def _measure(run: BenchRun, scenario: Scenario, server: ServerProcess) -> None:
    await scenario.measure(run, server)


def _report(plan: BenchPlan, facts: MachineInfo, book: Book, names: list[str]) -> BenchReport:
    held = targets(plan, is_compiled())
    return BenchReport(
        format=FORMAT,
        plan=plan.name,
        machine=facts,
        servers={name: SERVERS[name].version() for name in names},
        rows=book.rows,
        figures=book.figures,
        targets=verdicts(book, held),
        notes=book.notes,
    )


if __name__ == "__main__":
    sys.exit(main())

"""``python -m tests.simulator --seeds N``: run many seeds, and say what they found."""

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping

from tests.simulator.mutations.focuses import ALONE, focused
from tests.simulator.mutations.tables import (
    CLUSTER,
    CLUSTER_SECONDS,
    FOCUSES,
    ORDINARY,
    PUBLICATIONS,
    RULES,
    SEEDS_MAX,
    STREAMS,
    Mutation,
    first_to_notice,
    noticed_with_publications,
    noticed_with_streams,
    run_mutated,
)
from tests.simulator.publications.cluster import PublicationClusterWorld
from tests.simulator.publications.world import PublicationWorld
from tests.simulator.scenarios import SCENARIOS
from tests.simulator.streams.cluster import StreamClusterWorld
from tests.simulator.streams.world import StreamWorld
from tests.simulator.world.cluster import SECONDS, ClusterWorld
from tests.simulator.world.world import SimWorld


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds (default %(default)s)")
    parser.add_argument("--first", type=int, default=1, help="the first seed (default %(default)s)")
    parser.add_argument("--steps", type=int, default=2000, help="steps of each run (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no seed after this time")
    parser.add_argument("--trace", action="store_true", help="print the last calls of a seed that fails")
    parser.add_argument("--bit-flips", action="store_true", help="flip bits on the disk too")
    parser.add_argument("--cluster", action="store_true", help="run whole clusters, each for some virtual seconds")
    parser.add_argument("--streams", action="store_true", help="with topics and consumer groups, beside queues")
    parser.add_argument(
        "--publications", action="store_true", help="with topics and subscribed queues, beside other queues"
    )
    parser.add_argument("--varied", action="store_true", help="with --cluster: draw sizes, speeds and calls, too")
    parser.add_argument("--sessions", action="store_true", help="with --cluster: entries by the product's own code")
    parser.add_argument("--journal", choices=("quorum", "local"), help="with --cluster: only on this one")
    parser.add_argument("--scenario", choices=tuple(SCENARIOS), help="with --cluster: only this one")
    parser.add_argument("--clocks", action="store_true", help="with --cluster: some wall clocks are wrong")
    parser.add_argument(
        "--mutations", action="store_true", help="take each rule out in turn; at most --seeds runs for each"
    )
    parser.add_argument("--only", help="with --mutations or --ordinary: only this one; with --pairs: only this focus")
    parser.add_argument(
        "--ordinary",
        action="store_true",
        help="look for the first ordinary seed that misses each rule of ordinary.yaml",
    )
    parser.add_argument(
        "--focuses", type=int, default=0, help="with --cluster: so many kinds of aimed trouble in each run, by its seed"
    )
    parser.add_argument(
        "--control", action="store_true", help="with --mutations: then the same runs with all rules in their places"
    )
    parser.add_argument(
        "--pairs",
        action="store_true",
        help="run each scenario with each focus, all rules kept: seed --first",
    )
    arguments = parser.parse_args()
    if arguments.pairs:
        return 1 if show_pairs(arguments.first, arguments.only) else 0
    if arguments.mutations and arguments.streams:
        return show_mutations_of(STREAMS, noticed_with_streams, arguments.first, arguments.seeds, arguments.only)
    if arguments.mutations and arguments.publications:
        noticed = noticed_with_publications
        return show_mutations_of(PUBLICATIONS, noticed, arguments.first, arguments.seeds, arguments.only)
    if arguments.mutations or arguments.ordinary:
        missed = 0
        if arguments.mutations:
            missed = show_mutations(arguments.first, arguments.seeds, arguments.only, control=arguments.control)
        return max(missed, show_ordinary(arguments.first, arguments.only))
    started_at = time.perf_counter()
    totals: Counter[str] = Counter()
    failed: list[int] = []
    done = 0
    virtual = 0.0
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        if time.perf_counter() - started_at > arguments.seconds:
            break
        world: SimWorld | ClusterWorld
        drawn = ""
        if arguments.streams:
            kind = StreamClusterWorld if arguments.cluster else StreamWorld
            world = kind(seed, arguments.trace)
        elif arguments.publications:
            world = (PublicationClusterWorld if arguments.cluster else PublicationWorld)(seed, arguments.trace)
        elif arguments.cluster and arguments.focuses:
            world, drawn = focused(seed, arguments.focuses)
        elif arguments.cluster:
            local = None if arguments.journal is None else arguments.journal == "local"
            local = False if arguments.clocks else local
            world = ClusterWorld(
                seed,
                local=local,
                scenario=arguments.scenario,
                clocks=arguments.clocks,
                trace=arguments.trace,
                varied=arguments.varied,
                sessions=arguments.sessions,
            )
        else:
            world = SimWorld(seed, arguments.trace, arguments.bit_flips)
        done += 1
        try:
            report = world.run(SECONDS) if isinstance(world, ClusterWorld) else world.run(arguments.steps)
        except KeyboardInterrupt:
            break
        except BaseException as error:
            failed.append(seed)
            print(f"seed {seed}{drawn and f' ({drawn})'}: {type(error).__name__}: {error}", flush=True)
            if arguments.trace:
                print("\n".join((world.events or [])[-60:]))
                traceback.print_exc()
            continue
        totals.update(report.counts)
        if isinstance(world, SimWorld):
            totals["receives"] += world.model.receives
            totals["deliveries"] += world.model.deliveries
            totals["messages"] += len(world.model.messages)
        virtual += report.seconds
    seconds = time.perf_counter() - started_at
    each = "a cluster" if arguments.cluster else f"{arguments.steps} steps"
    print(f"{done} seeds of {each} in {seconds:.0f} s, {virtual / 3600:.1f} hours of virtual time")
    for name, count in sorted(totals.items()):
        print(f"  {name:<14}{count:>12,}")
    print(f"failed: {failed if failed else 'none'}")
    return 1 if failed else 0


CONTROLS_MIN = 3
"""Runs with all rules in their places, of each trouble: so many, and all seeds that it took to notice."""


def show_mutations(first: int, seeds_max: int, only: str | None, *, control: bool) -> int:
    """Print the table of ``docs/simulator.md``; ``control`` also runs each trouble with all rules in their places."""
    print("| rule | mutation | what it breaks | scenario, and focus | noticed by |\n|---|---|---|---|---|")
    missed = 0
    controls: dict[tuple[tuple[bool, str, str | None], int], str] = {}
    """By what is run, and its seed, a mutation's name: several may have the same trouble."""
    for rule in RULES:
        for name, mutation in CLUSTER.items():
            if mutation.rule != rule.name or only not in (None, name):
                continue
            noticed, seed = f"not in {seeds_max} seeds", first
            for seed in range(first, first + seeds_max):
                error = run_mutated(name, seed)
                if error is not None:
                    noticed = f"seed {seed}"
                    print(f"{name}, {noticed}: {type(error).__name__}: {error}"[:300], file=sys.stderr)
                    break
            else:
                missed += 1
            for one in range(first, max(seed + 1, first + CONTROLS_MIN)):
                controls.setdefault((mutation.trouble, one), name)
            where = "local" if mutation.local else mutation.scenario
            if mutation.focus is not None:
                where += f", `{mutation.focus}`"
            print(f"| {rule.name} | `{name}` | {mutation.breaks} | {where} | {noticed} |", flush=True)
    alarms = show_controls(controls) if control else 0
    return 1 if missed or alarms else 0


def show_mutations_of(
    mutations: Mapping[str, Mutation],
    notice: Callable[[str, int], Exception | None],
    first: int,
    seeds_max: int,
    only: str | None,
) -> int:
    """Print the table of ``docs/simulator.md`` of these mutations; returns 1 if one is not noticed."""
    print("| mutation | what it breaks | world | noticed by |\n|---|---|---|---|")
    missed = 0
    for name, mutation in mutations.items():
        if only not in (None, name):
            continue
        noticed = f"not in {seeds_max} seeds"
        for seed in range(first, first + seeds_max):
            error = notice(name, seed)
            if error is not None:
                noticed = f"seed {seed}"
                print(f"{name}, {noticed}: {type(error).__name__}: {error}"[:300], file=sys.stderr)
                break
        missed += not noticed.startswith("seed")
        world = "cluster" if mutation.local or mutation.focus else "one node"
        world += f", {mutation.focus}" if mutation.focus else ""
        print(f"| `{name}` | {mutation.breaks} | {world} | {noticed} |", flush=True)
    return 1 if missed else 0


def show_ordinary(first: int, only: str | None) -> int:
    """Print the table of ``docs/simulator.md`` of rules that ordinary seeds miss; returns 1 if one is not missed."""
    print("| mutation | rule | what it breaks | one node | cluster |\n|---|---|---|---|---|")
    unnoticed = 0
    for name, one in ORDINARY.items():
        if only not in (None, name):
            continue
        cells = []
        for kind, cluster in (("one node", False), ("cluster", True)):
            of_this = kind in one.runs
            seed = first_to_notice(name, range(first, first + SEEDS_MAX), cluster=cluster) if of_this else None
            cells.append("–" if not of_this else f"not in {SEEDS_MAX} seeds" if seed is None else f"seed {seed}")
        unnoticed += not any(cell.startswith("seed") for cell in cells)
        print(f"| `{name}` | {one.rule} | {one.breaks} | {cells[0]} | {cells[1]} |", flush=True)
    return 1 if unnoticed else 0


def show_controls(controls: dict[tuple[tuple[bool, str, str | None], int], str]) -> int:
    """Run these with all rules in their places; returns in how many something was found."""
    alarms = 0
    for (_, seed), name in controls.items():
        error = run_mutated(name, seed, taken_out=False)
        if error is not None:
            alarms += 1
            print(f"{name}, seed {seed}, all rules kept: {type(error).__name__}: {error}"[:300], flush=True)
    print(f"with all rules in their places: {len(controls)} runs, {alarms or 'no'} alarms", flush=True)
    return alarms


def show_pairs(seed: int, only: str | None) -> int:
    """Run each scenario of the quorum journal with each focus; returns the number of runs with an alarm."""
    alarms = runs = 0
    for focus in sorted(FOCUSES.keys() - ALONE):
        for scenario in sorted(SCENARIOS.keys() - {"outages"}):  # there the faults are fixed
            if only not in (None, focus):
                continue
            runs += 1
            try:
                ClusterWorld(seed, local=False, scenario=scenario, focus=FOCUSES[focus].apply).run(CLUSTER_SECONDS)
            except Exception as error:
                alarms += 1
                print(f"{scenario}, {focus}, seed {seed}: {type(error).__name__}: {error}"[:300], flush=True)
    print(f"each scenario with each focus: {runs} runs, {alarms or 'no'} alarms", flush=True)
    return alarms


if __name__ == "__main__":
    sys.exit(main())

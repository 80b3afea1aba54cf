"""``python -m tests.simulator --seeds N``: run many seeds, and say what they found."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter

from tests.simulator.cluster import SECONDS, ClusterWorld
from tests.simulator.cluster_mutations import MUTATIONS, run_mutated
from tests.simulator.rules import RULES
from tests.simulator.scenarios import SCENARIOS
from tests.simulator.world import World


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds (default %(default)s)")
    parser.add_argument("--first", type=int, default=1, help="the first seed (default %(default)s)")
    parser.add_argument("--steps", type=int, default=2000, help="steps of each run (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no seed after so long")
    parser.add_argument("--trace", action="store_true", help="print the last calls of a seed that fails")
    parser.add_argument("--rot", action="store_true", help="flip bits on the disk too")
    parser.add_argument("--cluster", action="store_true", help="run whole clusters, each for some virtual seconds")
    parser.add_argument("--journal", choices=("quorum", "local"), help="with --cluster: only on this one")
    parser.add_argument("--scenario", choices=tuple(SCENARIOS), help="with --cluster: only this one")
    parser.add_argument(
        "--mutations", action="store_true", help="take each rule out in turn; at most --seeds runs for each"
    )
    parser.add_argument("--only", help="with --mutations: only this one")
    parser.add_argument("--control", action="store_true", help="with --mutations: the same trouble, and all rules kept")
    arguments = parser.parse_args()
    if arguments.mutations:
        return show_mutations(arguments.first, arguments.seeds, arguments.only, taken_out=not arguments.control)
    began = time.perf_counter()
    totals: Counter[str] = Counter()
    failed: list[int] = []
    done = 0
    virtual = 0.0
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        if time.perf_counter() - began > arguments.seconds:
            break
        world: World | ClusterWorld
        if arguments.cluster:
            local = None if arguments.journal is None else arguments.journal == "local"
            world = ClusterWorld(seed, local=local, scenario=arguments.scenario, trace=arguments.trace)
        else:
            world = World(seed, arguments.trace, arguments.rot)
        done += 1
        try:
            report = world.run(SECONDS) if isinstance(world, ClusterWorld) else world.run(arguments.steps)
        except KeyboardInterrupt:
            break
        except BaseException as error:
            failed.append(seed)
            print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
            if arguments.trace:
                print("\n".join((world.events or [])[-60:]))
                traceback.print_exc()
            continue
        totals.update(report.counts)
        if isinstance(world, World):
            totals["receives"] += world.model.receives
            totals["deliveries"] += world.model.deliveries
            totals["messages"] += len(world.model.messages)
        virtual += report.seconds
    seconds = time.perf_counter() - began
    each = "a cluster" if arguments.cluster else f"{arguments.steps} steps"
    print(f"{done} seeds of {each} in {seconds:.0f} s, {virtual / 3600:.1f} hours of virtual time")
    for name, count in sorted(totals.items()):
        print(f"  {name:<14}{count:>12,}")
    print(f"failed: {failed if failed else 'none'}")
    return 1 if failed else 0


def show_mutations(first: int, most: int, only: str | None, *, taken_out: bool) -> int:
    """Print the table of the rules: what takes each out, and which seeds notice.

    With the rules in their places, what is printed is what the same trouble found.
    """
    print("| rule | mutation | what it breaks | noticed in seed | by |\n|---|---|---|---|---|")
    wrong = 0
    for rule in RULES:
        for mutation in (one for one in MUTATIONS.values() if one.rule == rule.name):
            if only not in (None, mutation.name):
                continue
            noticed = told = ""
            for seed in range(first, first + most):
                error = run_mutated(mutation.name, seed, taken_out=taken_out)
                if error is not None:
                    noticed, told = str(seed), f"{type(error).__name__}: {error}"[:80].replace("|", "/")
                    break
            wrong += (not noticed) == taken_out
            print(f"| {rule.name} | `{mutation.name}` | {mutation.breaks} | {noticed} | {told} |", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

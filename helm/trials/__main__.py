"""``python -m helm.trials``, or ``make kube``: the chart on a real Kubernetes control plane, which is built for
it.

With simulated nodes, whose pods are Ready and run nothing (:mod:`helm.trials.trial`), for each values file; or,
with ``--node``, with one real node, whose pods run the image (:mod:`helm.trials.real`).  The exit code is 1 when
a step failed, or one that has to fail did not.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from helm.trials import real, spark, trial
from helm.trials.cluster import KubeClusterFailed
from helm.trials.programs import KUBERNETES, CannotBuild
from helm.trials.real import FORMS
from tests.helm.chart import FILES
from tests.servers.cassandra_server import CassandraMissing

MARK = "<!-- results -->"


def heading() -> str:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return (
        f"## {datetime.now(UTC):%Y-%m-%d}, commit {commit.stdout.strip() or 'unknown'}\n\n"
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}; "
        f"Kubernetes {KUBERNETES}, helm {trial.helm_version()}."
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m helm.trials", description="The chart on a real control plane.")
    parser.add_argument("values", nargs="*", help=f"values files of the tests ({', '.join(FILES)}); without, all")
    parser.add_argument("--node", action="store_true", help="a real node, as root; the image is built first")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS), help="of the service, on a real node")
    parser.add_argument("--stand-in", action="store_true", help="build the image as `scripts/build-image --stand-in`")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="of the clients on a real node")
    parser.add_argument("--keep", type=Path, help=f"write the result into this file, below its line {MARK}")
    arguments = parser.parse_args()
    if unknown := set(arguments.values) - FILES.keys():
        parser.error(f"there are no such values files: {', '.join(sorted(unknown))}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends all started processes
    try:
        if arguments.node:
            what = "One real node"
            passed, summary = real.run(arguments.forms, arguments.seed, arguments.stand_in)
        else:
            what = "Simulated nodes"
            passed, summary = trial.run(arguments.values or list(FILES), (*trial.CASES, spark.streamed))
    except (CannotBuild, CassandraMissing, KubeClusterFailed, trial.TrialFailed) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    result = f"{heading()}\n\n### {what}\n\n{summary}\n"
    print(f"\n{result}")
    if arguments.keep is not None:
        head, mark, earlier = arguments.keep.read_text().partition(MARK)
        assert mark, f"{arguments.keep} has no line {MARK}"
        arguments.keep.write_text(f"{head}{mark}\n\n{result}{earlier}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

"""``python -m spark_analytics JOB …``, or ``spark-submit …/spark_analytics/__main__.py JOB …``: runs one of the jobs.

Instead of a job there may be what Spark calls its own image with in Kubernetes (:mod:`spark_analytics.pod`).

A job is a module with ``HELP``, ``arguments(parser)``, which adds its own options, and ``run(options, lake)``, which
does it, shows how far it is, and returns the exit status.  It raises :class:`ValueError` for options that do not fit
together.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from typing import Any, Final

try:
    from billing.lake import Lake, LakeUnavailable
    from billing.tables import Outrun
    from billing.where import LAKE_VARIABLE, lake_told
    from spark_analytics import pod
    from spark_analytics.session import SPARK_ERRORS, JobFailed, said
except ModuleNotFoundError as missing:
    sys.exit(f"the package {missing.name} is not installed here: pip install 'holdfast[spark]'")

JOBS: Final = {
    "batch": "spark_analytics.batch",
    "stream": "spark_analytics.streaming",
    "analyse": "spark_analytics.analytics",
    "check": "spark_analytics.quality",
    "generate": "spark_analytics.generator",
    "rate": "spark_analytics.rating",
}


def main(given: list[str]) -> int:
    if given and given[0] in pod.ROLES:
        try:
            pod.become(given)
        except (pod.MissingVariable, OSError) as error:
            print(error, file=sys.stderr)
            return 1
    parser = argparse.ArgumentParser(prog="python -m spark_analytics", description="Spark's jobs over the usage lake.")
    for_all = argparse.ArgumentParser(add_help=False)
    for_all.add_argument(
        "--lake",
        metavar="URL",
        help=f"the usage lake, or its folder (default: {LAKE_VARIABLE} in the environment, which is the place of a URL "
        "with keys in it: command lines are for everybody to read)",
    )
    for_all.add_argument("--master", help="Spark's (default: spark-submit's, or else all cores of this machine)")
    for_all.add_argument(
        "--memory", metavar="4g", help="for Spark in this process (default: spark-submit's or Spark's)"
    )
    chosen = parser.add_subparsers(dest="job", metavar="JOB", required=True)
    for name, module in JOBS.items():
        job: Any = import_module(module)
        job.arguments(chosen.add_parser(name, help=job.HELP, description=job.HELP, parents=[for_all]))
    options = parser.parse_args(given)
    job = import_module(JOBS[options.job])
    url = options.lake or lake_told()
    if url is None:
        parser.error(f"name the lake with --lake, or set {LAKE_VARIABLE}")
    try:
        status: int = job.run(options, Lake(url))
    except KeyboardInterrupt:
        return 130
    except ValueError as error:
        parser.error(str(error))
    except (JobFailed, LakeUnavailable, Outrun) as error:
        print(error, file=sys.stderr)
        return 1
    except SPARK_ERRORS as error:
        print(said(error), file=sys.stderr)
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

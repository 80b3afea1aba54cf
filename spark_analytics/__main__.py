"""``python -m spark_analytics JOB …``, or ``spark-submit …/spark_analytics/__main__.py JOB …``: runs one of the jobs.

Instead of a job, the arguments can be those of Spark's own image in Kubernetes (:mod:`spark_analytics.pod`).

``JOB … then JOB …`` runs jobs in sequence in one Spark session, and stops at the first that fails.

A job is a module with ``HELP``, ``arguments(parser)``, which adds its own options, and ``run(options, lake)``, which
runs it, shows its progress, and returns the exit status.  It raises :class:`ValueError` for inconsistent options.  A
job that ends by itself also has ``STEP``, its display name, and ``input_bytes(options, lake)``, the size of its input,
which determines before Spark starts whether the input is small (:mod:`spark_analytics.input_size`).
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from typing import Any, Final

try:
    from billing.lake.lake import Lake, LakeUnavailable
    from billing.lake.snapshot import Outrun
    from billing.metering.lake_variable import LAKE_VARIABLE, lake_from_environment
    from spark_analytics import pod
    from spark_analytics.progress import print_step
    from spark_analytics.session import SPARK_ERRORS, JobFailed, error_text, session
except ModuleNotFoundError as missing:
    sys.exit(f"the package {missing.name} is not installed here: pip install 'holdfast[spark]'")

JOBS: Final = {
    "batch": "spark_analytics.batch",
    "stream": "spark_analytics.streaming.job",
    "analyse": "spark_analytics.analytics",
    "check": "spark_analytics.quality",
    "generate": "spark_analytics.generator",
    "rate": "spark_analytics.rating",
}

THEN: Final = "then"
_FOR_ALL: Final = ("lake", "master", "memory")
"""Options that are given once for all jobs."""


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
        help=f"the usage lake, or its folder (default: {LAKE_VARIABLE} in the environment; use that for a URL "
        "with keys, because all users can read command lines)",
    )
    for_all.add_argument("--master", help="Spark master (default: spark-submit's, or else all cores of this machine)")
    for_all.add_argument(
        "--memory", metavar="4g", help="for Spark in this process (default: spark-submit's or Spark's)"
    )
    chosen = parser.add_subparsers(dest="job", metavar="JOB", required=True)
    for name, module in JOBS.items():
        job: Any = import_module(module)
        job.arguments(chosen.add_parser(name, help=job.HELP, description=job.HELP, parents=[for_all]))
    asked = [parser.parse_args(one) for one in _jobs(given)]
    for name in _FOR_ALL:
        values = {value for one in asked if (value := getattr(one, name)) is not None}
        if len(values) > 1:
            parser.error(f"--{name} is the same for all jobs: give it once")
        for one in asked:
            setattr(one, name, next(iter(values), None))
    url = asked[0].lake or lake_from_environment()
    if url is None:
        parser.error(f"name the lake with --lake, or set {LAKE_VARIABLE}")
    try:
        return _run(asked, Lake(url))
    except KeyboardInterrupt:
        return 130
    except ValueError as error:
        parser.error(str(error))
    except (JobFailed, LakeUnavailable, Outrun) as error:
        print(error, file=sys.stderr)
        return 1
    except SPARK_ERRORS as error:
        print(error_text(error), file=sys.stderr)
        return 1


def _jobs(given: list[str]) -> list[list[str]]:
    """The arguments of each job."""
    found: list[list[str]] = [[]]
    for word in given:
        if word == THEN:
            found.append([])
        else:
            found[-1].append(word)
    return found


def _run(asked: list[argparse.Namespace], lake: Lake) -> int:
    """Run jobs, each with the settings for the input of all of them together; returns the first status other than 0."""
    jobs: list[Any] = [import_module(JOBS[one.job]) for one in asked]
    for one, job in zip(asked, jobs, strict=True):
        if len(asked) > 1 and not hasattr(job, "STEP"):
            raise ValueError(f"{one.job} runs alone, not before or after {THEN!r}")
    sized = all(hasattr(job, "input_bytes") for job in jobs)
    input_bytes = sum(job.input_bytes(one, lake) for one, job in zip(asked, jobs, strict=True)) if sized else None
    for one in asked:
        one.input_bytes = input_bytes
    if len(asked) == 1:
        status: int = jobs[0].run(asked[0], lake)
        return status
    first = asked[0]
    session("holdfast", lake, master=first.master, memory=first.memory, input_bytes=input_bytes)
    for one, job in zip(asked, jobs, strict=True):
        with print_step(job.STEP):
            status = job.run(one, lake)
        if status != 0:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

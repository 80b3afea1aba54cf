"""Runs Spark jobs as a process of their own, for commands that need their results."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from shutil import which
from typing import NamedTuple

from billing.metering.lake_variable import environment_of
from holdfast.commandline.progress import Progress
from holdfast.process.parent_death import die_with_parent
from holdfast.runtime.python import python

_STANDARD_ERROR = 2


class SparkJobFailed(Exception):
    """A job failed; the text says why."""


class Job(NamedTuple):
    """A Spark job with its arguments."""

    name: str
    arguments: Sequence[str]


def run_jobs(jobs: Sequence[Job], lake: str, about: str, progress: Progress) -> None:
    """Run ``python -m spark_analytics NAME ARGUMENTS then NAME ARGUMENTS …`` on this lake.

    Their output goes to standard error.  The jobs share one process and one Spark, which end with this process.  Raises
    :class:`SparkJobFailed`.
    """
    if find_spec("pyspark") is None:
        raise SparkJobFailed(f"{about} needs Spark, which is not installed here: pip install 'holdfast[spark]'")
    if which("java") is None and not os.path.exists(os.path.join(os.environ.get("JAVA_HOME", ""), "bin/java")):
        raise SparkJobFailed(
            f"{about} needs Spark, and Spark needs Java 17 or newer, which is not installed here "
            "(Debian, Ubuntu: sudo apt-get install default-jre-headless)"
        )
    progress.step(f"{about}, with Spark")
    given = [word for job in jobs for word in ("then", job.name, *job.arguments)][1:]
    command = [*python(), "-m", "spark_analytics", *given]
    done = subprocess.run(
        command,
        env=environment_of(lake),  # the lake's URL may contain keys
        stdin=subprocess.DEVNULL,
        stdout=_STANDARD_ERROR,
        preexec_fn=die_with_parent,  # safe: a command has no threads
        check=False,
    )
    if done.returncode != 0:
        names = " then ".join(job.name for job in jobs)
        raise SparkJobFailed(f"{about} was not done: python -m spark_analytics {names} ended with {done.returncode}")

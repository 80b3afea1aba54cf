"""Starts Spark's jobs as processes of their own, for the commands that have them do something first."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from shutil import which

from billing.where import environment_of
from holdfast.parent import die_with_parent
from holdfast.progress import Progress
from holdfast.python import python

_STANDARD_ERROR = 2


class JobFailed(Exception):
    """A job was not done; the text says why."""


def run_job(name: str, lake: str, arguments: Sequence[str], about: str, progress: Progress) -> None:
    """Run ``python -m spark_analytics NAME ARGUMENTS`` on this lake; what it tells goes to standard error.

    It ends with this process, and Spark with it.  Raises :class:`JobFailed`.
    """
    if find_spec("pyspark") is None:
        raise JobFailed(f"{about} needs Spark, which is not installed here: pip install 'holdfast[spark]'")
    if which("java") is None and not os.path.exists(os.path.join(os.environ.get("JAVA_HOME", ""), "bin/java")):
        raise JobFailed(
            f"{about} needs Spark, and Spark needs Java 17 or newer, which is not installed here "
            "(Debian, Ubuntu: sudo apt-get install default-jre-headless)"
        )
    progress.step(f"{about}, with Spark")
    command = [*python(), "-m", "spark_analytics", name, *arguments]
    done = subprocess.run(
        command,
        env=environment_of(lake),  # its URL may have keys in it
        stdin=subprocess.DEVNULL,
        stdout=_STANDARD_ERROR,
        preexec_fn=die_with_parent,  # a command has no threads
        check=False,
    )
    if done.returncode != 0:
        raise JobFailed(f"{about} was not done: python -m spark_analytics {name} ended with {done.returncode}")

"""Entry point of the image of the jobs if Spark runs its driver and executors in separate pods.

``spark-submit`` creates the driver's pod, and the driver those of its executors.  Their first argument names the role;
further arguments and variables have the rest (Spark's own image does the same: ``entrypoint.sh`` in its
``resource-managers/kubernetes``).  The driver runs one of the jobs, by :data:`MAIN`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pyspark

ROLES: Final = ("driver", "executor")
MAIN: Final = "local:///venv/jobs.py"
"""Program that the driver of the image runs: a link to the jobs."""

_BACKEND: Final = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_OPTION: Final = "SPARK_JAVA_OPT_"


class MissingVariable(Exception):
    """A variable that Spark sets in its pods is missing; the text names it."""


def command(arguments: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Command of the driver or of an executor in this image.  Raises :class:`MissingVariable`."""

    def value(name: str) -> str:
        if name not in variables:
            raise MissingVariable(f"{arguments[0]} is the entry point of Spark on Kubernetes, but {name} is not set")
        return variables[name]

    home = Path(variables.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    if arguments[0] == "driver":
        bind = f"spark.driver.bindAddress={value('SPARK_DRIVER_BIND_ADDRESS')}"
        return [str(home / "bin" / "spark-submit"), "--conf", bind, "--deploy-mode", "client", *arguments[1:]]
    java = f"{variables['JAVA_HOME']}/bin/java" if variables.get("JAVA_HOME") else "java"
    numbers = sorted(int(name.removeprefix(_OPTION)) for name in variables if name.startswith(_OPTION))
    memory = value("SPARK_EXECUTOR_MEMORY")
    found = (
        *(variables.get("SPARK_CONF_DIR"), variables.get("SPARK_CLASSPATH"), f"{home}/jars/*"),
        *(variables.get("SPARK_EXTRA_CLASSPATH"), variables.get("SPARK_DIST_CLASSPATH")),
    )
    options = {
        "--driver-url": "SPARK_DRIVER_URL",
        "--executor-id": "SPARK_EXECUTOR_ID",
        "--cores": "SPARK_EXECUTOR_CORES",
        "--app-id": "SPARK_APPLICATION_ID",
        "--hostname": "SPARK_EXECUTOR_POD_IP",
        "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
        "--podName": "SPARK_EXECUTOR_POD_NAME",
    }
    return [
        *(java, *(variables[f"{_OPTION}{number}"] for number in numbers), f"-Xms{memory}", f"-Xmx{memory}"),
        *("-cp", ":".join(one for one in found if one), _BACKEND),
        *(argument for option, name in options.items() for argument in (option, value(name))),
    ]


def become(arguments: Sequence[str]) -> None:
    """Replace this process, so that the driver or executor gets its signals.  Raises :class:`MissingVariable`."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    wanted = command(arguments, os.environ)
    os.execvp(wanted[0], wanted)

"""The stream as a SparkApplication, with everything real except the operator and the machines of its pods.

The operator's work is done here: ``spark-submit`` in cluster mode, with the object's templates and sizes.  This
creates the driver's pod, in a namespace that accepts only restricted pods.  Its arguments and variables are
then run on this machine, as the image would, with the token of its service account: it creates its executors'
pods, whose arguments and variables are run in the same way.  Together they count the records of a lake.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pyspark

from billing.lake.lake import Lake
from helm.trials.cluster import LOOPBACK, ControlPlane, Object
from helm.trials.trial import RELEASE, WAIT_OPTIONS, Space, TrialFailed
from holdfast.process.parent_death import die_with_parent
from spark_analytics import __main__ as jobs
from spark_analytics.pod import MAIN
from tests.helm.chart import CHART, FILES
from tests.spark_analytics.streaming.test_streaming import arrive, recorded

VALUES: Final = (
    *("--values", str(FILES["many"]), "--set", "usage.enabled=true,usage.lake=s3://bucket/usage"),
    *("--set", "billing.enabled=true,billing.stream.enabled=true,billing.stream.operator.enabled=true"),
    *("--set", "backend.replicas=1,frontend.replicas=1,metadata.replicas=0,manager.replicas=0"),
)
NAME: Final = f"{RELEASE}-holdfast-stream"
HOME: Final = Path(pyspark.__file__).parent
CONFIGURATION: Final = "/opt/spark/conf"
"""Configuration folder in Spark's pods."""
RECORDS: Final = 500
SECONDS_MAX: Final = 240.0


def streamed(cluster: ControlPlane) -> str:
    """Run the trial; returns its result.  Raises :class:`TrialFailed`."""
    space = Space(cluster, "spark")
    space.do("helm", "install", RELEASE, str(CHART), *WAIT_OPTIONS, *VALUES)
    folder = cluster.folder / "spark"
    folder.mkdir()
    (application,) = space.found("sparkapplication", NAME)
    _submit(space, folder, application["spec"])
    (driver,) = space.found("pods", "--selector", "spark-role=driver")
    lake = Lake(str(folder / "lake"))
    arrive(
        lake, "ab01", recorded(random.Random(1), RECORDS, datetime.now(UTC)), datetime.now(UTC) - timedelta(minutes=1)
    )
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        processes["driver"] = _run_driver(space, folder, driver, lake)
        _follow(space, folder, processes)
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    output = (folder / "driver.log").read_text()
    if processes["driver"].returncode != 0 or f"{RECORDS} more records" not in output or len(processes) < 2:
        raise TrialFailed(f"the driver has ended with {processes['driver'].returncode}: {output[-4000:]}")
    space.do("helm", "uninstall", RELEASE, *WAIT_OPTIONS)
    return (
        "the stream as a SparkApplication: its driver makes an executor, in restricted pods, and each record is counted"
    )


def _submit(space: Space, folder: Path, spec: Object) -> None:
    """Submit like the operator.  Raises :class:`TrialFailed`."""
    driver, executor = spec["driver"], spec["executor"]
    settings = {
        "spark.kubernetes.namespace": space.name,
        "spark.kubernetes.driver.pod.name": f"{NAME}-driver",
        "spark.kubernetes.container.image": spec["image"],
        "spark.kubernetes.container.image.pullPolicy": spec["imagePullPolicy"],
        "spark.kubernetes.submission.waitAppCompletion": "false",
        # Timeouts for a busy machine; the defaults are 10 s.
        "spark.kubernetes.submission.connectionTimeout": "60000",
        "spark.kubernetes.submission.requestTimeout": "60000",
        "spark.kubernetes.driver.connectionTimeout": "60000",
        "spark.kubernetes.driver.requestTimeout": "60000",
        "spark.kubernetes.authenticate.driver.serviceAccountName": driver["serviceAccount"],
        "spark.driver.cores": str(driver["cores"]),
        "spark.kubernetes.driver.request.cores": driver["coreRequest"],
        "spark.driver.memory": driver["memory"],
        "spark.driver.memoryOverhead": driver["memoryOverhead"],
        "spark.executor.instances": str(executor["instances"]),
        "spark.executor.cores": str(executor["cores"]),
        "spark.executor.memory": executor["memory"],
        "spark.executor.memoryOverhead": executor["memoryOverhead"],
        **spec["sparkConf"],
    }
    for kind, part in (("driver", driver), ("executor", executor)):
        file = folder / f"{kind}.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", **part["template"]}))
        settings[f"spark.kubernetes.{kind}.podTemplateFile"] = str(file)
    command = [
        *(str(HOME / "bin" / "spark-submit"), "--master", f"k8s://https://{LOOPBACK}:{space.cluster.port}"),
        *("--deploy-mode", "cluster", "--name", NAME),
        *(argument for name, value in settings.items() for argument in ("--conf", f"{name}={value}")),
        *(spec["mainApplicationFile"], *spec["arguments"]),
    ]
    environment = {**os.environ, "KUBECONFIG": str(space.cluster.kubeconfig)}
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    if done.returncode != 0:
        raise TrialFailed(f"spark-submit has failed: {done.stderr[-4000:]}")


def _run_driver(space: Space, folder: Path, pod: Object, lake: Lake) -> subprocess.Popen[bytes]:
    """Run the driver's command with its own rights at the API server, until there are no more records."""
    (container,) = pod["spec"]["containers"]
    if MAIN not in container["args"]:
        raise TrialFailed(f"the driver is not to run {MAIN}: {container['args']}")
    (mount,) = (one["name"] for one in container["volumeMounts"] if one["mountPath"] == CONFIGURATION)
    (volume,) = (one for one in pod["spec"]["volumes"] if one["name"] == mount)
    (configuration,) = space.found("configmap", volume["configMap"]["name"])
    own = folder / "conf"
    own.mkdir()
    for name, text in configuration["data"].items():
        (own / name).write_text(text)
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(space.do("kubectl", "create", "token", pod["spec"]["serviceAccountName"]))
    here = {
        "spark.driver.host": LOOPBACK,
        "spark.kubernetes.driver.master": f"https://{LOOPBACK}:{space.cluster.port}",
        "spark.kubernetes.executor.podTemplateFile": str(folder / "executor.json"),
        "spark.kubernetes.authenticate.driver.mounted.oauthTokenFile": str(token),
        "spark.kubernetes.authenticate.driver.mounted.caCertFile": str(space.cluster.certificates / "apiserver.crt"),
    }
    role, *given = [
        argument.replace(CONFIGURATION, str(own)).replace(MAIN, str(Path(jobs.__file__)))
        for argument in container["args"]
    ]
    added = [argument for name, value in here.items() for argument in ("--conf", f"{name}={value}")]
    environment = {**_variables(pod), "SPARK_CONF_DIR": str(own), "HOLDFAST_USAGE_LAKE": lake.root}
    return _spawn(folder, "driver", [role, *added, *given, "--once"], environment)


def _follow(space: Space, folder: Path, processes: dict[str, subprocess.Popen[bytes]]) -> None:
    """Run the executors as they are created, until the driver ends."""
    end = time.monotonic() + SECONDS_MAX
    while processes["driver"].poll() is None and time.monotonic() < end:
        for pod in space.found("pods", "--selector", "spark-role=executor"):
            name = pod["metadata"]["name"]
            if name not in processes:
                (container,) = pod["spec"]["containers"]
                environment = {**_variables(pod), "SPARK_EXECUTOR_POD_NAME": name}
                environment.pop("SPARK_CONF_DIR", None)
                processes[name] = _spawn(folder, name, container["args"], environment)
        time.sleep(0.5)


def _variables(pod: Object) -> dict[str, str]:
    """Environment of the pod's container; addresses of pods are replaced by this machine's."""
    (container,) = pod["spec"]["containers"]
    return {one["name"]: one.get("value", LOOPBACK) for one in container["env"]}


def _spawn(
    folder: Path, name: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    work = folder / f"{name}.work"
    work.mkdir()
    own = {"SPARK_LOCAL_DIRS": str(work), "HOME": str(work), "PATH": os.environ["PATH"], "PYTHONPATH": os.getcwd()}
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "spark_analytics", *arguments],
            env={**environment, **own},
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=die_with_parent,
        )

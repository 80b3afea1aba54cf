"""The chart, rendered by helm without a cluster."""

from __future__ import annotations

import copy
import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "holdfast"
HELM = ROOT / ".cache" / "helm" / "helm"
RELEASE, NAMESPACE = "mine", "queues"
FILES = {"default": CHART / "values.yaml", "demo": CHART / "values-demo.yaml"} | {
    file.stem: file for file in sorted((Path(__file__).parent / "values").glob("*.yaml"))
}
"""Values files that the chart is tested with."""

Manifest = dict[str, Any]


class HelmRefused(Exception):
    """Error output of helm."""


def helm(*arguments: str) -> str:
    """Run helm.  Raises :class:`HelmRefused`."""
    if not HELM.exists():
        raise FileNotFoundError(f"{HELM} is missing: scripts/install-helm fetches it")
    done = subprocess.run([str(HELM), *arguments], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise HelmRefused(done.stderr + done.stdout)
    return done.stdout


def render(*arguments: str, release: str = RELEASE) -> list[Manifest]:
    """Return all manifests for these arguments of ``helm template``.  Raises :class:`HelmRefused`."""
    text = helm("template", release, str(CHART), "--namespace", NAMESPACE, *arguments)
    return [manifest for manifest in yaml.safe_load_all(text) if manifest is not None]


@functools.cache
def rendered(name: str) -> tuple[Manifest, ...]:
    """Return the manifests of one of :data:`FILES`; not to be changed."""
    return tuple(render("--values", str(FILES[name])))


def kinds(manifests: tuple[Manifest, ...], *wanted: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] in wanted]


class Pod(NamedTuple):
    """A pod, or the template of pods."""

    name: str
    """Name of the object that creates it."""
    labels: dict[str, str]
    spec: dict[str, Any]
    replicas: int
    volumes: frozenset[str]
    """Names of volumes, including those claimed for each pod."""

    @property
    def component(self) -> str:
        return self.labels["app.kubernetes.io/component"]

    @property
    def containers(self) -> list[dict[str, Any]]:
        return [*self.spec.get("initContainers", ()), *self.spec["containers"]]


def pods(manifests: tuple[Manifest, ...]) -> Iterator[Pod]:
    for manifest in manifests:
        name, spec = manifest["metadata"]["name"], manifest.get("spec", {})
        if manifest["kind"] in ("SparkApplication", "ScheduledSparkApplication"):
            yield from _spark_pods(name, spec.get("template", spec))
            continue
        if manifest["kind"] == "Pod":
            template, replicas = manifest, 1
        elif manifest["kind"] in ("StatefulSet", "Deployment"):
            template, replicas = spec["template"], spec.get("replicas", 2)
        elif manifest["kind"] == "Job":
            template, replicas = spec["template"], 1
        elif manifest["kind"] == "CronJob":
            template, replicas = spec["jobTemplate"]["spec"]["template"], 1
        else:
            assert "template" not in spec, f"{manifest['kind']} makes pods, and the tests do not know it"
            continue
        claimed = {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", ())}
        volumes = frozenset(claimed | {volume["name"] for volume in template["spec"].get("volumes", ())})
        yield Pod(name, template["metadata"]["labels"], template["spec"], replicas, volumes)


def _spark_pods(name: str, spec: dict[str, Any]) -> Iterator[Pod]:
    """Pods that Spark makes from its templates."""
    for kind, ports in (("driver", {"rpc": 7078, "blocks": 7079}), ("executor", {"blocks": 7079})):
        template = copy.deepcopy(spec[kind]["template"])
        (container,) = template["spec"]["containers"]
        memory = spec[kind]["memory"]
        container["resources"] = {"requests": {"cpu": str(spec[kind]["cores"]), "memory": memory}}
        container["ports"] = [{"name": port, "containerPort": number} for port, number in ports.items()]
        volumes = frozenset(volume["name"] for volume in template["spec"]["volumes"])
        replicas = spec[kind].get("instances", 1)
        yield Pod(f"{name}-{kind}", template["metadata"]["labels"], template["spec"], replicas, volumes)


def own(manifests: tuple[Manifest, ...]) -> list[Pod]:
    """Return the pods that run ``holdfast``."""
    return [
        pod
        for pod in pods(manifests)
        if pod.component.removesuffix("-executor") not in ("backup", "billing", "stream", "cassandra", "redis")
    ]

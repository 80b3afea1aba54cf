"""The chart, rendered by helm without a cluster, and its containers' settings, read by Holdfast."""

import copy
import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from holdfast.settings import Settings, load

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "holdfast"
HELM = ROOT / ".cache" / "helm" / "helm"
RELEASE, NAMESPACE = "mine", "queues"
FILES = {"default": CHART / "values.yaml", "demo": CHART / "values-demo.yaml"} | {
    file.stem: file for file in sorted((Path(__file__).parent / "values").glob("*.yaml"))
}
"""Values files that the chart is tested with."""

SECRETS = {
    "access-key-id": "AKIAHOLDFASTTESTS001",
    "secret-access-key": "tests/only/secret",
    "master-key": "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE=",
    "username": "holdfast",
    "password": "tests only",
    "url": "redis://:secret@redis.databases.svc:6379/0",
}
"""Contents of the given Secrets, by entry."""

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
    def container(self) -> dict[str, Any]:
        """The only one; ValueError if there are several."""
        (container,) = self.spec["containers"]
        return dict(container)

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


# --- containers ---------------------------------------------------------------------------------------------------


def environment(pod: Pod, number: int) -> dict[str, str]:
    """Return the environment of the container, as Kubernetes makes it."""
    found = {"POD_NAME": f"{pod.name}-{number}"}
    for variable in pod.container["env"]:
        source = variable.get("valueFrom")
        if source is None:
            value = variable["value"]
        elif "fieldRef" in source:
            assert (variable["name"], source["fieldRef"]["fieldPath"]) == ("POD_NAME", "metadata.name")
            continue
        else:
            value = SECRETS[source["secretKeyRef"]["key"]]
        assert variable["name"] not in found, f"{variable['name']} is given twice"
        found[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda match: found[match[1]], value)
    return found


def settings(pod: Pod, manifests: tuple[Manifest, ...], folder: Path, number: int = 0) -> Settings:
    variables = environment(pod, number)
    config = variables.get("HOLDFAST_CONFIG")
    if config is not None:
        assert config == mounted(pod, "file") + "/holdfast.toml"
        (file,) = (one for one in kinds(manifests, "ConfigMap") if "holdfast.toml" in one["data"])
        variables["HOLDFAST_CONFIG"] = str(folder / "holdfast.toml")
        (folder / "holdfast.toml").write_text(file["data"]["holdfast.toml"])
    return load({}, variables)


def mounted(pod: Pod, volume: str) -> str:
    (mount,) = (mount for mount in pod.container["volumeMounts"] if mount["name"] == volume)
    return str(mount["mountPath"])


def serving(name: str) -> Iterator[tuple[Pod, tuple[Manifest, ...]]]:
    """Pods of one of :data:`FILES` that run ``holdfast`` for long, with all manifests."""
    manifests = rendered(name)
    yield from ((pod, manifests) for pod in own(manifests) if pod.component not in ("test", "migration"))

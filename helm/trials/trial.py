"""The chart's life cycle with each of the values files, and cases that have to fail."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import yaml

from helm.trials.cluster import ControlPlane, KubeClusterFailed, Object
from helm.trials.crds import definitions
from helm.trials.simulated import NODES, Simulated
from tests.helm.chart import CHART, FILES, helm

RELEASE: Final = "mine"
WAIT_OPTIONS: Final = ("--wait", "--timeout", "280s")
HASTE: Final = ("--wait", "--timeout", "12s")
"""Options of installations that have to fail."""
CHANGED: Final = (
    *("--set", "image.tag=next", "--set", "image.digest=", "--set", "settings.log_level=debug"),
    *("--set", "backend.replicas=4", "--set", "single.resources.requests.cpu=1"),
)
"""Changes made by the upgrade."""
STEPS: Final = ("validate", "install", "test", "jobs", "upgrade", "rollback", "test again", "uninstall", "again")
AT_A_TIME: Final = 3
"""Number of concurrent trials, which mostly wait for the ``minReadySeconds`` of backends."""
SERVING: Final = ("single", "frontend", "backend", "metadata", "manager")
COMPONENT: Final = "app.kubernetes.io/component"


class TrialFailed(Exception):
    """A step failed, or wrongly succeeded; the text says which, with its output."""


class Space:
    """A namespace that accepts only restricted pods."""

    def __init__(self, cluster: ControlPlane, name: str) -> None:
        self.cluster = cluster
        self.name = name
        label = {"pod-security.kubernetes.io/enforce": "restricted"}
        cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": label}})

    def attempt(self, tool: str, *arguments: str, given: str | None = None) -> tuple[bool, str]:
        """Run a tool; returns if it succeeds, and its output, on failure including standard error."""
        done = self.cluster.run(tool, "--namespace", self.name, *arguments, given=given)
        succeeded = done.returncode == 0
        return succeeded, done.stdout if succeeded else done.stdout + done.stderr

    def do(self, tool: str, *arguments: str, given: str | None = None) -> str:
        """Run a tool.  Raises :class:`TrialFailed`, with the events of the namespace."""
        succeeded, output = self.attempt(tool, *arguments, given=given)
        if not succeeded:
            going_on = self.cluster.get("pods,events", "--namespace", self.name)
            raise TrialFailed(f"{self.name}: {tool} {' '.join(arguments)}: {output.strip()}\n{going_on}")
        return output

    def found(self, *arguments: str) -> list[Object]:
        return self.cluster.found("--namespace", self.name, *arguments)


class Trial:
    """One values file, in a namespace of its own, with the seconds that each step took."""

    def __init__(self, cluster: ControlPlane, name: str) -> None:
        self.name = name
        self.values = ("--values", str(FILES[name]))
        self.space = Space(cluster, f"try-{name}")
        self.seconds: dict[str, float] = {}
        self.pods = 0

    def run(self) -> None:
        """Run all steps.  Raises :class:`TrialFailed`."""
        with self._step("validate"):
            validate(self.space.cluster, self.name, CHART, *self.values)
        with self._step("install"):
            self._install()
        images, keys, volumes = self._images(), self._keys(), self._volumes()
        self.pods = len(self.space.found("pods"))
        with self._step("test"):
            self._test()
        with self._step("jobs"):
            self._run_jobs()
        with self._step("upgrade"):
            self.space.do("helm", "upgrade", RELEASE, str(CHART), *WAIT_OPTIONS, *self.values, *CHANGED)
        upgraded = self._images()
        if not all(image.endswith(":next") for _, image in upgraded):
            raise TrialFailed(f"{self.name}: after the upgrade the pods run {upgraded}")
        with self._step("rollback"):
            self.space.do("helm", "rollback", RELEASE, "1", *WAIT_OPTIONS)
        if self._images() != images:
            raise TrialFailed(f"{self.name}: before the upgrade the pods ran {images}, and run {self._images()}")
        with self._step("test again"):
            self._test()
        with self._step("uninstall"):
            self._uninstall()
        self._leaves_what_lasts()
        with self._step("again"):
            self._install()
        if self._keys() != keys or not volumes.items() <= self._volumes().items():
            raise TrialFailed(f"{self.name}: the second release has not found the keys and volumes of the first")
        self._uninstall()

    @contextmanager
    def _step(self, what: str) -> Iterator[None]:
        started_at = time.monotonic()
        yield
        self.seconds[what] = time.monotonic() - started_at

    def _install(self) -> None:
        self.space.do("helm", "install", RELEASE, str(CHART), *WAIT_OPTIONS, *self.values)

    def _uninstall(self) -> None:
        self.space.do("helm", "uninstall", RELEASE, *WAIT_OPTIONS)

    def _test(self) -> None:
        self.space.do("helm", "test", RELEASE, "--timeout", "60s")

    def _run_jobs(self) -> None:
        """Start the scheduled jobs at once: their pods get a node with the volumes that they need."""
        for one in self.space.found("cronjobs"):
            name = one["metadata"]["name"]
            self.space.do("kubectl", "create", "job", f"{name}-now", f"--from=cronjob/{name}")
            self.space.do("kubectl", "wait", "--for=condition=Complete", f"job/{name}-now", "--timeout=60s")
            self.space.do("kubectl", "delete", f"job/{name}-now")

    def _images(self) -> set[tuple[str, str]]:
        """Images of the service's processes, by component."""
        return {
            (pod["metadata"]["labels"][COMPONENT], container["image"])
            for pod in self.space.found("pods", "--selector", f"{COMPONENT} in ({','.join(SERVING)})")
            if "deletionTimestamp" not in pod["metadata"]
            for container in pod["spec"]["containers"]
        }

    def _keys(self) -> dict[str, object]:
        """Contents of the Secrets created by the chart."""
        made = self.space.found("secrets", "--selector", f"app.kubernetes.io/instance={RELEASE}")
        return {one["metadata"]["name"]: one["data"] for one in made}

    def _volumes(self) -> dict[str, str]:
        """Volume of each claim."""
        return {one["metadata"]["name"]: one["spec"]["volumeName"] for one in self.space.found("pvc")}

    def _leaves_what_lasts(self) -> None:
        """Check that only volumes, the chart's Secrets and, as usual with helm, the pod of the last test are left."""
        lasting = {f"secret/{name}" for name in self._keys()}
        lasting |= {f"persistentvolumeclaim/{name}" for name in self._volumes()}
        lasting |= {"serviceaccount/default", "configmap/kube-root-ca.crt"}
        listed = self.space.do("kubectl", "api-resources", "--namespaced", "--verbs=list", "--output=name").split()
        wanted = ",".join(kind for kind in listed if kind.split(".")[0] not in ("events", "endpoints"))

        def left() -> set[str]:
            return set(self.space.do("kubectl", "get", wanted, "--output=name", "--ignore-not-found").split())

        def over() -> set[str]:
            return {one for one in left() - lasting if not (one.startswith("pod/") and one.endswith("-check"))}

        try:
            self.space.cluster.until("what is made by controllers goes", lambda: not over(), seconds=30.0)
        except KubeClusterFailed as error:
            raise TrialFailed(f"{self.name}: the uninstall has left {over()}: {error}") from None
        if not lasting <= left():
            raise TrialFailed(f"{self.name}: the uninstall has removed {lasting - left()}")


def validate(cluster: ControlPlane, name: str, chart: Path, *arguments: str) -> None:
    """Validate strictly by the API server: unknown fields are refused.  Raises :class:`TrialFailed`."""
    space = Space(cluster, f"validate-{name}")
    shown = space.do("helm", "template", RELEASE, str(chart), *arguments)
    accounts = [one for one in yaml.safe_load_all(shown) if one is not None and one["kind"] == "ServiceAccount"]
    cluster.create(*accounts)  # a pod is refused unless its service account exists
    space.do("kubectl", "apply", "--dry-run=server", "--validate=strict", "--filename=-", given=shown)


# --- required failures, and other cases
# ---------------------------------------------------------------------------


def never_ready(cluster: ControlPlane) -> str:
    """An upgrade to pods that never become Ready fails, and the rollback works without help."""
    space = Space(cluster, "never-ready")
    space.do("helm", "install", RELEASE, str(CHART), *WAIT_OPTIONS)
    broken = ("--set-string", "labels.holdfast-test/ready=false")
    _refused(space, "not ready", "helm", "upgrade", RELEASE, str(CHART), *HASTE, *broken)
    space.do("helm", "rollback", RELEASE, "1", *WAIT_OPTIONS)
    space.do("helm", "test", RELEASE, "--timeout", "60s")
    space.do("helm", "uninstall", RELEASE, *WAIT_OPTIONS)
    return "an upgrade to a pod that never gets Ready fails in its time, and the rollback brings the release back"


def misspelt(cluster: ControlPlane) -> str:
    """A field unknown to Kubernetes is refused, by strict validation and by the installation."""
    space = Space(cluster, "misspelt")
    chart = cluster.folder / "misspelt"
    shutil.copytree(CHART, chart)
    pods = chart / "templates" / "_pods.tpl"
    pods.write_text(pods.read_text().replace("readinessProbe:", "readynessProbe:"))
    try:
        validate(cluster, space.name, chart)
    except TrialFailed as error:
        if "readynessProbe" not in str(error):
            raise
    else:
        raise TrialFailed("a manifest with a readynessProbe has passed the strict check")
    _refused(space, "readynessProbe", "helm", "install", RELEASE, str(chart), *HASTE)
    return "a misspelt field is refused by the strict check, and by the installation"


def failing_test(cluster: ControlPlane) -> str:
    """``helm test`` fails when its pod does."""
    space = Space(cluster, "failing-test")
    space.do("helm", "install", RELEASE, str(CHART), *WAIT_OPTIONS, "--set-string", "labels.holdfast-test/exit=1")
    _refused(space, "failed", "helm", "test", RELEASE, "--timeout", "60s")
    space.do("helm", "uninstall", RELEASE, *WAIT_OPTIONS)
    return "`helm test` fails when its pod does"


def failing_migration(cluster: ControlPlane) -> str:
    """Nothing is installed before the tables are ready."""
    space = Space(cluster, "failing-migration")
    broken = ("--values", str(FILES["many"]), "--set-string", "labels.holdfast-test/exit=1")
    _refused(space, "pre-install", "helm", "install", RELEASE, str(CHART), *HASTE, *broken)
    if space.found("statefulsets,deployments"):
        raise TrialFailed("the migration has failed, and pods of the new version were installed")
    return "when the migration's Job fails, so does the installation, and no pod of the service is there"


def autoscaled_later(cluster: ControlPlane) -> str:
    """As docs/operations.md describes: autoscaling enabled after manual scaling does not fall back to one frontend."""
    space = Space(cluster, "autoscaled-later")
    values = ("--values", str(FILES["many"]), "--set", "backend.replicas=1,frontend.replicas=5")
    space.do("helm", "install", RELEASE, str(CHART), *WAIT_OPTIONS, *values)
    frontends = f"statefulset/{RELEASE}-holdfast-frontend"
    space.do("kubectl", "scale", frontends, "--replicas=6")
    space.do(
        "helm", "upgrade", RELEASE, str(CHART), *WAIT_OPTIONS, *values, "--set", "frontend.autoscaling.enabled=true"
    )
    (one,) = space.found(frontends)
    if one["spec"]["replicas"] != 6:
        raise TrialFailed(f"with the autoscaler there are {one['spec']['replicas']} frontends, and there were 6")
    space.do("helm", "uninstall", RELEASE, *WAIT_OPTIONS)
    return "autoscaling that is switched on after `kubectl scale` leaves the frontends as they are"


def _refused(space: Space, why: str, tool: str, *arguments: str) -> None:
    succeeded, output = space.attempt(tool, *arguments)
    if succeeded or why not in output:
        raise TrialFailed(f"{space.name}: {tool} {' '.join(arguments)} has to fail with {why!r}, but printed: {output}")


CASES: Final = (never_ready, misspelt, failing_test, failing_migration, autoscaled_later)


# --- runner
# -------------------------------------------------------------------------------------------------------


def run(names: Sequence[str], cases: Sequence[Callable[[ControlPlane], str]]) -> tuple[bool, str]:
    """Run these values files and cases; returns True if all passed, and the result as Markdown.

    Raises CannotBuild and :class:`KubeClusterFailed`.
    """
    started_at = time.monotonic()
    with Simulated() as cluster:
        cluster.create(*definitions())
        established = cluster.run("kubectl", "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        if established.returncode != 0:
            raise KubeClusterFailed(established.stderr)
        print(
            f"a control plane with {NODES} simulated nodes is ready after {time.monotonic() - started_at:.0f} s",
            flush=True,
        )
        tasks: list[Callable[[], str]] = [partial(_lived, cluster, name) for name in names]
        tasks += [partial(case, cluster) for case in cases]
        executor = ThreadPoolExecutor(AT_A_TIME)
        try:
            results = list(executor.map(_run_reported, tasks))
        finally:
            executor.shutdown(wait=False, cancel_futures=True)
    rows, others = results[: len(names)], results[len(names) :]
    lines = [
        "| values | pods | " + " | ".join(f"{step}, s" for step in STEPS) + " |",
        "|---|" + "---:|" * (len(STEPS) + 1),
        *(row for passed, row in rows if passed),
        "",
        *(f"* {row}" for passed, row in others if passed),
        *(f"* FAILED: {row}" for passed, row in results if not passed),
        "",
        f"{time.monotonic() - started_at:.0f} s altogether, {AT_A_TIME} at a time.",
    ]
    return all(passed for passed, _ in results), "\n".join(lines)


def helm_version() -> str:
    return helm("version", "--template", "{{.Version}}").strip()


def _lived(cluster: ControlPlane, name: str) -> str:
    """Run a trial; returns its row of the table.  Raises :class:`TrialFailed`."""
    trial = Trial(cluster, name)
    trial.run()
    return f"| {name} | {trial.pods} | " + " | ".join(f"{trial.seconds[step]:.1f}" for step in STEPS) + " |"


def _run_reported(task: Callable[[], str]) -> tuple[bool, str]:
    """Run a task; returns if it passed, and its output, which is also printed."""
    try:
        passed, output = True, task()
    except (TrialFailed, KubeClusterFailed) as error:
        passed, output = False, str(error)
    print(f"{'passed' if passed else 'FAILED'}  {output}", flush=True)
    return passed, output

"""The chart on a real node: pods that run the image, replaced in every way, while clients use the service.

Each form is installed and tested; then one pod of each component is deleted, the release is upgraded to another
tag and log level, and rolled back; then it is tested again and removed.  Clients (:mod:`helm.trials.load`) run
all the time. Requirements:

* no acknowledged message is lost, deleted ones do not return, FIFO groups keep their order;
* with several pods of each component, no call fails after the SDK's retries;
* each pod ends by itself, in time, with exit code 0, and none is restarted by a liveness probe.

The form with one pod cannot hand over: calls fail for the seconds of its restart, and are counted.

:func:`run` prepares everything, and runs this module as the first process of a machine within the machine.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from helm.trials.cluster import KubeClusterFailed, Object
from helm.trials.endings import NamespaceWatch
from helm.trials.load import ClientLoad, Figures, LoadKey
from helm.trials.namespaces import run_apart
from helm.trials.node import ADDRESS, KubeNode
from helm.trials.programs import ROOT, dns, kubernetes, pause
from helm.trials.trial import COMPONENT, RELEASE, SERVING, WAIT_OPTIONS, Space, TrialFailed
from tests.helm.chart import CHART
from tests.histories.verdict import Verdict
from tests.servers.cassandra_server import QUICK_START, CassandraCluster, fetch

REPOSITORY: Final = "localhost/holdfast"
TAGS: Final = ("first", "second")
"""Tags of the same image: the upgrade changes the pods, not the program."""
REDIS_PORT: Final = 6379
SMALL: Final = {"resources": {"requests": {"cpu": "20m", "memory": "64Mi"}}}
"""Resources of each pod: two cores cannot guarantee half a core to all of them."""
SENDS: Final = 150
"""Number of sends to be acknowledged between two actions."""
WHOLE_SECONDS: Final = 600.0
"""Time limit for all pods to be ready on a busy machine."""
STALL_SECONDS_MAX: Final = 30.0
"""Time limit for the form with one pod to be back."""


@dataclass(frozen=True)
class _Form:
    """A form of installing the service."""

    name: str
    values: Object
    parts: tuple[str, ...]
    """Components of its pods."""

    @property
    def is_single(self) -> bool:
        return self.parts == ("single",)


@dataclass
class _Row:
    """An action on a form, with its clients' observations meanwhile."""

    form: str
    what: str
    figures: Figures
    replaced: int


@dataclass
class _Outcome:
    """Result of a form."""

    rows: list[_Row] = field(default_factory=list)
    verdict: Verdict | None = None
    wrong: list[str] = field(default_factory=list)


@contextmanager
def single(node: KubeNode) -> Iterator[_Form]:
    """The chart's defaults: one pod with a volume."""
    yield _Form("one pod", _common("single"), ("single",))


@contextmanager
def layered(node: KubeNode) -> Iterator[_Form]:
    """All components, over a Cassandra and a Redis beside them on the node.

    The numbers of pods are those of ``values-demo.yaml``: enough for one to be replaced while another stays.
    """
    parts = ("frontend", "backend", "metadata", "manager")
    redis = ("redis-server", "--bind", ADDRESS, "--port", str(REDIS_PORT), "--protected-mode", "no")
    node.spawn("redis", *redis, "--save", "", "--appendonly", "no")
    with CassandraCluster(java_options=QUICK_START, hosts=[ADDRESS]) as cassandra:
        values = {
            **_common(*parts, "migration"),
            "backend": {**SMALL, "replicas": 2},
            "manager": {**SMALL, "replicas": 1},
            "masterKey": {"generate": True},
            "cassandra": {"contactPoints": [ADDRESS], "port": cassandra.port, "replication": "datacenter1=1"},
            "redis": {"url": f"redis://{ADDRESS}:{REDIS_PORT}/0"},
        }
        yield _Form("all parts", values, parts)


FORMS: Final = {"one-pod": single, "all-parts": layered}


def _common(*parts: str) -> Object:
    """Values of the image, and each pod's requests."""
    image = {"repository": REPOSITORY, "tag": TAGS[0], "pullPolicy": "Never"}
    return {"image": image, **dict.fromkeys(parts, SMALL)}


class _Trial:
    """One form on a node."""

    def __init__(self, node: KubeNode, form: _Form, seed: int) -> None:
        self.node = node
        self.form = form
        self.outcome = _Outcome()
        self._seed = seed
        self._space = Space(node, form.name.replace(" ", "-"))
        self._watch = NamespaceWatch(node, self._space.name)
        self._pods = 0

    def run(self) -> _Outcome:
        """Run the trial.

        Raises :class:`TrialFailed`, KubeClusterFailed, TimeoutError, TimeoutExpired, and clients' errors.
        """
        values = self.node.folder / "values.json"
        values.write_text(json.dumps(self.form.values))
        own = ("--values", str(values))
        self._space.do("helm", "install", RELEASE, str(CHART), *WAIT_OPTIONS, *own)
        self._pods = len(self._serving())
        self._test()
        with ClientLoad(self._endpoint(), self._credentials(), self._seed) as load:
            self._do(load, "nothing", lambda: None, 0)
            for part in self.form.parts:
                self._do(load, f"a pod deleted: {part}", partial(self._delete, part), 1)
            changed = ("--set", f"image.tag={TAGS[1]}", "--set", "settings.log_level=debug")
            upgrade = ("helm", "upgrade", RELEASE, str(CHART), *own, *changed)
            self._do(load, "upgrade", partial(self._replace_all, TAGS[1], *upgrade), self._pods)
            rollback = ("helm", "rollback", RELEASE, "1")
            self._do(load, "rollback", partial(self._replace_all, TAGS[0], *rollback), self._pods)
            self.outcome.verdict = load.verify()
        self._test()
        self._space.do("helm", "uninstall", RELEASE, *WAIT_OPTIONS)
        self._judge()
        return self.outcome

    def log(self) -> str:
        """End of each pod's log."""
        pods = [pod["metadata"]["name"] for pod in self._serving()]
        return "".join(f"--- {pod}\n{self._space.attempt('kubectl', 'logs', pod, '--tail=40')[1]}" for pod in pods)

    # --- actions ---

    def _do(self, load: ClientLoad, what: str, work: Callable[[], None], replaced: int) -> None:
        before = len(self._watch.endings.replaced())

        def whole() -> None:
            work()
            load.answered(SENDS)

        figures = load.during(whole)
        now = len(self._watch.endings.replaced()) - before
        self.outcome.rows.append(_Row(self.form.name, what, figures, now))
        print(_line(self.outcome.rows[-1]), flush=True)
        if now != replaced:
            self.outcome.wrong.append(f"{what}: {replaced} pods have to be replaced, and {now} were")

    def _delete(self, part: str) -> None:
        names = [pod["metadata"]["name"] for pod in self._serving() if pod["metadata"]["labels"][COMPONENT] == part]
        self._space.do("kubectl", "delete", "pod", names[0], "--wait")
        self._until_whole(TAGS[0])

    def _replace_all(self, tag: str, *command: str) -> None:
        self._space.do(*command)
        self._until_whole(tag)

    def _test(self) -> None:
        self._space.do("helm", "test", RELEASE, "--timeout", "60s")

    # --- queries ---

    def _serving(self) -> list[Object]:
        return self._space.found("pods", "--selector", f"{COMPONENT} in ({','.join(SERVING)})")

    def _until_whole(self, tag: str) -> None:
        """Wait until all pods exist, are ready, and run this tag."""

        def whole() -> bool:
            pods = self._serving()
            return len(pods) == self._pods and all(_is_ready(pod, tag) for pod in pods)

        self.node.until("all pods are ready", whole, WHOLE_SECONDS)

    def _endpoint(self) -> str:
        """Address of the Service: the node does not use the pods' name server."""
        (service,) = self._space.found("service", f"{RELEASE}-holdfast")
        return f"http://{service['spec']['clusterIP']}:{service['spec']['ports'][0]['port']}"

    def _credentials(self) -> LoadKey:
        (secret,) = self._space.found("secret", f"{RELEASE}-holdfast-root-key")
        data = {name: base64.b64decode(value).decode() for name, value in secret["data"].items()}
        return LoadKey(data["access-key-id"], data["secret-access-key"])

    def _judge(self) -> None:
        outcome = self.outcome
        assert outcome.verdict is not None
        outcome.wrong += outcome.verdict.broken
        self.node.until("the pods are gone", lambda: not self._serving(), WHOLE_SECONDS)
        outcome.wrong += self._watch.endings.wrong()
        for row in outcome.rows:
            if not self.form.is_single and row.figures.errors:
                outcome.wrong.append(f"{row.what}: calls have failed: {row.figures.errors}")
            if row.figures.stall_seconds > STALL_SECONDS_MAX:
                outcome.wrong.append(f"{row.what}: no send was acknowledged for {row.figures.stall_seconds:.0f} s")


def _is_ready(pod: Object, tag: str) -> bool:
    conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions", ())}
    images = {container["image"] for container in pod["spec"]["containers"]}
    return (
        "deletionTimestamp" not in pod["metadata"]
        and conditions.get("Ready") == "True"
        and images == {f"{REPOSITORY}:{tag}"}
    )


# --- results ---


def table(outcomes: Sequence[_Outcome]) -> str:
    """Results as a Markdown table."""
    head = ["form", "meanwhile", "took", "pods replaced", "calls", "failed", "attempts repeated", "longest stall"]
    rows = [_line(row) for outcome in outcomes for row in outcome.rows]
    return "\n".join([f"| {' | '.join(head)} |", f"|---|---|{'---:|' * (len(head) - 2)}", *rows])


def _line(row: _Row) -> str:
    seen = row.figures
    kinds: Counter[str] = Counter()
    for (_, name), count in seen.errors.items():
        kinds[name] += count
    failed = ", ".join(f"{count} {name}" for name, count in kinds.most_common())
    cells = [
        *(row.form, row.what, f"{seen.seconds:.0f} s", str(row.replaced), str(seen.calls)),
        failed or "0",
        *(str(seen.repeated), f"{seen.stall_seconds:.1f} s"),
    ]
    return f"| {' | '.join(cells)} |"


def summary(form: str, outcome: _Outcome) -> str:
    """Summary of the messages' fates."""
    assert outcome.verdict is not None
    total = outcome.verdict.total
    again = sum(total.duplicates.values())
    return (
        f"{form}: {total.acknowledged} messages acknowledged, {len(total.lost)} lost, {len(total.unexpected)} came "
        f"unsent, {again} came again after their visibility timeout, {len(total.unexplained)} without a reason."
    )


def run(forms: Sequence[str], seed: int, stand_in: bool) -> tuple[bool, str]:
    """Run the forms; returns True if all passed, and the result as Markdown.

    ``stand_in``: the image's base is made of Debian's packages, as ``scripts/build-image`` describes.  Raises
    CannotBuild, CassandraMissing, and :class:`TrialFailed`.
    """
    if os.geteuid() != 0:
        raise TrialFailed("a real node needs root, for namespaces, mounts and rules of netfilter")
    for build in (kubernetes, dns, pause, fetch):  # the machine within the machine has no network access
        build()
    with tempfile.TemporaryDirectory(prefix="holdfast-image-") as folder:
        archive, result = Path(folder) / "image.tar", Path(folder) / "result.md"
        extra = ["--stand-in"] if stand_in else []
        builder = ROOT / "scripts" / "build-image"
        command = [str(builder), "--tag", f"{REPOSITORY}:{TAGS[0]}", "--save", str(archive), *extra]
        started_at = time.monotonic()
        built = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if built.returncode != 0:
            raise TrialFailed(f"the image was not built: {built.stdout[-3000:]}")
        size_megabytes = archive.stat().st_size / 1e6
        image = f"The image was built in {time.monotonic() - started_at:.0f} s, {size_megabytes:.0f} MB"
        print(image, flush=True)
        code = run_apart(__name__, str(archive), str(result), "--seed", str(seed), "--forms", *forms)
        summaries = result.read_text() if result.exists() else ""
        return (
            code == 0,
            f"{summaries}\n{image}; all of it took {time.monotonic() - started_at:.0f} s, with seed {seed}.",
        )


# --- within the namespaces
# ------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m helm.trials.real", description="To be run in namespaces of its own."
    )
    parser.add_argument("archive", type=Path, help="the image, as docker saves it")
    parser.add_argument("result", type=Path, help="where the result is written, as Markdown")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    outcomes: list[_Outcome] = []
    summaries: list[str] = []
    wrong: list[str] = []
    started_at = time.monotonic()
    with KubeNode(Path(tempfile.mkdtemp())) as node:
        node.load(arguments.archive, *(f"{REPOSITORY}:{tag}" for tag in TAGS))
        print(f"a node is ready after {time.monotonic() - started_at:.0f} s", flush=True)
        for name in arguments.forms:
            with FORMS[name](node) as form:
                trial = _Trial(node, form, arguments.seed)
                outcomes.append(trial.outcome)
                try:
                    trial.run()
                except (KubeClusterFailed, TrialFailed, TimeoutError, subprocess.TimeoutExpired) as error:
                    trial.outcome.wrong.append(f"not done: {error}")
                else:
                    summaries.append(summary(form.name, trial.outcome))
                    print(summaries[-1], flush=True)
                if trial.outcome.wrong:
                    print(trial.log(), file=sys.stderr)
                wrong += [f"{form.name}: {one}" for one in trial.outcome.wrong]
    arguments.result.write_text("\n\n".join([table(outcomes), *summaries]) + "\n")
    for one in wrong:
        print(f"WRONG {one}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""Records how the pods of a namespace end, which cannot be queried later: an ended pod is gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from helm.trials.cluster import TOOLS, ControlPlane, Object

COMPONENT: Final = "app.kubernetes.io/component"
PASSING: Final = ("test", "migration")
"""Components that end by themselves."""
KILLED: Final = 128 + 9
"""Exit code of a container killed by the kubelet."""


@dataclass
class Ending:
    """The end of a pod, from its last events."""

    name: str
    component: str
    asked: datetime | None = None
    """Time of its deletion request."""
    grace_seconds: int = 0
    """Grace period from then on, after which it would be killed."""
    codes: list[int] = field(default_factory=list)
    """Exit codes of its containers."""
    ended: datetime | None = None
    restarts: int = 0
    gone: bool = False

    @property
    def seconds(self) -> float:
        """Seconds from its deletion to its containers' end."""
        assert self.asked is not None
        assert self.ended is not None
        return (self.ended - self.asked).total_seconds()

    @property
    def wrong(self) -> str:
        """Description of an irregular end; empty if it ended by itself, in time."""
        if self.restarts:
            return f"{self.name} was started again {self.restarts} times"
        if not self.gone or self.asked is None:
            return ""
        if self.ended is None:
            return f"nothing tells how {self.name} ended"
        if any(self.codes) or self.seconds > self.grace_seconds:
            killed = " (killed)" if KILLED in self.codes else ""
            took = f"{self.seconds:.0f} s, of {self.grace_seconds} s that it had"
            return f"{self.name} ended with {self.codes}{killed} after {took}"
        return ""


class Endings:
    """Ends of all watched pods."""

    def __init__(self) -> None:
        self._pods: dict[str, Ending] = {}

    def replaced(self) -> list[Ending]:
        """Pods of Holdfast's components that were deleted and are gone, in order of their creation."""
        return [
            pod for pod in self._pods.values() if pod.gone and pod.asked is not None and pod.component not in PASSING
        ]

    def wrong(self) -> list[str]:
        """Descriptions of all irregular ends."""
        return [pod.wrong for pod in self._pods.values() if pod.wrong]

    def note(self, what: str, pod: Object) -> None:
        """Process one event of a watch: its type, and the pod's current state."""
        about = pod["metadata"]
        ending = self._pods.setdefault(about["uid"], Ending(about["name"], about["labels"].get(COMPONENT, "")))
        if ending.asked is None and "deletionTimestamp" in about:
            ending.grace_seconds = about["deletionGracePeriodSeconds"]
            ending.asked = _moment(about["deletionTimestamp"]) - timedelta(seconds=ending.grace_seconds)
        for container in pod["status"].get("containerStatuses", ()):
            ending.restarts = max(ending.restarts, container["restartCount"])
        if (ended := list(_ended(pod))) and len(ended) == len(pod["spec"]["containers"]):
            ending.codes = [code for code, _ in ended]
            ending.ended = max(moment for _, moment in ended)
        ending.gone = what == "DELETED"


class NamespaceWatch:
    """A watch of one namespace, from now on."""

    def __init__(self, cluster: ControlPlane, namespace: str) -> None:
        name = f"pods-of-{namespace}"
        path = f"/api/v1/namespaces/{namespace}/pods?watch=1"
        self._log = cluster.folder / f"{name}.log"
        self._endings = Endings()
        self._read_bytes = 0
        cluster.spawn(name, TOOLS / "kubectl", f"--kubeconfig={cluster.kubeconfig}", "get", "--raw", path)

    @property
    def endings(self) -> Endings:
        """Ends recorded so far."""
        with self._log.open("rb") as log:
            log.seek(self._read_bytes)
            for line in log:
                if not line.endswith(b"\n"):
                    break  # it is being written
                self._read_bytes += len(line)
                event = json.loads(line)
                self._endings.note(event["type"], event["object"])
        return self._endings


def _ended(pod: Object) -> Iterator[tuple[int, datetime]]:
    """(exit code, time) of its ended containers."""
    for container in pod["status"].get("containerStatuses", ()):
        if (end := container["state"].get("terminated")) is not None:
            yield end["exitCode"], _moment(end["finishedAt"])


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)

"""A control plane with simulated nodes: their pods become Ready, or end, and run nothing.

It tests the API server's validation, the controllers' reactions, and helm's work with both.  It does not run an
image; ``helm/trials/node.py`` does.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Final

import yaml

from helm.trials.cluster import ControlPlane, Object
from helm.trials.programs import kwok

STAGES: Final = Path(__file__).parent / "stages.yaml"
"""Behaviour of nodes, pods and Services for kwok."""
OBJECTS: Final = STAGES.with_name("objects.yaml")
NODES: Final = 3
VOLUMES_PER_CLASS: Final = 60
CLASSES: Final = ("standard", "fast")
"""Storage classes; the first is the default."""


class Simulated(ControlPlane):
    """A simulated cluster in its own folder, which is removed at its end."""

    def __init__(self) -> None:
        super().__init__(Path(tempfile.mkdtemp(prefix="holdfast-kube-")))

    def start(self) -> None:
        program = kwok()
        super().start()
        self.spawn(
            "kwok",
            *(program, f"--config={STAGES}", f"--kubeconfig={self.kubeconfig}", "--manage-all-nodes"),
            *("--node-ip=10.9.0.1", "--cidr=10.244.0.0/16", "--node-lease-duration-seconds=40"),
        )
        self.create(*objects())
        wait = ("wait", "--for=condition=Ready", "node", "--all", "--timeout=0")
        self.until("the nodes are ready", lambda: self.run("kubectl", *wait).returncode == 0)

    def close(self) -> None:
        super().close()
        shutil.rmtree(self.folder, ignore_errors=True)


def objects() -> Iterator[Object]:
    """Nodes, preprovisioned volumes, and classes."""
    template = OBJECTS.read_text()

    def made(name: str, **values: object) -> Object:
        found: Object = yaml.safe_load(Template(template).safe_substitute(values))[name]
        return found

    for number in range(1, NODES + 1):
        yield made("node", number=number)
    for name in CLASSES:
        yield made("class", **{"class": name, "default": str(name == CLASSES[0]).lower()})
        for number in range(VOLUMES_PER_CLASS):
            yield made("volume", **{"class": name, "number": f"{number:02d}"})
    yield made("priority")
    yield made("ingress")

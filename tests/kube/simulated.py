"""A control plane with simulated nodes: their pods become Ready, or end, and run nothing.

It tests the API server's validation, the controllers' reactions, and helm's work with both.  It does not run an
image; ``tests/kube/node.py`` does.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Final

from tests.kube.cluster import ControlPlane, Object
from tests.kube.programs import kwok

STAGES: Final = Path(__file__).parent / "stages.yaml"
"""Behaviour of nodes, pods and Services for kwok."""
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
        self.create(*_nodes(), *_storage(), *_classes())
        wait = ("wait", "--for=condition=Ready", "node", "--all", "--timeout=0")
        self.until("the nodes are ready", lambda: self.run("kubectl", *wait).returncode == 0)

    def close(self) -> None:
        super().close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _nodes() -> list[Object]:
    """Nodes with the labels used by the selectors of the tests' values."""
    size = {"cpu": "32", "memory": "128Gi", "pods": "110", "ephemeral-storage": "100Gi"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": f"node-{number}",
                "labels": {
                    "kubernetes.io/hostname": f"node-{number}",
                    "kubernetes.io/os": "linux",
                    "kubernetes.io/arch": "amd64",
                    "topology.kubernetes.io/zone": f"zone-{number}",
                    "rack": f"rack-{number}",
                    "disk": "ssd",
                    "role": "front",
                    "a": "b",
                },
            },
            "status": {"allocatable": size, "capacity": size},
        }
        for number in range(1, NODES + 1)
    ]


def _storage() -> list[Object]:
    """Preprovisioned volumes, because there is no provisioner."""
    classes = [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {
                "name": name,
                "annotations": {"storageclass.kubernetes.io/is-default-class": str(name == CLASSES[0]).lower()},
            },
            "provisioner": "kubernetes.io/no-provisioner",
            "reclaimPolicy": "Retain",
            "volumeBindingMode": "WaitForFirstConsumer",
        }
        for name in CLASSES
    ]
    volumes = [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"{name}-{number:02d}"},
            "spec": {
                "capacity": {"storage": "100Gi"},
                "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
                "storageClassName": name,
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": f"/nowhere/{name}-{number:02d}"},  # nothing is mounted
            },
        }
        for name in CLASSES
        for number in range(VOLUMES_PER_CLASS)
    ]
    return [*classes, *volumes]


def _classes() -> list[Object]:
    """Classes of priority and Ingress named in the tests' values."""
    priority = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "high"},
        "value": 1000,
    }
    ingress = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IngressClass",
        "metadata": {"name": "nginx"},
        "spec": {"controller": "example.com/nobody"},
    }
    return [priority, ingress]

"""Parts of the chart's manifests, and the settings that its containers read, as tables: ``cases.yaml``."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.behaviour.match import differences
from tests.helm.chart import FILES, Manifest, own, pods, render, settings
from tests.tables import beside

CASES = beside(__file__, "cases.yaml")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_manifests(case: dict[str, Any], tmp_path: Path) -> None:
    sets = (argument for one in case.get("set", ()) for argument in ("--set", one))
    manifests = tuple(render("--values", str(FILES[case["values"]]), *sets))
    assert not differences(case["expect"], seen(manifests, tmp_path))


def seen(manifests: tuple[Manifest, ...], folder: Path) -> dict[str, Any]:
    """Return the manifests by kind and name, and the replicas and settings by component."""
    found: dict[str, Any] = {
        "pods": {pod.component: pod.replicas for pod in pods(manifests)},
        "settings": {
            pod.component: msgspec.json.decode(msgspec.json.encode(settings(pod, manifests, folder), enc_hook=str))
            for pod in own(manifests)
            if pod.component not in ("test", "migration")
        },
    }
    for one in manifests:
        found.setdefault(one["kind"], {})[one["metadata"]["name"]] = one
    return found

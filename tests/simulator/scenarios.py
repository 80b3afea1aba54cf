"""Scenarios and focuses: conditions of a cluster's run, as tables (``scenarios.yaml``)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tests.tables import read_yaml

if TYPE_CHECKING:
    from tests.simulator.world.cluster import ClusterWorld

QUORUM_FAULTS = {
    "kill": 4, "kill_manager": 1, "gone": 1, "stop": 5, "cut_store": 5, "cut": 3, "machine": 2, "wipe": 2, "outage": 1,
    "slow": 2, "drain": 3, "rolling": 1, "map": 3,
}  # fmt: skip
LOCAL_FAULTS = {
    "kill": 4, "kill_manager": 1, "gone": 1, "stop": 3, "drain": 4, "rolling": 1, "disk": 3, "metadata": 3, "power": 3,
    "map": 3,
}  # fmt: skip


class Conditions(msgspec.Struct, forbid_unknown_fields=True):
    says: str
    like: str | None = None
    """Conditions that are applied before."""
    set: dict[str, Any] = {}
    change: dict[str, dict[str, Any]] = {}

    def apply(self, world: ClusterWorld) -> None:
        for path, value in self.set.items():
            owner, name = attribute_at(world, path)
            known = getattr(owner, name)
            if isinstance(value, dict):
                value = world.random.choice(value["one of"]) if "one of" in value else dict(value)
            setattr(owner, name, type(known)(value) if isinstance(value, list) else value)
        for path, entries in self.change.items():
            owner, name = attribute_at(world, path)
            getattr(owner, name).update(entries)


def attribute_at(owner: Any, path: str) -> tuple[Any, str]:
    """Return the object that has the last attribute of a path such as ``machines.lost``, and that attribute's name."""
    *parts, name = path.split(".")
    for part in parts:
        owner = getattr(owner, part)
    return owner, name


def read_conditions(path: Path) -> dict[str, Conditions]:
    return {name: msgspec.convert(entry, Conditions) for name, entry in read_yaml(path).items()}


SCENARIOS = read_conditions(Path(__file__).with_suffix(".yaml"))

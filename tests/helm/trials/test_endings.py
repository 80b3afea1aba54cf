"""Classification of pods' ends, from the events of a watch."""

from typing import Any

import pytest

from helm.trials.endings import COMPONENT, Endings

ASKED = "2026-01-01T00:00:00Z"
KILLED_AT = "2026-01-01T00:00:40Z"
"""Kubernetes' time of a deletion, which is the end of the grace period."""


def pod(component: str = "backend", restarts: int = 0, **more: Any) -> dict[str, Any]:
    running = {"restartCount": restarts, "state": {"running": {}}}
    return {
        "metadata": {"uid": "1", "name": "b-0", "labels": {COMPONENT: component}} | more,
        "spec": {"containers": [{}]},
        "status": {"containerStatuses": [running]},
    }


def ended(one: dict[str, Any], code: int, at: str) -> dict[str, Any]:
    terminated = {"exitCode": code, "finishedAt": at}
    return {**one, "status": {"containerStatuses": [{"restartCount": 0, "state": {"terminated": terminated}}]}}


def deleted(component: str = "backend") -> dict[str, Any]:
    return pod(component, deletionTimestamp=KILLED_AT, deletionGracePeriodSeconds=40)


@pytest.mark.parametrize(
    ("code", "at", "wrong"),
    [
        (0, "2026-01-01T00:00:12Z", []),
        (0, "2026-01-01T00:00:41Z", ["b-0 ended with [0] after 41 s, of 40 s that it had"]),
        (137, "2026-01-01T00:00:40Z", ["b-0 ended with [137] (killed) after 40 s, of 40 s that it had"]),
        (1, "2026-01-01T00:00:02Z", ["b-0 ended with [1] after 2 s, of 40 s that it had"]),
    ],
)
def test_a_pod_ends_by_itself_and_in_its_time(code: int, at: str, wrong: list[str]) -> None:
    endings = Endings()
    endings.note("ADDED", pod())
    endings.note("MODIFIED", deleted())
    endings.note("MODIFIED", ended(deleted(), code, at))
    assert not endings.replaced()
    # The kubelet's own last deletion has no grace period.
    last = {**deleted()["metadata"], "deletionTimestamp": at, "deletionGracePeriodSeconds": 0}
    endings.note("DELETED", {**ended(deleted(), code, at), "metadata": last})
    assert [one.name for one in endings.replaced()] == ["b-0"]
    assert endings.wrong() == wrong


def test_a_restarted_pod_is_reported() -> None:
    endings = Endings()
    endings.note("ADDED", pod())
    endings.note("MODIFIED", pod(restarts=2))
    assert endings.wrong() == ["b-0 was started again 2 times"]


def test_a_pod_that_ends_without_a_log_line_is_reported() -> None:
    endings = Endings()
    endings.note("ADDED", pod())
    endings.note("DELETED", deleted())
    assert endings.wrong() == ["nothing tells how b-0 ended"]


def test_the_pod_of_a_test_replaces_nothing() -> None:
    endings = Endings()
    endings.note("ADDED", pod("test"))
    endings.note("DELETED", ended(deleted("test"), 0, ASKED))
    assert not endings.replaced()
    assert not endings.wrong()

"""Alerts and dashboards: generated from one source, valid for Prometheus, and each alert fires when it should."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.settings import Settings
from tests.helm.chart import CHART, FILES, ROOT, kinds, own, pods, render, rendered

RULES = CHART / "files" / "rules.yaml"
DASHBOARDS = sorted((CHART / "files" / "dashboards").glob("*.json"))
DOCUMENT = ROOT / "docs" / "monitoring.md"
SERVING = ("single", "frontend", "backend", "metadata", "manager")
NOT_SERVING = {"test", "migration"}
EVERYTHING = ("single-everything", "many-everything")
GROUPS: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"]
ALERTS: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for group in GROUPS for rule in group["rules"] if "alert" in rule
}


def promtool(*arguments: str) -> str:
    found = shutil.which("promtool")
    assert found is not None, "promtool is missing: scripts/need promtool installs it"
    done = subprocess.run([found, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_is_made_was_made() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "chart-monitoring"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_prometheus_takes_the_rules() -> None:
    count = sum(len(group["rules"]) for group in GROUPS)
    assert f"SUCCESS: {count} rules found" in promtool("check", "rules", str(RULES))


@pytest.mark.parametrize("name", EVERYTHING)
def test_prometheus_takes_the_rules_of_the_chart(name: str, tmp_path: Path) -> None:
    (rule,) = kinds(rendered(name), "PrometheusRule")
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump(rule["spec"]))
    assert "SUCCESS" in promtool("check", "rules", str(file))
    assert rule["metadata"]["labels"].get("release") == ("prometheus" if name.startswith("single") else None)


def test_objectives_and_runbooks_are_those_of_the_values() -> None:
    (rule,) = kinds(rendered("single-everything"), "PrometheusRule")
    records = {
        one["record"]: one["expr"] for group in rule["spec"]["groups"] for one in group["rules"] if "record" in one
    }
    assert records["holdfast:objective:availability"] == "vector(0.99)"
    assert records["holdfast:objective:latency"] == "vector(0.999)"
    assert 'le="1.0"' in records["holdfast:calls_late:ratio_rate1h"]
    links = {
        one["annotations"]["runbook_url"]
        for group in rule["spec"]["groups"]
        for one in group["rules"]
        if "alert" in one
    }
    assert all(link.startswith("https://wiki.example.com/holdfast#holdfast") for link in links)
    (plain,) = kinds(rendered("many-everything"), "PrometheusRule")
    assert plain["spec"]["groups"] == GROUPS, "the values' defaults are those of the file"


def test_a_bound_that_no_histogram_has_is_refused() -> None:
    from telemetry.metrics import SECONDS

    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]["metrics"]["properties"]["rules"]
    allowed = schema["properties"]["objectives"]["properties"]["latencySeconds"]["enum"]
    assert set(allowed) <= set(SECONDS)


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_says_what_is_wrong_and_what_to_do(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["description"].endswith(".")
    assert rule["annotations"]["runbook_url"] == f"docs/monitoring.md#{alert.lower()}"
    assert re.search(rf"^### {alert}$", DOCUMENT.read_text(), re.MULTILINE), "it has a heading, which the link is to"


def test_nothing_else_is_explained() -> None:
    assert set(re.findall(r"^### (Holdfast\w+)$", DOCUMENT.read_text(), re.MULTILINE)) == ALERTS.keys()


# --- alerts go off --------------------------------------------------------------------------------------------------

Case = tuple[str, dict[str, str], dict[str, str]]
"""Time of evaluation; series for which the alert fires, and series for which it does not."""


def calls(failed: int, ok: int) -> dict[str, str]:
    return {
        'holdfast_calls_total{namespace="q",action="SendMessage",outcome="failed"}': f"0+{failed}x400",
        'holdfast_calls_total{namespace="q",action="SendMessage",outcome="ok"}': f"0+{ok}x400",
    }


def late(late: int, every: int) -> dict[str, str]:
    labels = 'namespace="q",action="SendMessage"'
    return {
        f'holdfast_call_seconds_bucket{{{labels},le="0.1"}}': f"0+{every - late}x400",
        f"holdfast_call_seconds_count{{{labels}}}": f"0+{every}x400",
    }


def gauge(name: str, off: str, fine: str, when: str = "30m", labels: str = 'instance="a"') -> Case:
    return when, {f"{name}{{{labels}}}": off}, {f"{name}{{{labels}}}": fine}


def quantile(name: str) -> Case:
    def series(bound: str) -> dict[str, str]:
        return {
            f'{name}_bucket{{instance="a",le="{bound}"}}': "0+100x60",
            f'{name}_bucket{{instance="a",le="+Inf"}}': "0+100x60",
        }

    return "30m", series("0.5"), series("0.01")


def disk(instance: str, free: str) -> dict[str, str]:
    return {
        f'holdfast_disk_low_water_bytes{{instance="{instance}"}}': "64e6x400",
        f'holdfast_disk_size_bytes{{instance="{instance}"}}': "2e11x400",
        f'holdfast_disk_free_bytes{{instance="{instance}"}}': free,
    }


FILES_LIMIT = {'holdfast_process_open_files_limit{instance="a"}': "1000x60"}
CONNECTIONS = {'holdfast_connections_limit{instance="a"}': "1000x60"}
STORED = {'holdfast_stored_bytes{instance="a"}': "1e9x200"}
CASES: dict[str, Case] = {
    "HoldfastErrorBudgetBurnsFast": ("70m", calls(20, 980), calls(5, 995)),
    "HoldfastErrorBudgetBurnsSlowly": ("4h", calls(5, 995), calls(1, 1999)),
    "HoldfastLatencyBudgetBurnsFast": ("70m", late(200, 1000), late(40, 1000)),
    "HoldfastLatencyBudgetBurnsSlowly": ("4h", late(40, 1000), late(5, 1000)),
    "HoldfastAbsent": ("30m", {"up": "1x60"}, {"holdfast_build_info": "1x60"}),
    "HoldfastNotServing": gauge("holdfast_serving", "0x60", "1x60"),
    "HoldfastShardsUnassigned": gauge("holdfast_cluster_unassigned_shards", "3x60", "0x60"),
    "HoldfastStoresNothing": gauge("holdfast_storing", "0x60", "1x60"),
    "HoldfastDamaged": gauge("holdfast_damaged", "1x60", "0x60"),
    "HoldfastDiskAlmostFull": ("30m", disk("a", "200e6x60"), disk("a", "300e6x60")),
    "HoldfastDiskFills": ("5h", disk("b", "100e9-200e6x400"), disk("b", "80e9-1e6x400")),
    "HoldfastMemoryShort": gauge("holdfast_memory_share", "0.95x60", "0.85x60"),
    "HoldfastJournalSlow": quantile("holdfast_journal_write_seconds"),
    "HoldfastFenceSlow": quantile("holdfast_journal_fence_seconds"),
    "HoldfastJournalFails": gauge("holdfast_journal_failures_total", "0x20 1x20", "1x60"),
    "HoldfastCheckpointsFail": gauge("holdfast_checkpoint_failures_total", "0+1x60", "3x60"),
    "HoldfastSegmentsPinned": (
        "2h",
        {**STORED, 'holdfast_journal_bytes{instance="a"}': "9e9x200"},
        {**STORED, 'holdfast_journal_bytes{instance="a"}': "7e9x200"},
    ),
    "HoldfastTakeoversTooOften": gauge("holdfast_takeovers_total", "0+1x60", "0x30 1x30", "1h", 'namespace="q"'),
    "HoldfastNodeCutOff": gauge("holdfast_cluster_nodes", "1x60", "0x60", labels='state="cut off"'),
    "HoldfastClockOff": gauge("holdfast_clock_behind_cluster_seconds", "-5x60", "-1x60"),
    "HoldfastUsageWaits": gauge("holdfast_usage_waiting_seconds", "20000x60", "12000x60"),
    "HoldfastCertificateExpires": gauge(
        "holdfast_certificate_valid_until_seconds", "1000000x200", "2000000x200", "2h"
    ),  # promtool's tests start at the epoch
    "HoldfastLoopLate": quantile("holdfast_loop_lag_seconds"),
    "HoldfastFilesShort": (
        "30m",
        {**FILES_LIMIT, 'holdfast_process_open_files{instance="a"}': "900x60"},
        {**FILES_LIMIT, 'holdfast_process_open_files{instance="a"}': "700x60"},
    ),
    "HoldfastConnectionsShort": (
        "30m",
        {**CONNECTIONS, 'holdfast_connections{instance="a"}': "900x60"},
        {**CONNECTIONS, 'holdfast_connections{instance="a"}': "700x60"},
    ),
    "HoldfastChildrenDie": gauge("holdfast_child_starts_total", "1+1x60", "1x60", "1h", 'child="backend-1"'),
}


def test_every_alert_is_tried() -> None:
    assert CASES.keys() == ALERTS.keys()


def together(series: Iterable[dict[str, str]], expected: dict[str, bool]) -> dict[str, Any]:
    """Make a promtool test: alerts that fire with all these series.  One test is slow, so there are few."""
    return {
        "interval": "1m",
        "input_series": [
            {"series": name, "values": values} for each in series for name, values in sorted(each.items())
        ],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
                "eval_time": CASES[alert][0],
                "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
            }
            for alert, fires in expected.items()
        ],
    }


def test_every_alert_goes_off_when_it_is_to_and_only_then(tmp_path: Path) -> None:
    slowly = {alert for alert in CASES if alert.endswith("Slowly")}
    fast = {alert for alert in CASES if alert.endswith("Fast")}
    assert all(CASES[alert][2] == CASES[alert.replace("Fast", "Slowly")][1] for alert in fast)
    tests = [
        together((CASES[alert][1] for alert in CASES.keys() - fast), {alert: alert not in fast for alert in CASES}),
        together((CASES[alert][2] for alert in CASES.keys() - fast), dict.fromkeys(CASES, False)),
        together((CASES[alert][1] for alert in fast), dict.fromkeys(fast | slowly, True)),
    ]
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "5m", "tests": tests}))
    assert "SUCCESS" in promtool("test", "rules", str(file))


# --- the chart ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERYTHING)
def test_the_service_monitor_finds_every_pod_that_serves(name: str) -> None:
    manifests = rendered(name)
    (monitor,) = kinds(manifests, "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    services = [
        service
        for service in kinds(manifests, "Service")
        if wanted <= service["metadata"]["labels"].items()
        and any(port["name"] == endpoint["port"] for port in service["spec"]["ports"])
    ]
    found = [
        pod.component
        for service in services
        for pod in pods(manifests)
        if service["spec"]["selector"].items() <= pod.labels.items()
    ]
    assert sorted(found) == sorted({pod.component for pod in own(manifests)} - NOT_SERVING), "each, and none twice"


@pytest.mark.parametrize("name", FILES)
def test_metrics_are_where_the_pods_say_and_never_where_clients_call(name: str) -> None:
    for pod in own(rendered(name)):
        if pod.component in NOT_SERVING:
            continue
        (container,) = pod.spec["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        (listens,) = (one["value"] for one in container["env"] if one["name"] == "HOLDFAST_HEALTH_LISTEN")
        assert listens == f"0.0.0.0:{ports['health']}"
        assert "health_listen" in Settings.__struct_fields__
    for service in kinds(rendered(name), "Service"):
        if service["spec"].get("clusterIP") != "None":
            assert all(port["name"] != "health" for port in service["spec"]["ports"])


def test_nobody_reads_metrics_unless_the_values_say_so() -> None:
    def open_to(name: str, *more: str) -> set[bool]:
        return {
            any(port["port"] == 9480 for rule in policy["spec"].get("ingress", ()) for port in rule["ports"])
            for policy in kinds(tuple(render("--values", str(FILES[name]), *more)), "NetworkPolicy")
            if policy["metadata"]["labels"]["app.kubernetes.io/component"] in SERVING
        }

    assert open_to("many") == {False}
    assert open_to("many", "--set", "metrics.serviceMonitor.enabled=true") == {True}
    assert open_to("many", "--set", "networkPolicy.prometheus[0].podSelector.matchLabels.app=prometheus") == {True}
    for policy in kinds(rendered("many-everything"), "NetworkPolicy"):
        for rule in policy["spec"].get("ingress", ()):
            if rule["ports"][0]["port"] == 9480:
                assert rule["from"] == [
                    {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
                ]


@pytest.mark.parametrize("name", EVERYTHING)
def test_dashboards_are_maps_that_grafana_finds(name: str) -> None:
    label = {"grafana": "yes"} if name.startswith("single") else {"grafana_dashboard": "1"}
    made = [one for one in kinds(rendered(name), "ConfigMap") if label.items() <= one["metadata"]["labels"].items()]
    assert len(made) == len(DASHBOARDS)
    texts = {file: json.loads(text) for one in made for file, text in one["data"].items()}
    assert texts == {path.name: json.loads(path.read_text()) for path in DASHBOARDS}
    assert len({one["uid"] for one in texts.values()}) == len(texts)

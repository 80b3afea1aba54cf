"""Alerts and dashboards: generated from one source, valid for Prometheus, and each alert fires when it should."""

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
from tests.tables import beside

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
CASES: dict[str, dict[str, Any]] = beside(__file__, "alerts.yaml")


def promtool(*arguments: str) -> str:
    found = shutil.which("promtool")
    assert found is not None, "promtool is missing: scripts/need promtool installs it"
    done = subprocess.run([found, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_generated_rules_and_dashboards_are_current() -> None:
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
def test_each_alert_has_a_cause_and_a_remedy(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["description"].endswith(".")
    assert rule["annotations"]["runbook_url"] == f"docs/monitoring.md#{alert.lower()}"
    assert re.search(rf"^### {alert}$", DOCUMENT.read_text(), re.MULTILINE), "it has a heading, which the link is to"


def test_nothing_else_is_explained() -> None:
    assert set(re.findall(r"^### (Holdfast\w+)$", DOCUMENT.read_text(), re.MULTILINE)) == ALERTS.keys()


# --- alerts fire ---------------------------------------------------------------------------------------------------


def test_every_alert_has_a_case() -> None:
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
                "eval_time": CASES[alert].get("at", "30m"),
                "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
            }
            for alert, fires in expected.items()
        ],
    }


def test_every_alert_fires_in_its_case_and_only_then(tmp_path: Path) -> None:
    slowly = {alert for alert in CASES if alert.endswith("Slowly")}
    fast = {alert for alert in CASES if alert.endswith("Fast")}
    others = CASES.keys() - fast
    assert all(CASES[alert]["quiet"] == CASES[alert.replace("Fast", "Slowly")]["fires"] for alert in fast)
    tests = [
        together((CASES[alert]["fires"] for alert in others), {alert: alert not in fast for alert in CASES}),
        together((CASES[alert]["quiet"] for alert in others), dict.fromkeys(CASES, False)),
        together((CASES[alert]["fires"] for alert in fast), dict.fromkeys(fast | slowly, True)),
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
        ports = {port["name"]: port["containerPort"] for port in pod.container["ports"]}
        (listens,) = (one["value"] for one in pod.container["env"] if one["name"] == "HOLDFAST_HEALTH_LISTEN")
        assert listens == f"0.0.0.0:{ports['health']}"
        assert "health_listen" in Settings.__struct_fields__
    for service in kinds(rendered(name), "Service"):
        if service["spec"].get("clusterIP") != "None":
            assert all(port["name"] != "health" for port in service["spec"]["ports"])


def test_metrics_are_not_served_unless_the_values_enable_them() -> None:
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

"""Validation of values: the schema is strict, and contradictions have errors in words."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest
import yaml

from holdfast.settings import Settings
from tests.helm.chart import CHART, FILES, ROOT, HelmRefused, own, render, rendered

BACKUP = ("backup.enabled=true", "backup.target=s3://b/p")
MANY = ("cassandra.contactPoints={10.0.0.1}", "masterKey.existingSecret=m")


def refusal(*sets: str) -> str:
    with pytest.raises(HelmRefused) as raised:
        render(*(argument for one in sets for argument in ("--set", one)))
    return str(raised.value)


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ("frontends.replicas=2", "'frontends' not allowed"),
        ("frontend.replica=2", "'replica' not allowed"),
        ("frontend.replicas=0", "at '/frontend/replicas'"),
        ("frontend.replicas=two", "at '/frontend/replicas'"),
        ("frontend.autoscaling.targetCPU=101", "at '/frontend/autoscaling/targetCPU'"),
        ("backend.cluster=East", "at '/backend/cluster'"),
        ("backend.maxUnavailable=0", "at '/backend/maxUnavailable'"),
        ("backend.resources.limit.memory=1Gi", "'limit' not allowed"),
        ("backend.resources.limits.memory=lots", "at '/backend/resources/limits/memory'"),
        ("single.persistence.size=0Gi", "at '/single/persistence/size'"),
        ("single.persistence.accessModes={ReadOnlyMany}", "at '/single/persistence/accessModes/0'"),
        ("image.tag=1", "at '/image/tag'"),
        ("image.digest=sha256:12", "at '/image/digest'"),
        ("image.pullPolicy=Sometimes", "at '/image/pullPolicy'"),
        ("service.type=External", "at '/service/type'"),
        ("service.port=0", "at '/service/port'"),
        ("settings.port=80", "'port' not allowed"),
        ("settings.cassandra=10.0.0.1", "'cassandra' not allowed"),
        ("settings.misspelt=1", "'misspelt' not allowed"),
        ("queues[0].nane=orders", "'name'"),
        ("queues[0].name=a b", "at '/queues/0/name'"),
        ("cassandra.replication=3", "at '/cassandra/replication'"),
        ("cassandra.contactPoints={a b}", "at '/cassandra/contactPoints/0'"),
        ("clusterTls.certManager.duration=1y", "at '/clusterTls/certManager/duration'"),
        ("clusterTls.certManager.issuerRef.kind=Issuer", "at '/clusterTls/certManager/issuerRef'"),
        ("backend.verticalAutoscaling.updateMode=Auto", "at '/backend/verticalAutoscaling/updateMode'"),
        ("backend.verticalAutoscaling.minAllowed.memory=lots", "at '/backend/verticalAutoscaling/minAllowed/memory'"),
        ("migration.timeoutSeconds=1", "at '/migration/timeoutSeconds'"),
        ("redis.url=redis://:secret@redis:6379/0", "at '/redis/url'"),
        ("tls.existingSecret=Not_A_Name", "at '/tls/existingSecret'"),
        ("billing.schedule=@hourly", "at '/billing/schedule'"),
        ("backup.schedule=@daily", "at '/backup/schedule'"),
        ("backup.keep=0", "at '/backup/keep'"),
        ("billing.memory=2Gi", "at '/billing/memory'"),
        ("billing.stream.everySeconds=0", "at '/billing/stream/everySeconds'"),
        ("ingress.enabled=yes please", "at '/ingress/enabled'"),
        ("gateway.parentRefs[0].nam=public", "at '/gateway/parentRefs/0'"),
    ],
)
def test_what_is_no_value_is_refused(given: str, where: str) -> None:
    said = refusal(given)
    assert "values don't meet the specifications of the schema" in said
    assert where in said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((*MANY, "demo.cassandra=true"), "take one of the two out of the values"),
        ((*MANY, "demo.redis=true", "redis.url=redis://r:1/0"), "demo.redis installs a Redis, and redis.url or"),
        ((*MANY, "redis.existingSecret=a", "redis.url=redis://r:1/0"), "both say where the Redis is"),
        (("redis.url=redis://r:1/0",), "there is no Cassandra: set cassandra.contactPoints, or take redis"),
        (("demo.redis=true",), "there is no Cassandra: set cassandra.contactPoints, or take redis"),
        (("frontend.autoscaling.enabled=true",), "set cassandra.contactPoints, or frontend.autoscaling.enabled=false"),
        (("clusterTls.existingSecret=a",), "or take clusterTls.existingSecret and clusterTls.certManager out"),
        (
            (*MANY, "clusterTls.existingSecret=a", "clusterTls.certManager.enabled=true"),
            "set clusterTls.certManager.enabled=false, or take clusterTls.existingSecret out",
        ),
        (
            (*MANY, "clusterTls.certManager.issuerRef.name=a"),
            "set clusterTls.certManager.enabled=true, or take issuerRef out",
        ),
        (("cassandra.existingSecret=a",), "do not say where Cassandra is: set cassandra.contactPoints, or"),
        ((MANY[0],), "and set masterKey.existingSecret=holdfast-master-key"),
        ((*MANY, "masterKey.generate=true"), "set masterKey.generate=false"),
        ((*MANY, "single.frontends=2"), "set frontend.replicas and backend.replicas"),
        ((*MANY, "usage.enabled=true"), "set usage.lake to a URL such as s3://bucket/path"),
        ((*MANY, "usage.enabled=true", "usage.lake=/lake"), "set usage.lake to a URL such as s3://bucket/path"),
        (("billing.enabled=true", "usage.enabled=true"), "set usage.enabled=true and usage.lake to a URL such as"),
        (("billing.prices.existingConfigMap=a",), "set billing.enabled=true, or take billing.prices"),
        (("billing.analyse=true",), "billing.analyse and billing.check are about what is summed up"),
        (("billing.stream.enabled=true",), "set billing.enabled=true, or billing.stream.enabled=false"),
        (("billing.stream.operator.enabled=true",), "set billing.stream.enabled=true, or billing.stream.operator"),
        (("billing.operator.enabled=true",), "set billing.enabled=true, or billing.operator.enabled=false"),
        (("billing.stream.existingSecret=a",), "set billing.stream.enabled=true, or take billing.stream.budgets"),
        (("billing.prices.accounts=true",), "set it, or billing.prices.accounts=false"),
        (("usage.lake=s3://b/p",), "set usage.enabled=true, or take usage.lake"),
        ((*MANY, "cassandra.tls.clientCertificate=true"), "set it, or cassandra.tls.clientCertificate=false"),
        (
            (*MANY, "frontend.autoscaling.enabled=true", "frontend.autoscaling.minReplicas=20"),
            "frontend.autoscaling.minReplicas (20) is more than frontend.autoscaling.maxReplicas (10): set it to 10",
        ),
        (("backup.enabled=true",), "set backup.target to a URL such as s3://bucket/path, or backup.enabled=false"),
        (("backup.target=s3://b/p",), "set backup.enabled=true, or take backup.target"),
        ((*BACKUP, "single.persistence.accessModes={ReadWriteOncePod}"), "set single.persistence.accessModes to"),
        (("single.backends=2",), "set single.frontends to 1 or more, or single.backends=0"),
        (("service.nodePort=30000",), "set service.type to NodePort or LoadBalancer, or take these two out"),
        (
            ("service.type=NodePort", "service.loadBalancerSourceRanges={10.0.0.0/8}"),
            "set service.type=LoadBalancer, or take it out",
        ),
        (("ingress.enabled=true",), "set ingress.host, or ingress.enabled=false"),
        (("ingress.host=mq.example.com",), "set ingress.enabled=true, or take ingress.host"),
        (("gateway.enabled=true",), "set gateway.parentRefs, such as [{name: public}], or gateway.enabled=false"),
        (("gateway.hostnames={mq.example.com}",), "set gateway.enabled=true, or take gateway.parentRefs"),
    ],
)
def test_contradictions_are_told_with_what_to_change(given: tuple[str, ...], said: str) -> None:
    assert said in refusal(*given)


def test_each_contradiction_is_tried() -> None:
    """An error that cannot occur would be dead code."""
    written = (CHART / "templates" / "checks.yaml").read_text().count("{{- fail ")
    mark = test_contradictions_are_told_with_what_to_change.pytestmark[0]  # type: ignore[attr-defined]
    assert len({said for _, said in mark.args[1]}) == written


# --- the schema and the values ------------------------------------------------------------------------------------


def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    return found


def below(node: dict[str, Any], name: str = "") -> set[str]:
    """Return all names of a schema, except within free-form maps."""
    if "properties" not in node:
        return {name}
    assert node["additionalProperties"] is False, name
    return {found for key, value in node["properties"].items() for found in below(value, f"{name}.{key}".lstrip("."))}


def named(values: Any, name: str = "") -> set[str]:
    if not isinstance(values, dict) or not values or name.endswith(("resources", "settings")):
        return {name}
    return {found for key, value in values.items() for found in named(value, f"{name}.{key}".lstrip("."))}


def test_the_schema_has_the_values_and_no_others() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    known = {name for name in below(schema()) if not name.startswith("settings.")}
    assert known == named(values) - {"settings"} | {"global"}


def test_settings_that_the_chart_leaves_are_all_there() -> None:
    """The chart sets the other settings itself: they must not be given twice."""
    taken = set(schema()["properties"]["settings"]["properties"])
    assert taken <= set(Settings.__struct_fields__)
    made = {
        variable["name"].removeprefix("HOLDFAST_").lower()
        for name in FILES
        for pod in own(rendered(name))
        for container in pod.containers
        for variable in container["env"]
    }
    files = (CHART / "values.yaml", *FILES.values())
    given = {key for file in files for key in yaml.safe_load(file.read_text()).get("settings") or ()}
    left = set(Settings.__struct_fields__) - taken - made
    assert not taken & (made - given)
    assert left == {"cluster_secret", "keyring_file", "queues"}, (
        "these are given in another form; a new setting is made by the chart itself, or taken by settings.* in "
        "values.schema.json"
    )


def test_the_table_of_values_is_that_of_the_comments() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "chart-readme"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^\| `([A-Za-z.]+)` \| `", (CHART / "README.md").read_text(), re.MULTILINE)
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(rows) == named(values)

"""Configuration of the containers, parsed by Holdfast: every command, setting, port and path exists."""

import argparse
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from backend.rpc.address import Address
from billing.lake.lake import Lake
from holdfast.commands import main, schema
from holdfast.process.metadata import _own_member
from holdfast.runtime.peer_tls import advertised, listening
from holdfast.runtime.schema_cassandra import all_kept
from holdfast.runtime.stores import cluster_keyspace, replication_of, view_of
from holdfast.settings import Settings, is_distributed, load
from spark_analytics import __main__ as jobs
from spark_analytics import analytics, batch, quality, rating
from spark_analytics.period import period_of
from spark_analytics.pod import MAIN
from spark_analytics.streaming import job as streaming_job
from spark_analytics.streaming.sources import UsageTopic
from tests.helm.chart import (
    CHART,
    FILES,
    ROOT,
    SECRETS,
    Pod,
    environment,
    kinds,
    mounted,
    own,
    pods,
    render,
    rendered,
    serving,
    settings,
)

ROLES = {"single": "serve", "frontend": "frontend", "backend": "backend", "metadata": "metadata", "manager": "manager"}

all_files = pytest.mark.parametrize("name", FILES)


def command(pod: Pod) -> argparse.Namespace:
    assert "command" not in pod.container, "the image's own: holdfast, below an init"
    return main._parser().parse_args(pod.container["args"])


def opened(pod: Pod) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in pod.container["ports"]}


@all_files
def test_each_container_runs_its_role(name: str, tmp_path: Path) -> None:
    for pod, manifests in serving(name):
        assert pod.container["args"] == [ROLES[pod.component]]
        command(pod)
        given = settings(pod, manifests, tmp_path)
        assert is_distributed(given) == (pod.component != "single")
        if pod.component in ("single", "frontend"):
            assert (given.host, given.port) == ("0.0.0.0", opened(pod)["clients"])
            assert str(given.data).startswith(mounted(pod, "data") + "/"), "a folder that can be made nobody else's"
            assert given.root_access_key_id == SECRETS["access-key-id"]
        if pod.component == "frontend":
            assert given.master_key == SECRETS["master-key"]
        if pod.component != "single":
            assert replication_of(given.cassandra_replication)


@all_files
def test_nodes_are_reached_where_they_say(name: str, tmp_path: Path) -> None:
    """They use names of a headless Service, with a certificate for it if there is one."""
    for pod, manifests in serving(name):
        if pod.component not in ("backend", "metadata"):
            continue
        names = set()
        for number in range(pod.replicas):
            given = settings(pod, manifests, tmp_path, number)
            where = f"{pod.name}-{number}.{pod.name}.queues.svc"
            if pod.component == "backend":
                listen = listening(given)
                assert (listen.host, listen.port) == ("0.0.0.0", opened(pod)["nodes"])
                assert advertised(given, listen) == Address(host=where, port=opened(pod)["nodes"])
                names.add(given.backend_node)
            else:
                member = _own_member(given)
                scheme = "http" if given.cluster_tls_cert is None else "https"
                assert member.address == f"{scheme}://{where}:{opened(pod)['nodes']}"
                assert given.host == "0.0.0.0"
                names.add(member.name)
            (service,) = (one for one in kinds(manifests, "Service") if one["metadata"]["name"] == pod.name)
            assert service["spec"]["publishNotReadyAddresses"] is True
        assert len(names) == pod.replicas


@all_files
def test_all_know_the_same_metadata_nodes(name: str, tmp_path: Path) -> None:
    found = {pod.component: settings(pod, manifests, tmp_path) for pod, manifests in serving(name)}
    views = {(one.metadata_nodes, one.metadata_nodes_version) for one in found.values()}
    assert len(views) == 1
    if "metadata" in found:
        (pod,) = (pod for pod, _ in serving(name) if pod.component == "metadata")
        assert len(view_of(found["frontend"]).members) == pod.replicas


@all_files
def test_health_checks_use_the_port_that_serves_them(name: str, tmp_path: Path) -> None:
    for pod, manifests in serving(name):
        given = settings(pod, manifests, tmp_path)
        for probe, path in (("startupProbe", "live"), ("livenessProbe", "live"), ("readinessProbe", "ready")):
            asked = pod.container[probe]["httpGet"]
            assert asked["path"] == f"/health/{path}"
            scheme = "HTTP"
            if pod.component in ("single", "frontend"):
                assert asked["port"] == "clients"
                scheme = "HTTPS" if given.tls_cert else "HTTP"
            else:
                assert asked["port"] == "health"
                assert Address.parse(given.health_listen) == Address(host="0.0.0.0", port=opened(pod)["health"])
            assert asked.get("scheme", "HTTP") == scheme


@all_files
def test_files_that_settings_name_are_mounted(name: str, tmp_path: Path) -> None:
    """Each is mounted from a Secret of its own, readable only by the group of the pod."""
    for pod, manifests in serving(name):
        given = settings(pod, manifests, tmp_path)
        for member in given.__struct_fields__:
            value = getattr(given, member)
            if not isinstance(value, Path) or member == "data":
                continue
            (volume,) = (
                one for one in pod.spec["volumes"] if "secret" in one and mounted(pod, one["name"]) == str(value.parent)
            )
            assert volume["secret"]["defaultMode"] == 0o440
            expected = {"cluster_secret_file": "cluster-secret"}
            assert value.name == expected.get(
                member, {"ca": "ca.crt", "cert": "tls.crt", "key": "tls.key"}.get(member[member.rindex("_") + 1 :])
            )


@all_files
def test_no_secret_is_in_a_manifest(name: str) -> None:
    """Secrets that do not come from a Secret are in no variable and no argument."""
    for pod, _ in serving(name):
        for variable in pod.container["env"]:
            if re.search(r"SECRET_ACCESS_KEY|MASTER_KEY|PASSWORD", variable["name"]):
                assert "secretKeyRef" in variable["valueFrom"]


def cassandra_of(given: Settings) -> dict[str, Any]:
    return {name: getattr(given, name) for name in given.__struct_fields__ if name.startswith("cassandra")}


@pytest.mark.parametrize("name", ["many", "many-everything"])
def test_the_migration_finds_what_the_processes_keep(name: str, tmp_path: Path) -> None:
    manifests = rendered(name)
    (pod,) = (pod for pod in own(manifests) if pod.component == "migration")
    parsed = command(pod)
    assert parsed.part is schema.migrate
    given = settings(pod, manifests, tmp_path)
    kept = all_kept(given)
    for other, _ in serving(name):
        other_settings = settings(other, manifests, tmp_path)
        assert other_settings.schema_migration == "wait"
        assert cassandra_of(other_settings) == cassandra_of(given)
        if other.component == "backend":
            assert all_kept(other_settings) == kept
    assert replication_of(given.cassandra_replication)
    assert {kept.part.name for kept in kept} == {"metadata", "journal"}


@pytest.mark.parametrize("name", FILES)
def test_the_check_signs_in_at_the_service(name: str) -> None:
    (pod,) = (pod for pod in own(rendered(name)) if pod.component == "test")
    parsed = command(pod)
    assert parsed.act.__name__ == "_check"
    variables = environment(pod, 0)
    endpoint = httpx.URL(variables["HOLDFAST_ENDPOINT"])
    services = {one["metadata"]["name"]: one for one in kinds(rendered(name), "Service")}
    assert endpoint.host.endswith(".queues.svc")
    (port,) = (one for one in services[endpoint.host.split(".")[0]]["spec"]["ports"] if one["targetPort"] == "clients")
    assert endpoint.port == port["port"] or (endpoint.port is None and port["port"] == 443)
    assert variables["AWS_SECRET_ACCESS_KEY"] == SECRETS["secret-access-key"]
    if endpoint.scheme == "https":
        assert str(parsed.ca_file) == mounted(pod, "tls") + "/ca.crt"
    load({}, variables)


def test_the_backup_is_written_to_the_volume_and_parses_its_arguments() -> None:
    manifests = rendered("single-everything")
    found = {pod.component: pod for pod in pods(manifests)}
    spec = found["backup"].spec
    (container,) = spec["containers"]
    parsed = main._parser().parse_args(container["args"])
    assert (parsed.target, parsed.keep, parsed.list) == ("s3://bucket/backups?region=eu-central-1", 14, False)
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    (claimed,) = (one["persistentVolumeClaim"] for one in spec["volumes"] if one["name"] == mounts[parsed.data])
    (owner,) = (one for one in manifests if one["kind"] == "StatefulSet")
    (claim,) = owner["spec"]["volumeClaimTemplates"]
    assert claimed == {"claimName": f"{claim['metadata']['name']}-{owner['metadata']['name']}-0"}
    (term,) = spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"]["matchLabels"].items() <= found["single"].labels.items()
    assert not term["labelSelector"]["matchLabels"].items() <= found["backup"].labels.items()


def test_the_backup_of_many_machines_gets_cassandras_addresses() -> None:
    found = {pod.component: pod for pod in pods(rendered("many-everything"))}
    pod, migration = found["backup"], found["migration"]
    parsed = main._parser().parse_args(pod.container["args"])
    assert (parsed.target, parsed.keep, parsed.data) == ("s3://bucket/backups?region=eu-central-1", 14, None)
    settings, others = load({}, environment(pod, 0)), load({}, environment(migration, 0))
    assert is_distributed(settings)
    assert cluster_keyspace(settings) == cluster_keyspace(others)
    names = [name for name in environment(migration, 0) if "CASSANDRA" in name]
    assert [environment(pod, 0)[name] for name in names] == [environment(migration, 0)[name] for name in names]
    assert settings.cassandra_tls_ca is not None
    assert str(settings.cassandra_tls_ca.parent) == mounted(pod, "cassandra-tls")
    assert "affinity" not in pod.spec, "it may run on any machine"
    assert not [one for one in pod.spec["volumes"] if "persistentVolumeClaim" in one]


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[argparse.Namespace]:
    """Options of the jobs that were started; none of them runs."""
    parsed: list[argparse.Namespace] = []

    def run(options: argparse.Namespace, _: object) -> int:
        parsed.append(options)
        return 0

    for job in (batch, rating, analytics, quality, streaming_job):
        monkeypatch.setattr(job, "run", run)
        if hasattr(job, "input_bytes"):
            monkeypatch.setattr(job, "input_bytes", lambda options, lake: 0)
    monkeypatch.setattr(jobs, "session", lambda *_, **__: None)
    monkeypatch.setattr(jobs, "Lake", str)
    return parsed


def start_jobs(arguments: list[str], pod: Pod, number: int = 0) -> int:
    """Start jobs in the environment of a pod."""
    with pytest.MonkeyPatch.context() as inside:
        for name, value in environment(pod, number).items():
            inside.setenv(name, value)
        return jobs.main(arguments)


def test_the_jobs_get_options_that_they_understand(
    parsed: list[argparse.Namespace], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lakes: list[str] = []
    monkeypatch.setattr(jobs, "Lake", lakes.append)
    for pod in sorted(pods(rendered("many-everything")), key=lambda pod: pod.component):
        if pod.component in ("billing", "stream"):
            for number, container in enumerate(pod.containers):
                assert "command" not in container, "the image's own: python -m spark_analytics"
                assert start_jobs(container["args"], pod, number) == 0
                mounts = {mount["name"]: Path(mount["mountPath"]) for mount in container["volumeMounts"]}
                for name, of in (("plan", "prices"), ("accounts", "prices"), ("budgets", "budgets")):
                    given = getattr(parsed[-1], name, None)
                    assert given is None or given == mounts[of] / f"{name.replace('plan', 'prices')}.yaml"
    assert [options.job for options in parsed] == ["batch", *2 * ["rate"], *2 * ["analyse"], *2 * ["check"], "stream"]
    assert set(lakes) == {"s3://bucket/usage?region=eu-central-1"}
    assert len(lakes) == len(parsed)
    assert [options.memory for options in parsed] == [*7 * ["8g"], "3g"]
    first, last = period_of(parsed[0])
    assert (last - first).days == 61
    months = [getattr(options, "period", None) or options.month for options in parsed[1:-1]]
    assert months == 3 * months[:2]
    assert months[0].next == months[1]
    assert all(options.plan and options.accounts for options in parsed if options.job != "check")
    assert (parsed[-1].every, parsed[-1].once, parsed[-1].budgets.name) == (60, False, "budgets.yaml")
    source = streaming_job.source_of(parsed[-1], Lake(str(tmp_path)), {})
    assert isinstance(source, UsageTopic)
    assert (source.servers, source.topic) == ("queues:9092", "holdfast-usage")
    (stream,) = (pod for pod in pods(rendered("many-everything")) if pod.component == "stream")
    secrets = [source["secretRef"]["name"] for source in stream.containers[0]["envFrom"]]
    assert secrets == ["given-lake", "given-webhook"]
    assert (
        streaming_job.webhook_of(parsed[-1], {"HOLDFAST_ALERT_WEBHOOK": "https://a.example/"}) == "https://a.example/"
    )


def test_the_stream_of_the_operator_gets_options_that_it_understands(parsed: list[argparse.Namespace]) -> None:
    (application,) = kinds(rendered("many-certificates"), "SparkApplication")
    spec = application["spec"]
    (pod,) = (pod for pod in pods(rendered("many-certificates")) if pod.component == "stream")
    start_jobs(spec["arguments"], pod)
    mounts = {mount["name"]: Path(mount["mountPath"]) for mount in pod.containers[0]["volumeMounts"]}
    assert parsed[0].budgets == mounts["budgets"] / "budgets.yaml"
    assert parsed[0].plan == mounts["prices"] / "prices.yaml"
    assert spec["mainApplicationFile"] == MAIN
    linked = re.search(r"with_name\(\"(\w+\.py)\"\).*/venv/(\w+\.py)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert linked is not None
    assert (linked[1], f"local:///venv/{linked[2]}") == ("__main__.py", MAIN)


def test_the_operator_runs_the_steps_of_the_cron_job_one_after_the_other(parsed: list[argparse.Namespace]) -> None:
    (scheduled,) = kinds(rendered("many-certificates"), "ScheduledSparkApplication")
    given = ("--values", str(FILES["many-certificates"]), "--set", "billing.operator.enabled=false")
    manifests = tuple(render(*given))
    (job,) = (one for one in kinds(manifests, "CronJob") if one["metadata"]["name"].endswith("-batch"))
    (pod,) = (pod for pod in pods(manifests) if pod.component == "billing")
    steps = [container["args"][: container["args"].index("--memory")] for container in pod.containers]
    assert [step[0] for step in steps] == ["batch", *2 * ["rate"], *2 * ["analyse"], *2 * ["check"]]
    assert scheduled["spec"]["template"]["arguments"] == [
        word for number, step in enumerate(steps) for word in (*(["then"] if number else []), *step)
    ]
    assert scheduled["spec"]["schedule"] == job["spec"]["schedule"]
    assert scheduled["spec"]["concurrencyPolicy"] == job["spec"]["concurrencyPolicy"]
    (driver,) = (pod for pod in pods(rendered("many-certificates")) if pod.component == "billing")
    mounts = {mount["mountPath"] for mount in driver.containers[0]["volumeMounts"]}
    files = {Path(word).parent for word in scheduled["spec"]["template"]["arguments"] if word.endswith(".yaml")}
    assert {str(folder) for folder in files} <= mounts
    assert start_jobs(scheduled["spec"]["template"]["arguments"], driver) == 0
    assert [options.job for options in parsed] == [step[0] for step in steps]


def test_the_data_folder_of_a_pod_can_be_named_to_commands() -> None:
    """The command is in the chart's notes."""
    (pod,) = (pod for pod, _ in serving("default"))
    assert "/var/lib/holdfast/data/keyring.toml" in (CHART / "templates" / "NOTES.txt").read_text()
    assert environment(pod, 0)["HOLDFAST_DATA"] == "/var/lib/holdfast/data"


def test_a_value_that_is_no_setting_would_be_seen(tmp_path: Path) -> None:
    manifests = tuple(render("--set", "settings.default_limits=sends=5"))
    (pod,) = (pod for pod in own(manifests) if pod.component == "single")
    with pytest.raises(Exception, match="default_limits: 'sends' is no limit"):
        settings(pod, manifests, tmp_path)

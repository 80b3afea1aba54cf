"""Manifests of each values file: valid, consistent, and secure."""

import copy
import functools
import re
from collections.abc import Iterable, Iterator
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
from kubernetes_validate import utils

from helm.trials.crds import KINDS as FOREIGN
from tests.helm.chart import (
    CHART,
    FILES,
    NAMESPACE,
    ROOT,
    HelmRefused,
    Manifest,
    Pod,
    helm,
    kinds,
    own,
    pods,
    render,
    rendered,
)
from tests.tables import beside

OPERATOR = beside(__file__, "spark_operator.yaml")["kinds"]
"""Schemas of Kubeflow's Spark operator, by kind."""

all_files = pytest.mark.parametrize("name", FILES)


@pytest.fixture(autouse=True, scope="module")
def _schemas_are_read_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "schema_contents", functools.cache(utils.schema_contents))
        yield


def invalid(manifest: Manifest, version: str) -> str:
    try:
        kubernetes_validate.validate(manifest, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{manifest['kind']} {manifest['metadata']['name']}: {error.message}"
    return ""


@all_files
def test_lint(name: str) -> None:
    output = helm("lint", "--strict", str(CHART), "--values", str(FILES[name]))
    assert "1 chart(s) linted, 0 chart(s) failed" in output


@all_files
@pytest.mark.parametrize("version", ["1.28", "1.35"])
def test_every_manifest_is_valid(name: str, version: str) -> None:
    found = [invalid(manifest, version) for manifest in rendered(name) if manifest["kind"] not in FOREIGN]
    assert found
    assert not "".join(found)


def test_kinds_of_others_are_known_to_the_trials_too() -> None:
    """`make kube` creates objects of all these kinds."""
    found = {
        one["kind"]: tuple(one["apiVersion"].split("/"))
        for name in FILES
        for one in rendered(name)
        if one["kind"] in FOREIGN
    }
    assert found == FOREIGN


def test_a_misspelt_field_is_not() -> None:
    manifest = copy.deepcopy(kinds(rendered("default"), "StatefulSet")[0])
    manifest["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    assert "readynessProbe" in invalid(manifest, "1.35")


@all_files
def test_every_object_has_one_name_a_namespace_and_labels(name: str) -> None:
    manifests = rendered(name)
    names = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests]
    assert len(set(names)) == len(names)
    for manifest in manifests:
        assert manifest["metadata"]["namespace"] == NAMESPACE
        assert manifest["metadata"]["labels"]["app.kubernetes.io/instance"] == "mine"
        if name.endswith("everything"):
            assert manifest["metadata"]["labels"]["team"] == "platform"


def test_the_longest_names_fit() -> None:
    release = "a" * 53
    for manifest in render("--values", str(FILES["many"]), release=release):
        room = 63 - len("-0123456789") if manifest["kind"] in ("StatefulSet", "Deployment") else 63
        assert len(manifest["metadata"]["name"]) <= room
    for pod in pods(tuple(render("--values", str(FILES["many"]), release=release))):
        assert all(len(label) <= 63 for label in pod.labels.values())


# --- pods ---------------------------------------------------------------------------------------------------------


def against_restricted(pod: Pod) -> Iterator[str]:
    """Return violations of Kubernetes's Pod Security profile "restricted"."""
    spec, security = pod.spec, pod.spec.get("securityContext", {})
    for member in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(member):
            yield member
    for volume in spec.get("volumes", ()):
        if not volume.keys() & {"configMap", "emptyDir", "secret", "projected", "persistentVolumeClaim"}:
            yield f"volume {volume}"
    for container in pod.containers:
        own = container.get("securityContext", {})
        if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
            yield "may get more rights"
        if own.get("capabilities") != {"drop": ["ALL"]}:
            yield "capabilities"
        if not own.get("runAsNonRoot", security.get("runAsNonRoot")) or not own.get("runAsUser", security["runAsUser"]):
            yield "root"
        if own.get("seccompProfile", security.get("seccompProfile")) != {"type": "RuntimeDefault"}:
            yield "seccomp"
        if any("hostPort" in port for port in container.get("ports", ())):
            yield "hostPort"


@all_files
def test_pods_are_restricted_and_write_to_volumes_alone(name: str) -> None:
    found = list(pods(rendered(name)))
    assert found
    for pod in found:
        assert not list(against_restricted(pod)), pod.name
        drivers = ("mine-holdfast-stream-driver", "mine-holdfast-batch-driver")
        assert pod.spec["automountServiceAccountToken"] is (pod.name in drivers), "they make pods"
        assert pod.spec["enableServiceLinks"] is False, "HOLDFAST_PORT=tcp://... would be taken for a setting"
        for container in pod.containers:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()


@all_files
def test_pods_refer_to_existing_objects(name: str) -> None:
    manifests = rendered(name)
    made = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests}
    made |= {("Secret", one["spec"]["secretName"]) for one in kinds(manifests, "Certificate")}
    for pod in pods(manifests):
        for container in pod.containers:
            mounted = [mount["name"] for mount in container["volumeMounts"]]
            assert set(mounted) <= pod.volumes, pod.name
            assert len({mount["mountPath"] for mount in container["volumeMounts"]}) == len(mounted)
            ports = {port["name"] for port in container.get("ports", ())}
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                if probe in container:
                    (how,) = container[probe].keys() & {"httpGet", "tcpSocket"}
                    assert container[probe][how]["port"] in ports
            for kind, wanted in referred(container, pod.spec):
                assert (kind, wanted) in made or wanted.startswith("given-"), f"{pod.name}: {kind} {wanted}"
        if "serviceAccountName" in pod.spec:
            assert ("ServiceAccount", pod.spec["serviceAccountName"]) in made


def referred(container: dict[str, Any], spec: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for variable in container.get("env", ()):
        source = variable.get("valueFrom", {})
        if "secretKeyRef" in source:
            yield "Secret", source["secretKeyRef"]["name"]
    for source in container.get("envFrom", ()):
        yield "Secret", source["secretRef"]["name"]
    for volume in spec.get("volumes", ()):
        if "secret" in volume:
            yield "Secret", volume["secret"]["secretName"]
        if "configMap" in volume:
            yield "ConfigMap", volume["configMap"]["name"]


@all_files
def test_selectors_select_pods_of_one_component(name: str) -> None:
    manifests = rendered(name)
    found = list(pods(manifests))

    def selected(labels: dict[str, str]) -> Pod:
        (one,) = (pod for pod in found if labels.items() <= pod.labels.items())
        return one

    for service in kinds(manifests, "Service"):
        pod = selected(service["spec"]["selector"])
        ports = {port["name"] for container in pod.containers for port in container.get("ports", ())}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for owner in kinds(manifests, "StatefulSet", "Deployment"):
        assert selected(owner["spec"]["selector"]["matchLabels"]).name == owner["metadata"]["name"]
    for budget in kinds(manifests, "PodDisruptionBudget"):
        assert selected(budget["spec"]["selector"]["matchLabels"]).name == budget["metadata"]["name"]
    services = {service["metadata"]["name"]: service for service in kinds(manifests, "Service")}
    for owner in kinds(manifests, "StatefulSet"):
        headless = services[owner["spec"]["serviceName"]]["spec"]
        assert headless["clusterIP"] == "None"
        assert selected(headless["selector"]).name == owner["metadata"]["name"]
    for scaler in kinds(manifests, "HorizontalPodAutoscaler"):
        (scaled,) = (
            one
            for one in kinds(manifests, scaler["spec"]["scaleTargetRef"]["kind"])
            if one["metadata"]["name"] == scaler["spec"]["scaleTargetRef"]["name"]
        )
        assert "replicas" not in scaled["spec"], "an upgrade would undo what the autoscaler has decided"
    for ingress in kinds(manifests, "Ingress"):
        (rule,) = ingress["spec"]["rules"]
        (path,) = rule["http"]["paths"]
        assert path["backend"]["service"]["name"] in services


# --- networks -----------------------------------------------------------------------------------------------------


def let_in(policy: Manifest, pod: Pod) -> bool:
    """Return whether a policy admits this pod of its own namespace."""
    for rule in policy["spec"].get("ingress", ()):
        if "from" not in rule:
            return True
        for peer in rule["from"]:
            selector = peer.get("podSelector")
            if selector is None:
                continue
            labels = selector.get("matchLabels", {}).items() <= pod.labels.items()
            if labels and all(pod.labels[one["key"]] in one["values"] for one in selector.get("matchExpressions", ())):
                return True
    return False


@pytest.mark.parametrize("name", [name for name in FILES if name != "many-few"])
def test_each_tier_is_reached_by_those_that_have_to(name: str) -> None:
    manifests = rendered(name)
    found = {pod.component: pod for pod in pods(manifests)}
    policies = {
        policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]: policy
        for policy in kinds(manifests, "NetworkPolicy")
    }
    assert policies.keys() == found.keys() - {"test"}, "all that runs for long, or can be reached, has a policy"
    roles = {"frontend", "backend", "metadata", "manager"}
    allowed = {
        "backend": {"frontend", "backend", "manager"},
        "metadata": roles,
        "cassandra": roles | {"backup"},
        "redis": roles,
        "manager": set(),
        "backup": set(),
        "billing": {"billing-executor"},
        "billing-executor": {"billing", "billing-executor"},
        "migration": set(),
        "stream": {"stream-executor"},
        "stream-executor": {"stream", "stream-executor"},
    }
    for component, policy in policies.items():
        callers = {caller for caller, pod in found.items() if let_in(policy, pod)}
        if component in allowed:
            assert callers == allowed[component] & found.keys(), component
        else:
            assert "test" in callers
            assert ("redis" in callers) == ("redis" in found and name == "demo")
        ports = [port["port"] for rule in policy["spec"].get("ingress", ()) for port in rule["ports"]]
        opened = {port["containerPort"] for one in found[component].containers for port in one.get("ports", ())}
        assert set(ports) <= opened


def test_network_policies_limit_outgoing_connections() -> None:
    for name in ("single-everything", "many-everything"):
        for policy in kinds(rendered(name), "NetworkPolicy"):
            assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
            ports = [port["port"] for rule in policy["spec"]["egress"] for port in rule.get("ports", ())]
            assert 53 in ports
            assert (9142 in ports) == name.startswith("many")


# --- forms --------------------------------------------------------------------------------------------------------


def test_volumes_of_what_is_scaled_down_stay() -> None:
    for name in FILES:
        for one in kinds(rendered(name), "StatefulSet"):
            if one["spec"].get("volumeClaimTemplates"):
                kept = one["spec"].get("persistentVolumeClaimRetentionPolicy", {"whenScaled": "Retain"})
                assert kept["whenScaled"] == "Retain"


@all_files
def test_a_rollback_replaces_pods_that_never_got_ready(name: str) -> None:
    """Kubernetes would wait for such a pod first, unless the StatefulSet's pods start in parallel."""
    for one in kinds(rendered(name), "StatefulSet"):
        assert one["spec"].get("podManagementPolicy") == "Parallel"


@all_files
def test_the_end_leaves_time_to_drain(name: str) -> None:
    """Time for calls under way, a minute for the hand-over of shards, and the preStop hook."""
    for pod in own(rendered(name)):
        if pod.component in ("test", "manager", "migration"):
            continue
        drain = 45 if name == "single-everything" else 30
        before = pod.container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
        assert before[0] == "sleep"
        hand_over = 60 if pod.component in ("backend", "single") else 0
        assert pod.spec["terminationGracePeriodSeconds"] >= drain + hand_over + int(before[1]) + 10
        assert (int(before[1]) > 0) == (pod.component == "frontend" and name != "many-few")


@all_files
def test_a_start_that_takes_long_is_not_ended(name: str) -> None:
    for pod in own(rendered(name)):
        if pod.component in ("frontend", "single"):
            probe = pod.spec["containers"][0]["startupProbe"]
            assert probe["periodSeconds"] * probe["failureThreshold"] >= 86_400


def test_pods_are_started_anew_when_their_configuration_changes() -> None:
    def annotations(manifests: Iterable[Manifest]) -> dict[str, str]:
        return {
            one["metadata"]["name"]: one["spec"]["template"]["metadata"]["annotations"]["holdfast/configuration"]
            for one in manifests
            if one["kind"] in ("StatefulSet", "Deployment") and not one["metadata"]["name"].endswith("-stream")
        }

    before = annotations(rendered("many-everything"))
    after = annotations(render("--values", str(FILES["many-everything"]), "--set", "queues[0].name=other.fifo"))
    assert before.keys() == after.keys()
    assert not before.items() & after.items()


@pytest.mark.parametrize("name", ["many", "many-everything"])
def test_tables_are_changed_before_pods_start_and_without_objects_that_do_not_exist_yet(name: str) -> None:
    """Everything except hooks is created after the hooks."""
    (job,) = kinds(rendered(name), "Job")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert "before-hook-creation" in job["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
    (pod,) = pods((job,))
    assert "serviceAccountName" not in pod.spec
    for _, wanted in (one for container in pod.containers for one in referred(container, pod.spec)):
        assert wanted.startswith("given-")
    assert job["spec"]["activeDeadlineSeconds"] == (1200 if name == "many-everything" else 600)


@pytest.mark.parametrize(
    ("kind", "component", "executors"), [("SparkApplication", "stream", 2), ("ScheduledSparkApplication", "billing", 3)]
)
def test_spark_has_a_driver_and_executors_that_reach_each_other(kind: str, component: str, executors: int) -> None:
    manifests = rendered("many-certificates")
    (application,) = kinds(manifests, kind)
    spec = application["spec"].get("template", application["spec"])
    found = {pod.component: pod for pod in pods(manifests)}
    assert found[f"{component}-executor"].replicas == executors
    others = kinds(manifests, "Deployment", "CronJob")
    assert not [one for one in others if one["metadata"]["name"] == application["metadata"]["name"]]
    for side, of in (("driver", component), ("executor", f"{component}-executor")):
        (container,) = found[of].spec["containers"]
        assert container["name"] == f"spark-kubernetes-{side}", "by which the operator knows it"
        assert "args" not in container, "Spark adds its own"
    assert spec["sparkConf"]["spark.driver.port"] == "7078"
    assert spec["sparkConf"]["spark.blockManager.port"] == "7079"
    account = found[component].spec["serviceAccountName"]
    assert spec["driver"]["serviceAccount"] == account
    assert found[f"{component}-executor"].spec["serviceAccountName"] != account
    (binding,) = (one for one in kinds(manifests, "RoleBinding") if one["metadata"]["name"] == account)
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}]
    (role,) = (one for one in kinds(manifests, "Role") if one["metadata"]["name"] == binding["roleRef"]["name"])
    assert {"pods", "services", "configmaps"} <= set(role["rules"][0]["resources"])
    lock = (ROOT / "requirements" / "spark.txt").read_text()
    assert f"pyspark=={spec['sparkVersion']} " in lock


@pytest.mark.parametrize("kind", OPERATOR)
def test_the_operator_has_all_fields_of_its_objects(kind: str) -> None:
    (application,) = kinds(rendered("many-certificates"), kind)
    jsonschema.validate(application, OPERATOR[kind])
    spec = application["spec"].get("template", application["spec"])
    for role in ("driver", "executor"):
        manifest = {"apiVersion": "v1", "kind": "Pod", **spec[role]["template"]}
        kubernetes_validate.validate(manifest, "1.35", strict=True)


def test_a_field_that_the_operator_does_not_have_is_found() -> None:
    (application,) = kinds(rendered("many-certificates"), "ScheduledSparkApplication")
    for changed in (
        {**application["spec"], "timeZone": "Etc/UTC"},
        {**application["spec"], "concurrencyPolicy": "Never"},
        {**application["spec"], "template": {**application["spec"]["template"], "args": []}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**application, "spec": changed}, OPERATOR["ScheduledSparkApplication"])


@pytest.mark.parametrize(("name", "endpoint"), [("default", "http"), ("many-everything", "https")])
def test_the_notes_have_the_lines_to_use_it(name: str, endpoint: str) -> None:
    output = helm(
        "install", "mine", str(CHART), "--namespace", NAMESPACE, "--dry-run=client", "--values", str(FILES[name])
    )
    notes = output[output.index("NOTES:") :]
    assert f"{endpoint}://mine-holdfast.{NAMESPACE}.svc:9324" in notes
    assert f"kubectl -n {NAMESPACE} port-forward service/mine-holdfast 9324:9324" in notes
    assert "helm test mine" in notes
    for secret in re.findall(r"get secret (\S+)", notes):
        assert secret in ("mine-holdfast-root-key", "given-root")


def test_an_older_kubernetes_is_refused() -> None:
    with pytest.raises(HelmRefused, match="kubeVersion"):
        render("--kube-version", "1.27.0")

"""Foreign kinds of which the chart creates objects, defined in the API server with arbitrary fields.

So every option of the chart is really installed.  The contents of their fields are checked by the tests of
templates.
"""

from __future__ import annotations

from typing import Final

from helm.trials.cluster import Object

KINDS: Final = {
    "ServiceMonitor": ("monitoring.coreos.com", "v1"),
    "PrometheusRule": ("monitoring.coreos.com", "v1"),
    "HTTPRoute": ("gateway.networking.k8s.io", "v1"),
    "Certificate": ("cert-manager.io", "v1"),
    "Issuer": ("cert-manager.io", "v1"),
    "VerticalPodAutoscaler": ("autoscaling.k8s.io", "v1"),
    "SparkApplication": ("sparkoperator.k8s.io", "v1beta2"),
    "ScheduledSparkApplication": ("sparkoperator.k8s.io", "v1beta2"),
}


def definitions() -> list[Object]:
    return [_definition(kind, group, version) for kind, (group, version) in KINDS.items()]


def _definition(kind: str, group: str, version: str) -> Object:
    plural = f"{kind.lower()}s"
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "required": ["spec"], "properties": {"spec": anything, "status": anything}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for trials"},  # needed in groups of k8s.io
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [
                {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}},
            ],
        },
    }

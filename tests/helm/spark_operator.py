"""Schemas of Kubeflow's Spark operator: only the fields of ``sparkoperator.k8s.io/v1beta2`` that the chart uses.

The operator silently drops unknown fields, so other fields are an error.
"""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]

_TEXT: Final = {"type": "string", "minLength": 1}
_COUNT: Final = {"type": "integer", "minimum": 0}
_SECONDS: Final = {"type": "integer", "minimum": 1}
_CORES: Final = {"type": "integer", "minimum": 1}
_MEMORY: Final = {"type": "string", "pattern": "^[1-9][0-9]*[mg]$"}
_SETTINGS: Final = {"type": "object", "additionalProperties": {"type": "string"}}


def _object(required: tuple[str, ...], **fields: Schema) -> Schema:
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": fields}


def _pod(**fields: Schema) -> Schema:
    common: dict[str, Schema] = {
        "cores": _CORES,
        "memory": _MEMORY,
        "memoryOverhead": _MEMORY,
        "template": {"type": "object"},
    }
    return _object((), **common, **fields)


_APPLICATION: Final = _object(
    ("type", "sparkVersion", "mainApplicationFile", "driver", "executor"),
    type={"enum": ["Java", "Python", "Scala", "R"]},
    mode={"enum": ["cluster", "client"]},
    pythonVersion={"enum": ["2", "3"]},
    sparkVersion=_TEXT,
    image=_TEXT,
    imagePullPolicy={"enum": ["Always", "Never", "IfNotPresent"]},
    imagePullSecrets={"type": "array", "items": _TEXT},
    mainApplicationFile=_TEXT,
    arguments={"type": "array", "items": {"type": "string"}},
    restartPolicy=_object(
        ("type",),
        type={"enum": ["Never", "Always", "OnFailure"]},
        onSubmissionFailureRetries=_COUNT,
        onFailureRetries=_COUNT,
        onSubmissionFailureRetryInterval=_SECONDS,
        onFailureRetryInterval=_SECONDS,
    ),
    sparkConf=_SETTINGS,
    driver=_pod(coreRequest=_TEXT, serviceAccount=_TEXT),
    executor=_pod(instances=_CORES),
)
_SCHEDULED: Final = _object(
    ("schedule", "template"),
    schedule=_TEXT,
    template=_APPLICATION,
    suspend={"type": "boolean"},
    concurrencyPolicy={"enum": ["Allow", "Forbid", "Replace"]},
    successfulRunHistoryLimit=_COUNT,
    failedRunHistoryLimit=_COUNT,
)


def _kind(name: str, spec: Schema) -> Schema:
    return _object(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": "sparkoperator.k8s.io/v1beta2"},
        kind={"const": name},
        metadata={"type": "object"},
        spec=spec,
    )


SCHEMAS: Final = {
    "SparkApplication": _kind("SparkApplication", _APPLICATION),
    "ScheduledSparkApplication": _kind("ScheduledSparkApplication", _SCHEDULED),
}

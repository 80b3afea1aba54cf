"""Modules that the start of a process imports; those of other roles and optional features cost it time and memory."""

import json
import subprocess
import sys

import pytest

from tests.checks.sources import ROOT

CLIENTS = ("boto3", "cassandra", "kafka", "pyarrow", "redis", "spark_analytics")
"""Libraries that need a setting, or a command that is not a role."""
SDK = ("google.protobuf", "opentelemetry.sdk", "opentelemetry.exporter")
REST = ("fastapi", "pydantic")
NODE = ("backend.incarnation", "backend.node", "backend.recovery", "backend.serving.commands")
COMMANDS = ("holdfast.backup", "holdfast.commands.billing", "holdfast.commands.queues", "holdfast.doctor")

UNUSED = {
    "commands.main": (*CLIENTS, *SDK, *REST, *COMMANDS, "backend", "frontend", "holdfast.settings", "httpx", "uvicorn"),
    "commandline.client": (*CLIENTS, *REST, *COMMANDS, "backend", "frontend", "holdfast.settings", "uvicorn"),
    "process.embedded": (*CLIENTS, *SDK, *COMMANDS, "httpx"),
    "process.supervisor": (*CLIENTS, *SDK, *REST, *COMMANDS, *NODE, "frontend", "httpx"),
    "process.child": (*CLIENTS, *SDK, *REST, *COMMANDS, *NODE, "frontend", "httpx", "uvicorn"),
    "process.standalone_frontend": (*CLIENTS, *SDK, *COMMANDS, *NODE, "httpx"),
    "process.distributed_frontend": (*CLIENTS, *COMMANDS, *NODE),
    "process.standalone_backend": (*CLIENTS, *SDK, *REST, *COMMANDS, "frontend", "httpx"),
    "process.distributed_backend": (*CLIENTS, *REST, *COMMANDS, "frontend"),
    "process.manager_role": (*CLIENTS, *REST, *COMMANDS, "frontend"),
    "process.metadata": (*CLIENTS, *REST, *COMMANDS, *NODE, "frontend"),
}
"""Modules by the one that a role or command starts with, besides that of the command line."""


@pytest.mark.parametrize("module", UNUSED)
def test_a_start_imports_only_what_its_role_uses(module: str) -> None:
    program = f"import json, sys, holdfast.commands.main, holdfast.{module}; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    loaded = json.loads(run.stdout)
    assert f"holdfast.{module}" in loaded
    unused = tuple(f"{name}." for name in UNUSED[module])
    assert [name for name in loaded if f"{name}.".startswith(unused)] == []

"""Validation of values: the schema is strict, and contradictions have errors in words."""

import json
import re
import subprocess
import sys
from typing import Any

import pytest
import yaml

from holdfast.settings import Settings
from tests.helm.chart import CHART, FILES, ROOT, HelmRefused, own, render, rendered
from tests.tables import beside

REFUSED = beside(__file__, "refused_values.yaml")


def refusal(*sets: str) -> str:
    with pytest.raises(HelmRefused) as raised:
        render(*(argument for one in sets for argument in ("--set", one)))
    return str(raised.value)


@pytest.mark.parametrize(("given", "where"), REFUSED["not in the schema"])
def test_values_outside_the_schema_are_refused(given: str, where: str) -> None:
    message = refusal(given)
    assert "values don't meet the specifications of the schema" in message
    assert where in message


@pytest.mark.parametrize(("given", "message"), REFUSED["contradictions"])
def test_contradictions_are_refused_with_what_to_change(given: list[str], message: str) -> None:
    assert message in refusal(*given)


def test_each_contradiction_has_a_case() -> None:
    """An error that cannot occur would be dead code."""
    written = (CHART / "templates" / "checks.yaml").read_text().count("{{- fail ")
    assert len({message for _, message in REFUSED["contradictions"]}) == written


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
    assert left == {"cluster_secret", "keyring_file", "queues", "topics"}, (
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

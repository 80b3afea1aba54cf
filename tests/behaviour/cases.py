"""Behaviour cases: the format of case files, and its parser.  README.md says how to write one."""

import base64
import json
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.tables import read_yaml

FOLDER = Path(__file__).with_name("cases")
CASE_KEYS = {"name", "facts", "source", "only", "each", "queues", "settings", "steps"}
STEP_KEYS = {"expect", "error", "outcome", "save", "only", "background", "eventually", "await", "advance"}
STEP_KEYS |= {"http", "method", "path", "host", "headers", "sign"}
VARIABLE = re.compile(r"\$(?:\{([\w.]+)\}|(\w+(?:\.\w+)*))")


class CaseError(Exception):
    """A case file contains something that the runner does not know."""


@dataclass
class CaseStep:
    """One call with its expected answer, or an advance of the clock, or the end of a background call."""

    kind: str
    """``call``, ``http``, ``advance`` or ``await``."""
    action: str = ""
    params: Any = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Case:
    """One named sequence of steps."""

    name: str
    file: str
    facts: list[int | str]
    steps: list[CaseStep]
    only: str | None = None
    queues: dict[str, dict[str, str]] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the service: such a case runs on a service of its own."""


@cache
def load() -> list[Case]:
    """Load all cases of all files; those with ``each`` once for each row."""
    cases: list[Case] = []
    for path in sorted(FOLDER.glob("*.yaml")):
        for entry in read_yaml(path):
            cases += _expand(path.stem, entry)
    names = [case.name for case in cases]
    if len(set(names)) != len(names):
        raise CaseError(f"two cases have one name: {sorted(name for name in names if names.count(name) > 1)}")
    return cases


def _expand(file: str, entry: dict[str, Any]) -> list[Case]:
    unknown = set(entry) - CASE_KEYS
    if unknown or not entry.get("steps") or not entry.get("facts"):
        raise CaseError(f"{file}: {entry.get('name')}: unknown {unknown} or no steps or facts")
    rows = entry.get("each", [{}])
    out = []
    for number, row in enumerate(rows, 1):
        label = f"{file}.{entry['name']}"
        if row:
            label += f"[{number}: " + ", ".join(f"{key}={_label(value)}" for key, value in row.items()) + "]"
        steps = [_step(label, step) for step in entry["steps"]]
        queues = {name: attributes or {} for name, attributes in (entry.get("queues") or {}).items()}
        out.append(
            Case(label, file, entry["facts"], steps, entry.get("only"), queues, dict(row), entry.get("settings") or {})
        )
    return out


def _label(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    text = text.encode("unicode_escape").decode()
    return text if len(text) <= 40 else f"{text[:36]}…{len(text)}"


def _step(case: str, entry: dict[str, Any]) -> CaseStep:
    actions = [key for key in entry if key[0].isupper()]
    options = {key: value for key, value in entry.items() if key not in actions}
    unknown = set(options) - STEP_KEYS
    if unknown:
        raise CaseError(f"{case}: unknown step keys {unknown}")
    if len(actions) == 1:
        return CaseStep("call", actions[0], entry[actions[0]] or {}, options)
    for kind in ("http", "advance", "await"):
        if not actions and kind in options:
            return CaseStep(kind, params=options.pop(kind), options=options)
    raise CaseError(f"{case}: a step with no one action: {entry}")


def parse_seconds(text: str | int) -> float:
    """Parse ``31s``, ``5m``, ``15h``, ``4d``; a bare number is seconds."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    if isinstance(text, int | float):
        return float(text)
    return float(text[:-1]) * units[text[-1]]


def resolve(value: Any, variables: dict[str, Any]) -> Any:
    """Substitute variables and run generators.

    ``$name`` alone gives the variable itself, inside a text its text.  Generators are maps with one key: ``$repeat:
    [text, n]``, ``$b64: text`` (bytes), ``$json: value`` (compact JSON text), ``$list: [n, template]`` (n elements,
    ``$i`` counts from 1), ``$map: [n, key, value]``, ``$join: [..]``, ``$chr: n``.
    """
    if isinstance(value, str):
        return _substitute(value, variables)
    if isinstance(value, list):
        return [resolve(inner, variables) for inner in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        key, operand = next(iter(value.items()))
        if key == "$repeat":
            text, count = resolve(operand, variables)
            return text * count
        if key == "$b64":
            return base64.b64decode(operand)
        if key == "$chr":
            return chr(resolve(operand, variables))
        if key == "$join":
            return "".join(resolve(operand, variables))
        if key == "$json":
            return json.dumps(resolve(operand, variables), separators=(",", ":"), ensure_ascii=False)
        if key == "$list":
            count = resolve(operand[0], variables)
            return [resolve(operand[1], {**variables, "i": number}) for number in range(1, count + 1)]
        if key == "$map":
            count = resolve(operand[0], variables)
            rows = [{**variables, "i": number} for number in range(1, count + 1)]
            return {resolve(operand[1], row): resolve(operand[2], row) for row in rows}
    return type(value)({_substitute(key, variables): resolve(inner, variables) for key, inner in value.items()})


def _substitute(text: str, variables: dict[str, Any]) -> Any:
    whole = VARIABLE.fullmatch(text)
    if whole and (whole[1] or whole[2]) in variables:
        return variables[whole[1] or whole[2]]

    def put(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        return str(variables[name]) if name in variables else found[0]

    return VARIABLE.sub(put, text)

"""Cases of metadata stores, as rows of a table: calls with their answers, for the conformance suite.

::

    - name: a-purge-is-numbered               # unique in its file
      each: [{state: deleted}]                # the case once for each row, with these variables
      steps:
        - create_queue: {name: orders}        # the method with its arguments, or the members of its only argument
          save: {id: queue_id}                # variables from the answer; ``save: queue`` is all of it
        - begin_purge: {queue_id: $id, now_ms: 59_999}     # milliseconds after the case's start
          expect: {purge_id: 1}               # matchers: tests/behaviour/README.md; a struct is a map of all members
        - begin_purge: {queue_id: $id}
          refused: PurgeInProgress            # an error, with a text that it matches; ``expect`` is about its members
        - put_tenant: {name: root}
          as: tenant                          # a variable for the argument, with all members
        - update_tenant: {like: $tenant, state: deleted}     # with other members

Accounts are ``$a`` to ``$c``.  What is left out: the account is ``$a``, the time the start, names are held for a
minute, purges are a minute apart, and lists have up to 100 elements.  Bytes are in base64.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from metadata_service.nodes.codec import METHODS
from metadata_service.store import MetadataStore
from tests.behaviour.cases import resolve
from tests.behaviour.match import differences
from tests.tables import read_yaml

FOLDER = Path(__file__).with_name("cases")
NOW_MS = 1_800_000_000_123
LEFT_OUT = {
    "account": "0" * 12,
    "now_ms": 0,
    "hold_seconds": 60,
    "interval_seconds": 60,
    "limit": 100,
    "attributes": {},
    "settings": {},
    "queue_attributes": {},
    "tags": {},
}


@dataclass
class StoreCase:
    """One named sequence of calls."""

    name: str
    row: dict[str, Any]
    steps: list[dict[str, Any]]

    async def run(self, store: MetadataStore) -> None:
        variables = {**self.row, "a": "0" * 12, "b": "1" * 12, "c": "2" * 12}
        for step in self.steps:
            where = f"{self.name}: {step}"
            (method,) = step.keys() & METHODS.keys()
            call, given = METHODS[method], _arguments(method, resolve(step[method] or {}, variables))
            arguments = call.arguments.decode(msgspec.json.encode(given))
            unknown = differences(given, plain(arguments))
            assert not unknown, (where, unknown)
            if "as" in step:
                variables[step["as"]] = next(iter(plain(arguments).values()))
            error, _, text = step.get("refused", "").partition(" ")
            if error:
                with pytest.raises(Exception, match=text or None) as raised:
                    await call.call(store, arguments)
                assert type(raised.value).__name__ == error, where
                answer = {name: plain(value) for name, value in vars(raised.value).items()}
            else:
                answer = plain(await call.call(store, arguments))
            if "expect" in step:
                found = differences(resolve(step["expect"], variables), answer)
                assert not found, (where, found)
            saved = step.get("save", {})
            variables |= {saved: answer} if isinstance(saved, str) else {k: answer[v] for k, v in saved.items()}


def plain(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def _arguments(method: str, given: dict[str, Any]) -> dict[str, Any]:
    """Complete the arguments of a call."""
    call = METHODS[method]
    given = given.pop("like", {}) | given
    fields = {field.name: field for field in msgspec.structs.fields(call.arguments.type)}
    if len(fields) == 1 and not given.keys() & fields.keys() and _is_struct(*fields.values()):
        (only,) = fields.values()
        members = {field.name for field in msgspec.structs.fields(only.type)}
        return {only.name: ({"account": LEFT_OUT["account"]} if "account" in members else {}) | given}
    for name, value in LEFT_OUT.items():
        if name in fields and fields[name].required:
            given.setdefault(name, value)
    if "now_ms" in given:
        given["now_ms"] += NOW_MS
    return given


def _is_struct(field: Any) -> bool:
    return isinstance(field.type, type) and issubclass(field.type, msgspec.Struct)


@cache
def load(file: str) -> list[Any]:
    """Return the cases of a file, as parameters of a test."""
    found = []
    for case in read_yaml(FOLDER / f"{file}.yaml"):
        assert case.keys() <= {"name", "each", "steps"}, case
        for at, row in enumerate(case.get("each", [{}])):
            name = case["name"] + (f"-{at}" if row else "")
            found.append(pytest.param(StoreCase(name, row, case["steps"]), id=name))
    assert len({param.id for param in found}) == len(found)
    return found

"""Reads scenarios as JSON, performs their steps with a client, and prints the results as JSON.

A step is ``[operation, arguments]``; an operation is a method of the client with that name.  The result of a scenario
is the list of its steps' results, which ends early where a step cannot be performed:

- ``{"error": code}``: the service answered with an error code of Kafka's protocol; the scenario goes on;
- ``{"missing": operation}``: the client does not have the operation;
- ``{"failure": text}``: anything else.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

WAIT_SECONDS = 40
"""A step that waits for records, members or answers fails after this time."""

SCENARIOS_AT_ONCE = 4
"""Most scenarios wait for members of groups; each has topics and groups of its own."""


def perform(
    client: Any, steps: list[list[Any]], error_code: Callable[[Exception], int | None], runner: asyncio.Runner
) -> list[Any]:
    """Return the result of each step.  Operations may be coroutines, which share the runner's event loop."""
    results: list[Any] = []
    for operation, arguments in steps:
        method = getattr(client, operation, None)
        if method is None:
            return [*results, {"missing": operation}]
        try:
            result = method(**arguments)
            results.append(runner.run(result) if inspect.iscoroutine(result) else result)
        except Exception as error:
            code = error_code(error)
            if code is None:
                return [*results, {"failure": traceback.format_exc()}]
            results.append({"error": code})
    return results


def main(make_client: Callable[[dict[str, Any]], Any], error_code: Callable[[Exception], int | None]) -> None:
    """Perform the scenarios of standard input with clients that sign in as they say, some at the same time."""
    given = json.load(sys.stdin)

    def performed(steps: list[list[Any]]) -> list[Any]:
        with asyncio.Runner() as runner:
            return perform(make_client(given["sign_in"]), steps, error_code, runner)

    scenarios = given["scenarios"]
    with ThreadPoolExecutor(SCENARIOS_AT_ONCE) as threads:
        results = dict(zip(scenarios, threads.map(performed, scenarios.values()), strict=True))
    json.dump(results, sys.stdout)


def shares(consumers: Sequence[Any], counts: list[int], deadline: float) -> list[list[int]] | None:
    """Return the partitions of each member of a group, in order, once they have so many; None: poll again.

    Raises ``TimeoutError`` after the ``deadline`` of :func:`time.monotonic`.
    """
    found = [sorted(one.partition for one in consumer.assignment()) for consumer in consumers]
    if [len(one) for one in found] == counts:
        return sorted(found)
    if time.monotonic() > deadline:
        raise TimeoutError(f"assignments are {found}")
    return None


def text(data: bytes | None) -> str | None:
    """Decode a key, a value or a header's value."""
    return None if data is None else data.decode()


def data(given: str | None) -> bytes | None:
    """Encode a key, a value or a header's value."""
    return None if given is None else given.encode()

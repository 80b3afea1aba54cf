"""Calls as their caller counts them, and as the usage lake has them."""

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from botocore.exceptions import ClientError, EndpointConnectionError, HTTPClientError

from tests.servers.server import Server

IDS = ("node", "boot", "sequence", "slot")
Calls = Counter[tuple[str, str]]
"""Calls by account and action."""


class MeteredCaller:
    """Makes calls until stopped, and counts them: as answered, or as in doubt, if a process was killed meanwhile."""

    def __init__(self, server: Server, account: str, **keys: str) -> None:
        self.account = account
        self.answered: Calls = Counter()
        self.in_doubt: Calls = Counter()
        self.stopping = threading.Event()
        self._client: Any = server.client(**keys)
        self._methods = {action: method for method, action in self._client.meta.method_to_api_mapping.items()}
        self._thread = threading.Thread(target=self._run, name=f"calls of {account}")

    def begin(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def work(self) -> None:
        """Make some calls, again and again."""
        raise NotImplementedError

    def call(self, action: str, **members: Any) -> dict[str, Any]:
        """Make a call; returns nothing if it failed."""
        answer: dict[str, Any] = {}
        try:
            answer = getattr(self._client, self._methods[action])(**members)
        except ClientError:  # counted like any other answer
            pass
        except EndpointConnectionError:  # the service did not get it
            self.stopping.wait(0.05)
            return {}
        except HTTPClientError:
            self.in_doubt[self.account, action] += 1
            return {}
        self.answered[self.account, action] += 1
        return answer

    def _run(self) -> None:
        while not self.stopping.is_set():
            self.work()


def usage_in(lake: Path) -> list[dict[str, Any]]:
    """Return each record of calls once."""
    if not (lake / "usage").exists():  # records of storage may arrive first
        return []
    rows = ds.dataset(lake / "usage", partitioning="hive").to_table().to_pylist()
    return list({tuple(row[name] for name in IDS): row for row in rows}.values())


def calls_of(rows: list[dict[str, Any]]) -> Calls:
    calls: Calls = Counter()
    for row in rows:
        calls[row["account"], row["action"]] += row["calls"] + row["refused"] + row["throttled"] + row["failed"]
    return calls

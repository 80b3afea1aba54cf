"""The Celery application of the tests: its workers and callers are processes of their own.

``COMPAT_CELERY`` in the environment is a JSON object: ``broker`` (a URL), ``options`` (of the SQS transport),
``settings`` (Celery's), ``notes`` (the file that the tasks write to).
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from celery import Celery
from celery.exceptions import Reject

from tests.servers.waiting import wait_until

SETUP: dict[str, Any] = json.loads(os.environ["COMPAT_CELERY"])
HOLD_SECONDS = 60

app = Celery("compat", broker=SETUP["broker"])
app.conf.update(
    broker_transport_options=SETUP["options"],
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    worker_enable_remote_control=False,
    worker_prefetch_multiplier=1,
    **SETUP.get("settings", {}),
)


def note(task: Any, text: str) -> None:
    """Append a line that the test can read."""
    line = json.dumps({"task": task.request.id, "text": text, "pid": os.getpid(), "time": time.time()})
    with Path(SETUP["notes"]).open("a") as notes:
        notes.write(line + "\n")


def add(self: Any, x: int, y: int) -> None:
    """Record the sum."""
    note(self, f"{x} + {y} = {x + y}")


def flaky(self: Any, name: str) -> None:
    """Fail at the first two attempts, and request a retry in a second."""
    note(self, f"{name}: attempt {self.request.retries}")
    if self.request.retries < 2:
        raise self.retry(countdown=1)


def spread(self: Any, count: int, queue: str) -> None:
    """Send ``count`` tasks to another queue."""
    for number in range(count):
        app.send_task("add", (number, 0), queue=queue)


def hold(self: Any, gate: str) -> None:
    """Start, and end when the file ``gate`` exists."""
    note(self, "begun")
    wait_until(Path(gate).exists, "the gate is open", HOLD_SECONDS)
    note(self, "ended")


def poison(self: Any) -> None:
    """Fail for good."""
    note(self, "refused")
    raise Reject("poison", requeue=False)


for function in (add, flaky, spread, hold, poison):
    app.task(bind=True, name=function.__name__, acks_late=function in (hold, poison))(function)

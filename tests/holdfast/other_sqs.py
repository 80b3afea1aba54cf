"""Another server of SQS's protocol, in a process of its own: what queues are brought in from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from tests.system.server import clean_environment, free_port
from tests.system.waiting import wait_until

REGION, ACCOUNT = "eu-central-1", "123456789012"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIAOTHERSQSFORTESTS", "AWS_SECRET_ACCESS_KEY": "only-for-tests"}


class OtherSqs:
    """Leave the ``with`` block and it is gone, with all that is in it."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "other.log"
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def arn(self, name: str) -> str:
        return f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"

    def client(self) -> Any:
        return boto3.session.Session().client(
            "sqs",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
            config=Config(retries={"total_max_attempts": 1}),
        )

    def left(self, name: str) -> int:
        """How many messages a queue has."""
        client = self.client()
        url = client.get_queue_url(QueueName=name)["QueueUrl"]
        counters = ("", "NotVisible", "Delayed")
        names = [f"ApproximateNumberOfMessages{one}" for one in counters]
        return sum(map(int, client.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"].values()))

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
                env=clean_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            wait_until(self._ready, "the other SQS server answers", 60)
        except BaseException:
            self._end()
            raise
        return self

    def _ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"the other SQS server has ended:\n{self.log.read_text()}")
        try:
            self.client().list_queues()
        except BotoCoreError:
            return False
        return True

    def _end(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

"""A real server of S3's protocol, in a process of its own, behind a network that can fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from tests.faults.proxy import Proxy
from tests.system.server import clean_environment, free_port
from tests.system.waiting import wait_until

KEY, SECRET = "AKIAS3SERVERFORTESTS", "only-for-tests"
BUCKET = "lakes"


class S3:
    """The server with one bucket.  Leave the ``with`` block and it is gone, with all that is in it."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "s3.log"
        self.port = free_port()
        self.network = Proxy(("127.0.0.1", self.port))
        self._process: subprocess.Popen[bytes] | None = None

    def lake(self, path: str, **options: str) -> str:
        """A URL below the bucket, through the network."""
        more = "".join(f"&{name}={value}" for name, value in options.items())
        where = f"endpoint_override={self.network.address}&scheme=http&region=us-east-1"
        return f"s3://{KEY}:{SECRET}@{BUCKET}/{path}?{where}{more}"

    def client(self) -> Any:
        """Past the network, and with one attempt."""
        return boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
            config=Config(retries={"total_max_attempts": 1}),
        )

    def objects(self, prefix: str) -> list[str]:
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return sorted(found["Key"] for page in pages for found in page.get("Contents", ()))

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
            wait_until(self._ready, "the S3 server answers", 60)
            self.network.start()
        except BaseException:
            self._end()
            raise
        return self

    def _ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"the S3 server has ended:\n{self.log.read_text()}")
        try:
            self.client().create_bucket(Bucket=BUCKET)
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
        self.network.close()
        self._end()

"""moto's server of Amazon's protocols, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from tests.servers.server import clean_environment, free_port
from tests.servers.waiting import wait_until


class Moto:
    """One of moto's services, for the duration of the ``with`` block; its state is lost at the end."""

    def __init__(self, folder: Path, service: str, region: str, key: str, secret: str) -> None:
        self.log = folder / f"{service}.log"
        self.port = free_port()
        self._service, self._region, self._key, self._secret = service, region, key, secret
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> Any:
        """Make a boto3 client that does not retry."""
        return boto3.session.Session().client(
            self._service,
            endpoint_url=self.endpoint,
            region_name=self._region,
            aws_access_key_id=self._key,
            aws_secret_access_key=self._secret,
            config=Config(retries={"total_max_attempts": 1}),
        )

    def begin(self) -> None:
        """Make the first call, repeated until it is answered."""
        raise NotImplementedError

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
            wait_until(self._ready, f"the server of {self._service} answers")
        except BaseException:
            self._end()
            raise
        return self

    def _ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"the server of {self._service} has ended:\n{self.log.read_text()}")
        try:
            self.begin()
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

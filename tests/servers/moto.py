"""moto's server of Amazon's protocols, in a process of its own."""

import sys
from pathlib import Path
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError

from tests.servers.server import aws_client, clean_environment, free_port
from tests.servers.started import KeptProcess, ServerContext
from tests.servers.waiting import wait_until


class Moto(KeptProcess, ServerContext):
    """One of moto's services, for the duration of the ``with`` block; its state is lost at the end."""

    def __init__(self, folder: Path, service: str, region: str, key: str, secret: str) -> None:
        super().__init__(f"the server of {service}", folder / f"{service}.log", folder)
        self.port = free_port()
        self._service, self._region, self._key, self._secret = service, region, key, secret

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> Any:
        """Make a boto3 client that does not retry."""
        return aws_client(
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

    def start(self) -> None:
        self.launch([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)], clean_environment())
        wait_until(self._ready, f"{self.name} answers")

    def _ready(self) -> bool:
        assert self.running, f"{self.name} has ended:\n{self.log_file.read_text()}"
        try:
            self.begin()
        except BotoCoreError:
            return False
        return True

    def close(self) -> None:
        self.kill()

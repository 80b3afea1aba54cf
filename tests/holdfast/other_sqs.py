"""Another server of SQS's protocol, in its own process: the source of imported queues."""

from pathlib import Path

from tests.servers.moto import Moto

REGION, ACCOUNT = "eu-central-1", "123456789012"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIAOTHERSQSFORTESTS", "AWS_SECRET_ACCESS_KEY": "only-for-tests"}


class OtherSqs(Moto):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "sqs", REGION, *KEYS.values())

    def begin(self) -> None:
        self.client().list_queues()

    def arn(self, name: str) -> str:
        return f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"

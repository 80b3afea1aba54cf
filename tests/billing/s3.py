"""A real server of S3's protocol in a process of its own, behind a network with faults."""

from pathlib import Path

from tests.servers.moto import Moto
from tests.servers.proxy import Proxy

KEY, SECRET = "AKIAS3SERVERFORTESTS", "only-for-tests"
BUCKET = "lakes"


class S3(Moto):
    """S3 server with one bucket; :meth:`client` bypasses the network."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "s3", "us-east-1", KEY, SECRET)
        self.network = Proxy(("127.0.0.1", self.port))

    def lake(self, path: str, **options: str) -> str:
        """Return a URL below the bucket, through the network."""
        more = "".join(f"&{name}={value}" for name, value in options.items())
        where = f"endpoint_override={self.network.address}&scheme=http&region=us-east-1"
        return f"s3://{KEY}:{SECRET}@{BUCKET}/{path}?{where}{more}"

    def begin(self) -> None:
        self.client().create_bucket(Bucket=BUCKET)

    def objects(self, prefix: str) -> list[str]:
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return sorted(found["Key"] for page in pages for found in page.get("Contents", ()))

    def start(self) -> None:
        super().start()
        self.network.start()

    def close(self) -> None:
        self.network.close()
        super().close()

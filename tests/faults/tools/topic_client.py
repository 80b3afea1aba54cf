"""A client of SNS's protocol that classifies each call like :mod:`tests.faults.tools.client`.  It never retries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree as ET

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.faults.tools.client import CallRefused, Client, Endpoint
from tests.servers.server import ACCOUNT, REGION

VERSION = "2010-03-31"
CONTENT_TYPE = "application/x-www-form-urlencoded; charset=utf-8"


def topic_arn_of(topic: str) -> str:
    return f"arn:aws:sns:{REGION}:{ACCOUNT}:{topic}"


class PublishingClient(Client):
    """One connection to a server, for one call at a time."""

    def __init__(self, server: Endpoint, port: int) -> None:
        super().__init__(server, port)
        self._url = f"http://127.0.0.1:{port}/"
        credentials = Credentials(server.access_key_id, server.secret_access_key)
        self._auth = SigV4Auth(credentials, "sns", server.region)

    async def sns(self, action: str, parameters: Mapping[str, str], invocation: str = "") -> ET.Element:
        """Make a call; ``invocation``: its id as that of an SDK's call, the same for each of its repeats.

        Returns the answer's root.  Raises as :meth:`call` does.
        """
        body = urlencode({"Action": action, "Version": VERSION, **parameters})
        headers = {"Content-Type": CONTENT_TYPE, **({"amz-sdk-invocation-id": invocation} if invocation else {})}
        signed: Any = AWSRequest("POST", self._url, headers=headers, data=body)
        self._auth.add_auth(signed)
        prepared = signed.prepare()
        head = "".join(f"{name}: {value}\r\n" for name, value in prepared.headers.items())
        host = self._url.split("/")[2]
        request = f"POST / HTTP/1.1\r\nHost: {host}\r\n{head}\r\n".encode() + body.encode()
        status, answer = await self._answer(action, request)
        root = ET.fromstring(answer)
        for element in root.iter():
            element.tag = element.tag.rpartition("}")[2]
        if status != 200:
            code, message = (root.findtext(f".//{name}") or "" for name in ("Code", "Message"))
            raise CallRefused(action, status, code, message)
        return root

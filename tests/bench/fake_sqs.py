"""A minimal queue to test the load generator: checks signatures, stores sent messages, delivers each once."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import Any

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials

from tests.servers.signing import SigningCredentials


class FakeSqs:
    """Used as ``async with FakeSqs(credentials) as sqs``; counts what it was asked for."""

    def __init__(self, credentials: SigningCredentials) -> None:
        self._credentials = credentials
        self._server: asyncio.Server | None = None
        self.port = 0
        self.waiting: deque[dict[str, str]] = deque()
        self.handed_out: dict[str, dict[str, str]] = {}
        self.calls: dict[str, int] = {}
        self.bodies: list[str] = []
        self.groups: list[tuple[str, str]] = []
        self.refuse: set[str] = set()
        self.chunked = False

    async def __aenter__(self) -> FakeSqs:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:-2])
                body = await reader.readexactly(int(headers["Content-Length"]))
                status, answer = self._answer(headers, body)
                text = json.dumps(answer).encode()
                if self.chunked:
                    framing = f"Transfer-Encoding: chunked\r\n\r\n{len(text):x}\r\n".encode() + text + b"\r\n0\r\n\r\n"
                else:
                    framing = f"Content-Length: {len(text)}\r\n\r\n".encode() + text
                whole = f"HTTP/1.1 {status} Whatever\r\nServer: fake\r\n".encode() + framing
                writer.write(whole[:20])  # in two pieces, so that the parser has to wait
                await writer.drain()
                writer.write(whole[20:])
        except asyncio.IncompleteReadError:
            writer.close()

    def _answer(self, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, Any]]:
        action = headers["X-Amz-Target"].removeprefix("AmazonSQS.")
        self.calls[action] = self.calls.get(action, 0) + 1
        if headers["Authorization"] != self._authorization(headers, body):
            return 403, {"__type": "SignatureDoesNotMatch"}
        if action in self.refuse:
            return 500, {"__type": "InternalError"}
        members = json.loads(body)
        return 200, getattr(self, f"_{action}")(members)

    def _authorization(self, headers: dict[str, str], body: bytes) -> str:
        request = AWSRequest("POST", f"http://{headers['Host']}/", data=body)
        for name in ("Content-Type", "X-Amz-Target"):
            request.headers[name] = headers[name]
        request.context["timestamp"] = headers["X-Amz-Date"]
        keys = BotoCredentials(self._credentials.access_key_id, self._credentials.secret)
        auth = SigV4Auth(keys, "sqs", self._credentials.region)
        request.headers["X-Amz-Date"] = headers["X-Amz-Date"]
        to_sign = auth.string_to_sign(request, auth.canonical_request(request))
        signature = auth.signature(to_sign, request)
        signed = auth.signed_headers(auth.headers_to_sign(request))
        return f"AWS4-HMAC-SHA256 Credential={auth.scope(request)}, SignedHeaders={signed}, Signature={signature}"

    def _store(self, message: dict[str, Any]) -> dict[str, str]:
        self.bodies.append(message["MessageBody"])
        if "MessageGroupId" in message:
            self.groups.append((message["MessageGroupId"], message["MessageDeduplicationId"]))
        number = len(self.bodies)
        self.waiting.append(
            {"MessageId": f"m{number}", "ReceiptHandle": f'r"\\/{number}', "Body": message["MessageBody"]}
        )
        return {"MessageId": f"m{number}", "MD5OfMessageBody": "0"}

    def _ListQueues(self, members: dict[str, Any]) -> dict[str, Any]:
        return {}

    def _SendMessage(self, members: dict[str, Any]) -> dict[str, Any]:
        return self._store(members)

    def _SendMessageBatch(self, members: dict[str, Any]) -> dict[str, Any]:
        return {"Successful": [{"Id": entry["Id"], **self._store(entry)} for entry in members["Entries"]]}

    def _ReceiveMessage(self, members: dict[str, Any]) -> dict[str, Any]:
        count = min(members["MaxNumberOfMessages"], len(self.waiting))
        given = [self.waiting.popleft() for _ in range(count)]
        self.handed_out.update((message["ReceiptHandle"], message) for message in given)
        return {"Messages": given} if given else {}

    def _DeleteMessage(self, members: dict[str, Any]) -> dict[str, Any]:
        del self.handed_out[members["ReceiptHandle"]]
        return {}

    def _DeleteMessageBatch(self, members: dict[str, Any]) -> dict[str, Any]:
        good: list[dict[str, str]] = []
        bad: list[dict[str, str]] = []
        for entry in members["Entries"]:
            found = self.handed_out.pop(entry["ReceiptHandle"], None)
            (bad if found is None else good).append({"Id": entry["Id"]})
        return {"Successful": good} | ({"Failed": bad} if bad else {})

"""Audit of requests: administration is written to the audit log before it is answered, and so are refused sign-ins."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from auth.audit import SIGN_IN, AuditEntry, AuditLog, Outcome
from frontend.http.asgi import client_address
from frontend.queues.queues import locate
from frontend.request.request import Call, ClientRequest, Members
from frontend.sqs.protocol.error_mapping import as_sqs_error
from frontend.sqs.protocol.errors import REQUEST_THROTTLED, SqsError
from metadata_service.arn import QueueArn

T = TypeVar("T")


class RequestAudit:
    """Writes the audit entries of requests, if an audit log is kept."""

    def __init__(self, log: AuditLog | None, region: str) -> None:
        self._log = log
        self._region = region

    async def carry_out(
        self, call: Call, action: str, target: str, act: Callable[[], Awaitable[T]], service: str = "sqs"
    ) -> T:
        """Result or error of ``act``, after its audit entry is on disk."""
        try:
            result = await act()
        except Exception as error:
            kind = as_sqs_error(error).kind
            await self.failed(call, f"{service}:{action}", target, kind.status, kind.query_code)
            raise
        await self.done(call, f"{service}:{action}", target)
        return result

    async def done(self, call: Call, action: str, target: str, made: str = "") -> None:
        """Write an entry of a completed action.  Waits until it is on disk."""
        await self._write(call, action, target, "done", made=made)

    async def failed(self, call: Call, action: str, target: str, status: int, code: str) -> None:
        """Write an entry of a call that is answered with an error.  Waits until it is on disk.

        Calls refused by limits have none: a limit would be useless if each refusal cost a write.
        """
        if code != REQUEST_THROTTLED.query_code:
            await self._write(call, action, target, "refused" if status < 500 else "failed", code)

    async def _write(
        self, call: Call, action: str, target: str, outcome: Outcome, reason: str = "", made: str = ""
    ) -> None:
        if self._log is not None:
            principal, address = call.principal, client_address(call.scope) or ""
            about = (call.request_id, principal.arn, principal.credential, address)
            await self._log.write(AuditEntry(*about, action, target, outcome, reason, made))

    def sign_in_refused(self, request: ClientRequest, code: str) -> None:
        """Write or count a refused sign-in.  Never waits."""
        if self._log is not None:
            about = (request.request_id, "", request.credential, request.address)
            self._log.refused_sign_in(AuditEntry(*about, SIGN_IN, "", "refused", code))

    def target(self, call: Call, action: str, members: Members, path: str | None) -> str:
        """ARN of the queue that an action applies to, as named by the caller.  ``path``: the request's, if a
        queue's."""
        match action:
            case "CreateQueue":
                return self._arn(call.principal.account, str(members.get("QueueName", "")))
            case "StartMessageMoveTask":
                return str(members.get("SourceArn", ""))
            case "CancelMessageMoveTask":
                return str(members.get("TaskHandle", ""))
        url = members.get("QueueUrl") or path
        if not url:
            return ""
        try:
            return self._arn(*locate(url, call.principal.account))
        except SqsError:
            return str(url)

    def _arn(self, account: str, name: str) -> str:
        return str(QueueArn(self._region, account, name))

"""The administrative SQS actions, each written to the audit log before it is answered.

The other actions (send, receive, delete, read) cost only a lookup in a set.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from auth.audit import Act, AuditLog, Outcome
from frontend.queues.queues import locate
from frontend.request.call import Call, Members, client_address
from frontend.sqs.protocol.errors import REQUEST_THROTTLED, SqsError
from metadata_service.arn import QueueArn

if TYPE_CHECKING:
    from frontend.services import Services

ACTS = frozenset(
    (
        "AddPermission",
        "CancelMessageMoveTask",
        "CreateQueue",
        "DeleteQueue",
        "PurgeQueue",
        "RemovePermission",
        "SetQueueAttributes",
        "StartMessageMoveTask",
        "TagQueue",
        "UntagQueue",
    )
)
"""Actions that change more than single messages."""

T = TypeVar("T")


class AuditedActions:
    """Carries out administrative actions and audits them."""

    def __init__(self, services: Services, as_sqs_error: Callable[[Exception], SqsError]) -> None:
        self._audit: AuditLog | None = services.audit
        self._region = services.settings.region
        self._as_sqs_error = as_sqs_error

    async def carry_out(self, call: Call, action: str, target: str, act: Callable[[], Awaitable[T]]) -> T:
        """Result or error of ``act``, after its audit line is on disk.

        A call refused by limits is not audited: a limit would be useless if each refusal cost a write.
        """
        try:
            result = await act()
        except Exception as error:
            told = self._as_sqs_error(error)
            if told.kind is not REQUEST_THROTTLED:
                outcome: Outcome = "refused" if told.kind.status < 500 else "failed"
                await self.write(call, f"sqs:{action}", target, outcome, told.kind.query_code)
            raise
        await self.write(call, f"sqs:{action}", target)
        return result

    async def write(
        self, call: Call, action: str, target: str, outcome: Outcome = "done", reason: str = "", made: str = ""
    ) -> None:
        """Write a line with these members of :class:`auth.audit.Act`.  Waits until it is on disk."""
        if self._audit is not None:
            principal, address = call.principal, client_address(call.scope) or ""
            about = (call.request_id, principal.arn, principal.credential, address)
            await self._audit.act(Act(*about, action, target, outcome, reason, made))

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

"""What of SQS is administration, and the line that each such call gets in the audit log before it is answered.

The actions that send, receive, delete and look pass by here: for them it is a look into a set.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from auth.audit import Act, AuditLog, Outcome
from frontend.sqs.arn import QueueArn
from frontend.sqs.calls import Call, Members, client_address
from frontend.sqs.errors import REQUEST_THROTTLED, SqsError
from frontend.sqs.queues import locate

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
"""What changes more than messages one by one."""

T = TypeVar("T")


class Acts:
    """Carries acts out and writes them down."""

    def __init__(self, services: Services, as_sqs_error: Callable[[Exception], SqsError]) -> None:
        self._audit: AuditLog | None = services.audit
        self._region = services.settings.region
        self._as_sqs_error = as_sqs_error

    async def carry_out(self, call: Call, action: str, target: str, act: Callable[[], Awaitable[T]]) -> T:
        """What ``act`` gives or raises, once its line is on the disk.

        A call that limits refuse has none: a limit would not be one if each refusal cost a write.
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
        """A line with these members of :class:`auth.audit.Act`.  Waits until it is on the disk."""
        if self._audit is not None:
            principal, address = call.principal, client_address(call.scope) or ""
            about = (call.request_id, principal.arn, principal.credential, address)
            await self._audit.act(Act(*about, action, target, outcome, reason, made))

    def target(self, call: Call, action: str, members: Members, path: str | None) -> str:
        """The ARN of the queue that an act is on, as the caller names it.  ``path``: the request's, if a queue's."""
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

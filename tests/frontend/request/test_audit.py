"""Every act of SQS is audited; tests/frontend/cases/audit.yaml has the lines."""

from frontend.sqs.operations import OPERATIONS
from frontend.sqs.protocol.model import ACTIONS
from tests.frontend.cases import load


def test_every_action_is_an_act_or_reads_or_handles_messages() -> None:
    audited = {action.name for action in OPERATIONS.values() if action.audited}
    others = ("Get", "List", "Send", "Receive", "DeleteMessage", "ChangeMessageVisibility")
    assert {name for name in ACTIONS if not name.startswith(others)} == audited
    (case, _) = (case for case in load() if case.name.startswith("audit.every-act-has-a-line"))
    assert audited == {action for step in case.steps for action in step if action in ACTIONS} - {"SendMessageBatch"}

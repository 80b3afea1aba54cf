"""Cases of SNS: calls with their answers, as rows of tables, against a sender that records what it is given.

::

    - name: a-topic-is-made                   # unique in its file
      settings: {region: eu-west-1}           # of the frontend
      queues: {q: {}}                         # made first, with a policy for the account's topics: $q is its ARN
      topics: {t: {}}                         # made first: $t is its ARN
      subscriptions: [[t, q, {}]]             # made first, with these attributes: $t_q is its ARN; also of no queue
      each: [{name: a}, {name: b}]            # the case once for each row, with these variables
      steps:
        - CreateTopic: {Name: $name}          # a call of SNS: members as in boto3
          by: user                            # the caller; default: root
          expect: {TopicArn: $t}              # matchers: tests/behaviour/README.md
          save: {arn: TopicArn}               # variables from the answer
        - Publish: {TopicArn: $t}
          error: 400 InvalidParameter Empty message    # status, code, and a part of the text
        - CreateQueue: {QueueName: q2}        # a call of SQS, if its members have none of SNS's names
          sqs: true
        - published: [{message: m, deliveries: [{queue: q}]}]    # publications since the last such step
        - confirmations: [{Type: SubscriptionConfirmation}]      # those sent since then; $token is the last one's
        - fails: true                         # the sender cannot reach the backend from now on; null: it can
        - audited: [{action: "sns:CreateTopic"}]                 # the audit log so far
        - advance: 61                         # seconds

Callers are those of :mod:`tests.frontend.cases`, such as ``root``, ``sender`` (only sends), ``orders`` (names that
begin with orders-), ``user`` (of another account) and ``nobody``.  ``$account`` and ``$other_account`` are the
accounts.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import botocore.loaders
import botocore.model
import botocore.parsers
import botocore.serialize

from auth.credentials import AccessKey
from backend.api import Unavailable
from frontend.queues.view import QueueView
from frontend.request.request import Call
from frontend.sns.topics.deliveries import PreparedPublication, PublicationOutcome
from frontend.sns.topics.view import TopicView
from tests.behaviour.cases import resolve
from tests.behaviour.match import differences
from tests.behaviour.runner import CaseFailed
from tests.frontend.cases import CALLERS, OTHER, add_callers
from tests.frontend.service import KEY, FrontendService, sign
from tests.tables import read_yaml

FOLDER = Path(__file__).with_name("cases")
SERVICE = botocore.model.ServiceModel(botocore.loaders.Loader().load_service_model("sns", "service-2"), "sns")
NAMESPACE = b"http://sns.amazonaws.com/doc/2010-03-31/"
STEP_KEYS = {"by", "expect", "error", "save", "sqs"}
POLICY = {
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"Service": "sns.amazonaws.com"},
            "Action": "SQS:SendMessage",
            "Condition": {"StringEquals": {"aws:SourceAccount": KEY.account}},
        }
    ]
}


class SenderUnreachable(Unavailable):
    """Nothing was stored."""

    has_effect = False


class RecordingSender:
    """A sender of publications that keeps what it is given."""

    def __init__(self) -> None:
        self.published: list[dict[str, Any]] = []
        self.confirmations: list[dict[str, Any]] = []
        self.fails: Exception | None = None
        self._count = 0

    async def publish(
        self, call: Call, topic: TopicView, outbox: QueueView, publications: Sequence[PreparedPublication]
    ) -> Sequence[PublicationOutcome | Exception]:
        if self.fails is not None:
            raise self.fails
        outcomes = []
        for one in publications:
            self._count += 1
            content = one.content
            self.published.append(
                {
                    "topic": topic.topic.name,
                    "message": content.message,
                    "subject": content.subject,
                    "attributes": [[name, kind, str(value)] for name, kind, value in content.attributes],
                    "signed": bool(content.signature),
                    "sender": content.sender,
                    "group": one.group,
                    "deduplication": one.deduplication_id,
                    "size": one.size,
                    "deliveries": [
                        {"queue": delivery.queue.queue.name, "raw": delivery.raw, "dead_letter": delivery.dead_letter}
                        for delivery in sorted(one.plan.deliveries, key=lambda delivery: delivery.queue.queue.name)
                    ],
                }
            )
            outcomes.append(PublicationOutcome(content.message_id, f"{self._count:020d}" if topic.fifo else None))
        return outcomes

    async def confirm(self, topic: TopicView, queue: QueueView, body: str) -> None:
        if self.fails is not None:
            raise self.fails
        self.confirmations.append({"queue": queue.queue.name, **json.loads(body)})


@dataclass
class SnsCase:
    """One named sequence of calls."""

    name: str
    steps: list[dict[str, Any]]
    settings: dict[str, Any] = field(default_factory=dict)
    queues: dict[str, dict[str, str]] = field(default_factory=dict)
    topics: dict[str, dict[str, str]] = field(default_factory=dict)
    subscriptions: list[list[Any]] = field(default_factory=list)
    variables: dict[str, Any] = field(default_factory=dict)


def load() -> list[SnsCase]:
    """All cases of all files; those with ``each`` once for each row."""
    found = []
    for path in sorted(FOLDER.glob("*.yaml")):
        for entry in read_yaml(path):
            rows = entry.pop("each", [{}])
            for number, row in enumerate(rows, 1):
                name = f"{path.stem}.{entry['name']}" + (f"-{number}" if row else "")
                found.append(SnsCase(**{**entry, "name": name, "variables": row}))
    assert len({case.name for case in found}) == len(found)
    return found


class SnsCaseRun:
    """One case, while it runs."""

    def __init__(self, service: FrontendService, sender: RecordingSender, case: SnsCase) -> None:
        self._service = service
        self._sender = sender
        self._case = case
        region = service.app.services.settings.region
        self._variables: dict[str, Any] = {"account": KEY.account, "other_account": OTHER, "region": region}

    async def run(self) -> None:
        """Run the case.  Raises CaseFailed."""
        await self._set_up()
        for number, step in enumerate(self._case.steps, 1):
            problems = await self._step(step)
            if problems:
                raise CaseFailed(f"{self._case.name} step {number}: " + "\n".join(problems))

    async def outcome(
        self,
        action: str,
        params: dict[str, Any],
        topic: str,
        queue: str,
        replaced: tuple[str, dict[str, str]] | None = None,
    ) -> str:
        """Code of the answer to a call on a topic and a queue that are made for it: "ok", or that of the error; after
        "entry" that of the only entry of a batch.

        ``replaced``: a name in the form, which is removed with all that it begins, and what is put in its place.
        """
        names = self._variables
        names["fresh"] = f"fresh-{topic}"
        names["t"] = (await self._made("CreateTopic", {"Name": topic}))["TopicArn"]
        names["q"] = f"arn:aws:sqs:{names['region']}:{KEY.account}:{queue}"
        members = {"TopicArn": names["t"], "Protocol": "sqs", "Endpoint": names["q"]}
        names["t_q"] = (await self._made("Subscribe", members))["SubscriptionArn"]
        status, answer = await self._call(action, self._resolve(params), KEY, replaced)
        if status != 200:
            assert status < 500, answer
            return str(answer["Error"]["Code"])
        return f"entry {answer['Failed'][0]['Code']}" if answer.get("Failed") else "ok"

    async def _set_up(self) -> None:
        await add_callers(self._service)
        names, case, given = self._variables, self._case, self._resolve
        for name, attributes in case.queues.items():
            policy = {} if "Policy" in attributes else {"Policy": json.dumps(POLICY)}
            await self._service.make_queue(name, **policy, **given(attributes))
            names[name.replace(".", "_")] = f"arn:aws:sqs:{names['region']}:{KEY.account}:{name}"
        for name, attributes in case.topics.items():
            fifo = {"FifoTopic": "true"} if name.endswith(".fifo") else {}
            answer = await self._made("CreateTopic", {"Name": name, "Attributes": {**fifo, **given(attributes)}})
            names[name.replace(".", "_")] = answer["TopicArn"]
        for topic, queue, attributes in given(case.subscriptions):
            endpoint = f"arn:aws:sqs:{names['region']}:{KEY.account}:{queue}"
            topic, queue = topic.replace(".", "_"), queue.replace(".", "_")
            members = {"TopicArn": names[topic], "Protocol": "sqs", "Endpoint": endpoint}
            answer = await self._made("Subscribe", {**members, "Attributes": given(attributes)})
            names[f"{topic}_{queue}"] = answer["SubscriptionArn"]
        names.update(given(case.variables))

    async def _made(self, action: str, members: dict[str, Any]) -> Any:
        status, answer = await self._call(action, members, KEY)
        assert status == 200, answer
        return answer

    def _resolve(self, value: Any) -> Any:
        return resolve(value, self._variables)

    async def _step(self, step: dict[str, Any]) -> list[str]:
        actions = [name for name in step if name[0].isupper() or name[0] == "$"]
        if not actions:
            ((kind, operand),) = step.items()
            return self._other(kind, self._resolve(operand))
        (name,) = actions
        assert set(step) <= {name, *STEP_KEYS}, step
        action, members = self._resolve(name), self._resolve(step[name]) or {}
        if step.get("sqs"):
            answered = await self._service.json(action, members)
            status, answer = answered.status, answered.json if answered.content else {}
        else:
            by = step.get("by", "root")
            status, answer = await self._call(action, members, None if by == "nobody" else CALLERS[by])
        if "error" in step:
            wanted, code, *text = self._resolve(step["error"]).split(" ", 2)
            error = answer.get("Error", {}) if isinstance(answer, dict) else {}
            found = (status, error.get("Code"))
            if found != (int(wanted), code) or (text and text[0] not in error.get("Message", "")):
                return [f"answered {status} {answer}"]
            return []
        if status != 200:
            return [f"answered {status}: {answer}"]
        problems = differences(self._resolve(step["expect"]), answer) if "expect" in step else []
        self._variables |= {name: answer[member] for name, member in step.get("save", {}).items()}
        return problems

    def _other(self, kind: str, operand: Any) -> list[str]:
        match kind:
            case "published":
                found, self._sender.published = self._sender.published, []
                return differences(operand, found)
            case "confirmations":
                sent, self._sender.confirmations = self._sender.confirmations, []
                if sent:
                    self._variables["token"] = sent[-1]["Token"]
                return differences(operand, sent)
            case "fails":
                self._sender.fails = None if operand is None else SenderUnreachable("it is unreachable")
            case "audited":
                lines = [line for line in self._service.audited() if line["action"].startswith("sns:")]
                return differences(operand, lines)
            case "advance":
                self._service.clock.now += operand
            case _:
                raise AssertionError(f"unknown step {kind}")
        return []

    async def _call(
        self,
        action: str,
        members: dict[str, Any],
        by: AccessKey | None,
        replaced: tuple[str, dict[str, str]] | None = None,
    ) -> tuple[int, Any]:
        form = encode(action, members, replaced)
        headers = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
        if by is not None:
            headers = sign("POST", "/", form, headers, self._service.clock(), by, "sns")
        answer = await self._service.unsigned("POST", "/", form, headers)
        assert answer.headers["content-type"] == "text/xml"
        assert NAMESPACE in answer.content
        parsed = decode(action, answer.status, answer.content)
        assert parsed.pop("ResponseMetadata")["RequestId"] == answer.headers["x-amzn-requestid"]
        return answer.status, parsed


def encode(action: str, members: dict[str, Any], replaced: tuple[str, dict[str, str]] | None = None) -> bytes:
    """Body of a request, also with members that no client would send.  ``replaced``: see :meth:`SnsCaseRun.outcome`."""
    form: dict[str, Any] = {"Action": action, "Version": SERVICE.api_version}
    if action in SERVICE.operation_names:
        serializer = botocore.serialize.create_serializer("query", include_validation=False)
        form = serializer.serialize_to_request(members, SERVICE.operation_model(action))["body"]
    else:
        form |= members
    if replaced is not None:
        name, instead = replaced
        form = {key: text for key, text in form.items() if key != name and not key.startswith(f"{name}.")} | instead
    return urlencode(form).encode()


def decode(action: str, status: int, content: bytes) -> dict[str, Any]:
    """Read an answer as botocore does."""
    parser = botocore.parsers.create_parser("query")
    shape = SERVICE.operation_model(action).output_shape if action in SERVICE.operation_names else None
    parsed: dict[str, Any] = parser.parse({"status_code": status, "headers": {}, "body": content}, shape)
    return parsed

"""The cost of publications, from the call until each message is in its queues, beside that of SendMessage."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Sequence
from urllib.parse import quote, urlencode

from bench.jobs import Bodies, Sqs, counted
from bench.load import Job, Jobs, LoadGenerator, Window
from bench.report import LoadMeasurement, row_of
from bench.run import CONNECTIONS, BenchRun, again, quiet_memory
from bench.servers.servers import CREDENTIALS, HOST, CpuMeter, ServerProcess
from tests.servers import proc
from tests.servers.signing import RequestSigner

ROUNDS = 4
POLL_SECONDS = 0.2
"""Interval at which the queues are asked for their number of messages: a small part of the CPU that is measured."""
_ARN = re.compile(rb"<TopicArn>([^<]+)</TopicArn>")
_VERSION = "Version=2010-03-31"
_ATTRIBUTE = (
    "MessageAttributes.entry.1.Name=kind&MessageAttributes.entry.1.Value.DataType=String"
    "&MessageAttributes.entry.1.Value.StringValue=order&"
)


class SubscribedTopic:
    """A topic with queues that are subscribed."""

    def __init__(
        self, server: ServerProcess, name: str, queues: int, *, raw: bool = True, policies: Sequence[object] = ()
    ) -> None:
        """``policies``: filter policies of further subscriptions, which no message matches."""
        self._server = server
        self._signer = RequestSigner(f"{HOST}:{server.port}", CREDENTIALS, service="sns")
        self._bodies = Bodies()
        found = _ARN.search(self._call("CreateTopic", {"Name": name}))
        assert found is not None
        self._arn = found[1].decode()
        self.urls = [self._subscribe(f"{name}-{number}", raw, None) for number in range(queues)]
        for number, policy in enumerate(policies):
            self._subscribe(f"{name}-filtered-{number}", raw, policy)

    def _call(self, action: str, members: dict[str, str]) -> bytes:
        body = urlencode({"Action": action, "Version": "2010-03-31", **members}).encode()
        return self._server.exchange(action, self._signer.form(body))

    def _subscribe(self, queue: str, raw: bool, policy: object) -> str:
        statement = {
            "Effect": "Allow",
            "Principal": {"Service": "sns.amazonaws.com"},
            "Action": "sqs:SendMessage",
            "Resource": "*",
            "Condition": {"ArnEquals": {"aws:SourceArn": self._arn}},
        }
        url = self._server.create_queue(queue, Policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]}))
        _, region, account = self._arn.rsplit(":", 1)[0].rsplit(":", 2)
        members = {
            "TopicArn": self._arn,
            "Protocol": "sqs",
            "Endpoint": f"arn:aws:sqs:{region}:{account}:{queue}",
            "Attributes.entry.1.key": "RawMessageDelivery",
            "Attributes.entry.1.value": "true" if raw else "false",
        }
        if policy is not None:
            members |= {"Attributes.entry.2.key": "FilterPolicy", "Attributes.entry.2.value": json.dumps(policy)}
        self._call("Subscribe", members)
        return url

    def publish(self, *, attribute: bool = False) -> Jobs:
        """Return jobs of Publish.  ``attribute``: with an attribute that filter policies look at."""
        head = (
            f"Action=Publish&{_VERSION}&TopicArn={quote(self._arn, safe='')}&{_ATTRIBUTE * attribute}Message=".encode()
        )

        def job() -> Job:
            answer = yield "Publish", self._signer.form(head + next(self._bodies))
            return int(answer.status == 200)

        return job


class DeliveredLoad:
    """Calls whose messages arrive in some queues."""

    def __init__(self, scenario: str, server: ServerProcess, jobs: Jobs, urls: Sequence[str]) -> None:
        self._scenario = scenario
        self._server = server
        self._jobs = jobs
        self._urls = urls
        self._windows: list[Window] = []
        self._cpu_s = 0.0

    async def measure(self, count: int, *, warm_up: bool = False) -> None:
        """Make so many calls, and wait until all messages are in their queues."""
        meter = CpuMeter(self._server)
        async with LoadGenerator(HOST, self._server.port, CONNECTIONS) as load:
            with quiet_memory():
                before = min(map(self._waiting, self._urls))
                meter.mark()
                window = await load.drain(counted(self._jobs, count))
                while min(map(self._waiting, self._urls)) < before + window.messages:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(POLL_SECONDS)
                meter.mark()
        if not warm_up:
            self._windows.append(window)
            self._cpu_s += meter.cpu_s

    def _waiting(self, url: str) -> int:
        members = {"QueueUrl": url, "AttributeNames": ["ApproximateNumberOfMessages"]}
        return int(self._server.call("GetQueueAttributes", members)["Attributes"]["ApproximateNumberOfMessages"])

    def row(self) -> LoadMeasurement:
        rss_mib = proc.rss_mib(self._server.pid)
        return row_of(self._scenario, self._server.name, CONNECTIONS, self._windows, self._cpu_s, rss_mib)


async def publish(run: BenchRun, server: ServerProcess) -> None:
    """Measure SendMessage in turn with Publish to one queue and to ten, raw and in SNS's JSON, and with policies."""
    queue = server.create_queue("publish-send")
    policies = [_policy(number) for number in range(100)]
    one, filtered = SubscribedTopic(server, "one", 1), SubscribedTopic(server, "filtered", 1, policies=policies)
    ten = SubscribedTopic(server, "ten", 10)
    jobs = {
        "publish 1 queue": (one, one.publish()),
        "publish 10 queues": (ten, ten.publish()),
        "publish 1 queue, attribute": (one, one.publish(attribute=True)),
        "publish 100 policies": (filtered, filtered.publish(attribute=True)),
        **{
            f"publish {name}, envelope": (topic, topic.publish())
            for name, topic in (
                ("1 queue", SubscribedTopic(server, "one-envelope", 1, raw=False)),
                ("10 queues", SubscribedTopic(server, "ten-envelope", 10, raw=False)),
            )
        },
    }
    loads = [DeliveredLoad("publish send", server, Sqs(server.signer).send(again(queue)), [queue])]
    loads += [DeliveredLoad(scenario, server, publishing, topic.urls) for scenario, (topic, publishing) in jobs.items()]
    for load in loads:
        await load.measure(run.plan.publications // 4, warm_up=True)
    for number in range(ROUNDS):
        for load in loads if number % 2 else reversed(loads):
            await load.measure(run.plan.publications)
    send, *published = [run.add(load.row()) for load in loads]
    for row in published:
        run.figure(row.scenario, server, "against SendMessage", row.cpu_us_per_call / send.cpu_us_per_call, "times")
    _, _, without, policies_row, *_ = published
    added = (policies_row.cpu_us_per_call - without.cpu_us_per_call) / send.cpu_us_per_call
    run.figure(policies_row.scenario, server, "added, against SendMessage", added, "times")


def _policy(number: int) -> object:
    """A policy on the attribute that messages have, by turns with another operator."""
    conditions = itertools.cycle(
        (
            [f"kind-{number}", f"other-{number}"],
            [{"prefix": f"kind-{number}"}],
            [{"suffix": f"-{number}"}, {"equals-ignore-case": f"KIND-{number}"}],
            [{"wildcard": f"*k*{number}"}],
            [{"anything-but": [f"kind-{number}", "order"]}],
        )
    )
    return {"kind": next(itertools.islice(conditions, number % 5, None))}

"""SNS at the endpoint of SQS: which calls belong to it, its certificate, metrics and metering."""

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
import pytest_asyncio
from cryptography import x509

from auth.limits import Rate, TenantLimits
from billing.metering.meter import Meter
from frontend.request import instruments
from frontend.request.unsigned_calls import UnauthenticatedCallers
from frontend.settings import FrontendSettings
from tests.frontend.metered import Metered
from tests.frontend.service import HOST, KEY, FrontendAnswer, FrontendService, running, sign
from tests.frontend.sns.cases import NAMESPACE, RecordingSender

FORM = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
SNS_VERSION = {"Version": "2010-03-31"}


@pytest_asyncio.fixture
async def sns(tmp_path: Path) -> AsyncIterator[FrontendService]:
    sender = RecordingSender()
    async with running(tmp_path, sender_of=lambda context: sender) as service:
        yield service


async def post(service: FrontendService, form: dict[str, str], signed_for: str | None = "sns") -> FrontendAnswer:
    content = urlencode(form).encode()
    headers = FORM if signed_for is None else sign("POST", "/", content, FORM, service.clock(), KEY, signed_for)
    return await service.unsigned("POST", "/", content, headers)


async def get(service: FrontendService, query: str, signed_for: str | None = None) -> FrontendAnswer:
    path = f"/?{query}"
    headers = {} if signed_for is None else sign("GET", path, b"", {}, service.clock(), KEY, signed_for)
    return await service.unsigned("GET", path, b"", headers)


@pytest.mark.parametrize("version", [SNS_VERSION, {}])
async def test_a_call_belongs_to_sns_by_its_version_or_its_signature(
    sns: FrontendService, version: dict[str, str]
) -> None:
    answer = await post(sns, {"Action": "CreateTopic", "Name": "t", **version})
    assert answer.status == 200
    assert NAMESPACE in answer.content
    assert answer.text("CreateTopicResult/TopicArn") == f"arn:aws:sns:us-east-1:{KEY.account}:t"
    assert (await get(sns, urlencode({"Action": "ListTopics", **version}), "sns")).status == 200


async def test_a_signature_for_another_service_is_refused(sns: FrontendService) -> None:
    answer = await post(sns, {"Action": "ListTopics", **SNS_VERSION}, "sqs")
    assert (answer.status, answer.code) == (403, "SignatureDoesNotMatch")
    assert NAMESPACE in answer.content


async def test_calls_of_sqs_are_as_they_were(sns: FrontendService) -> None:
    assert (await sns.query("CreateQueue", {"QueueName": "q"})).status == 200
    assert (await sns.query("ListTopics")).code == "InvalidAction"
    assert (await sns.query("ListQueues", {"Version": "2001-01-01"})).code == "NoSuchVersion"
    assert (await post(sns, {"Action": "ListQueues", "Version": "2012-11-05"}, "sqs")).status == 200


@pytest.mark.parametrize("action", ["Unsubscribe&SubscriptionArn=x", "ConfirmSubscription&TopicArn=t&Token=x"])
async def test_links_in_messages_work_without_a_version_and_a_signature(sns: FrontendService, action: str) -> None:
    answer = await get(sns, f"Action={action}")
    assert (answer.status, answer.code) == (400, "InvalidParameter")
    assert NAMESPACE in answer.content


async def test_unsigned_calls_are_limited(sns: FrontendService) -> None:
    sns.app.pipeline.unauthenticated_callers = UnauthenticatedCallers(clock=lambda: 0.0)
    codes = [(await get(sns, "Action=Unsubscribe&SubscriptionArn=x")).status for _ in range(110)]
    assert codes == [400] * 100 + [429] * 10


async def test_unsigned_calls_do_not_use_up_each_others_limits(tmp_path: Path) -> None:
    sender, settings = RecordingSender(), FrontendSettings(default_limits=TenantLimits(calls=Rate(0.001, 1)))
    async with running(tmp_path, settings, sender_of=lambda context: sender) as service:
        codes = [(await get(service, "Action=ConfirmSubscription&TopicArn=t&Token=x")).status for _ in range(4)]
    assert codes == [400] * 4


async def test_the_certificate_is_served_at_its_path(sns: FrontendService) -> None:
    assert sns.app.sns is not None
    signer = await sns.app.sns.context.signing.signer()
    path = f"/SimpleNotificationService-{signer.certificate}.pem"
    answer = await sns.unsigned("GET", path, b"", {})
    assert answer.status == 200
    assert x509.load_pem_x509_certificate(answer.content).subject.rfc4514_string() == "CN=sns.amazonaws.com"
    assert (await sns.client.head(f"http://{HOST}{path}")).content == b""
    assert (await sns.unsigned("GET", "/SimpleNotificationService-x.pem", b"", {})).status == 404


async def test_calls_are_counted_with_the_names_of_sns(sns: FrontendService) -> None:
    await post(sns, {"Action": "CreateTopic", "Name": "t", **SNS_VERSION})
    before = instruments.CALLS.counts[instruments.CALLS.index("sns:Publish", "refused")]
    await post(sns, {"Action": "Publish", **SNS_VERSION})
    assert instruments.CALLS.counts[instruments.CALLS.index("sns:Publish", "refused")] == before + 1


async def test_calls_are_metered_for_their_account(tmp_path: Path) -> None:
    sender, folder = RecordingSender(), tmp_path / "usage"
    meter = Meter.start(folder, "host-1")
    async with running(tmp_path, meter=meter, sender_of=lambda context: sender) as service:
        metered = Metered(service, meter, folder)
        await post(service, {"Action": "CreateTopic", "Name": "t", **SNS_VERSION})
        arn = f"arn:aws:sns:us-east-1:{KEY.account}:t"
        await post(service, {"Action": "Publish", "TopicArn": arn, "Message": "m" * 100_000, **SNS_VERSION})
        await post(service, {"Action": "Publish", "TopicArn": arn, **SNS_VERSION})
        assert await metered.lines() == {
            "sns:CreateTopic topic": {"calls": 1, "chunks": 1},
            "sns:Publish t topic": {"calls": 1, "chunks": 2, "messages": 1, "refused": 1},
        }
    await meter.close()

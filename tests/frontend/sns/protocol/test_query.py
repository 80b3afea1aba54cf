"""Query parameters to members, and results and errors to XML that botocore reads."""

from typing import Any

import botocore.loaders
import botocore.model
import botocore.parsers
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.query.parameters import Parameters, read_parameters
from frontend.sns.protocol import errors, query
from frontend.sns.protocol.limits import PARAMETERS_BYTES_MAX
from frontend.sns.protocol.model import SNS_ACTIONS
from frontend.sqs.protocol.errors import REGISTRY, SqsError
from tests.tables import table

SERVICE = botocore.model.ServiceModel(botocore.loaders.Loader().load_service_model("sns", "service-2"), "sns")


def parameters_of(form: str) -> Parameters:
    return read_parameters((form.encode(),), lambda text: SqsError(errors.MALFORMED_INPUT, text))


@pytest.mark.parametrize(("action", "form", "members"), table(__file__, "members"))
def test_members(action: str, form: str, members: dict[str, Any]) -> None:
    parameters = parameters_of(f"Action={action}&Version=2010-03-31&{form}")
    assert query.action_of(parameters) == action
    assert query.read_members(action, parameters) == members


@pytest.mark.parametrize(("form", "code", "text"), table(__file__, "refused"))
def test_refused(form: str, code: str, text: str) -> None:
    parameters = parameters_of(form)
    with pytest.raises(SqsError) as caught:
        query.read_members(query.action_of(parameters), parameters)
    assert caught.value.kind.query_code == code
    assert text in caught.value.message


@pytest.mark.parametrize(("action", "code"), table(__file__, "too much content").items())
def test_more_content_than_any_valid_request_has(action: str, code: str) -> None:
    length = PARAMETERS_BYTES_MAX
    with pytest.raises(SqsError) as caught:
        query.read_members(action, parameters_of("Message=" + "x" * (length + 1)))
    assert caught.value.kind.query_code == code
    escaped = parameters_of("Message=" + "%41" * (length - 1000))
    assert len(query.read_members("Publish", escaped)["Message"]) == length - 1000


@pytest.mark.parametrize(("shape", "expected"), table(__file__, "converted").items())
def test_errors_of_the_shared_parts_are_in_the_terms_of_sns(shape: str, expected: list[Any]) -> None:
    error = errors.as_sns_error(SqsError(REGISTRY[shape], "the text", retry_after_s=2, logged="the log's"))
    assert [error.kind.query_code, error.kind.status] == expected
    assert (error.message, error.logged, error.retry_after_s) == ("the text", "the log's", 2)
    assert errors.as_sns_error(error) is error


def test_botocore_reads_results_and_errors() -> None:
    text = 'a<b>&"\r'
    arn = "arn:aws:sns:us-east-1:123456789012:t"
    results: dict[str, dict[str, Any]] = {
        "CreateTopic": {"TopicArn": arn},
        "ListTopics": {"Topics": [{"TopicArn": arn}, {"TopicArn": text}], "NextToken": "n"},
        "GetTopicAttributes": {"Attributes": {"DisplayName": text, "Owner": "1"}},
        "ListSubscriptions": {"Subscriptions": [{"Owner": "1", "Endpoint": "e"}]},
        "ListTagsForResource": {"Tags": [{"Key": "k", "Value": text}]},
        "PublishBatch": {
            "Successful": [{"Id": "a", "MessageId": "m"}],
            "Failed": [{"Id": "b", "Code": "c", "Message": text, "SenderFault": True}],
        },
        "TagResource": {},
        "DeleteTopic": {},
    }
    for action, result in results.items():
        content = query.write_result(action, result or None, "the-request")
        parsed = parse(action, 200, content)
        about = parsed.pop("ResponseMetadata")
        assert about["RequestId"] == "the-request"
        assert parsed == result
    parsed = parse("Publish", 404, query.write_sns_error(errors.topic_does_not_exist(), "the-request"))
    assert parsed["Error"] == {"Type": "Sender", "Code": "NotFound", "Message": "Topic does not exist"}
    assert parsed["ResponseMetadata"]["RequestId"] == "the-request"


def parse(action: str, status: int, content: bytes) -> dict[str, Any]:
    """Read an answer as botocore does."""
    parser = botocore.parsers.create_parser("query")
    answer = {"status_code": status, "headers": {}, "body": content}
    parsed: dict[str, Any] = parser.parse(answer, SERVICE.operation_model(action).output_shape)
    return parsed


@given(st.sampled_from(sorted(SNS_ACTIONS)), st.data())
def test_no_parameters_make_anything_but_members_or_an_error(action: str, data: st.DataObject) -> None:
    wires = sorted({member.wire for member in SNS_ACTIONS[action].input.members.values()})
    parts = st.sampled_from([*wires, "member", "entry", "1", "2", "key", "value", "Name", "Value", "Key", "Id", ""])
    names = st.lists(parts, min_size=1, max_size=5).map(".".join)
    form = data.draw(st.lists(st.tuples(names, st.text(max_size=5)), max_size=6))
    parameters = Parameters(dict(form), 0, lambda text: SqsError(errors.MALFORMED_INPUT, text))
    assert outcome(action, parameters) in (200, 400)


def outcome(action: str, parameters: Parameters) -> int:
    """Status of an answer: of members, or of the error."""
    try:
        query.read_members(action, parameters)
    except SqsError as error:
        return error.kind.status
    return 200

"""TagResource, UntagResource, ListTagsForResource."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from frontend.request.request import Call, Members
from frontend.sns.actions.context import SnsContext
from frontend.sns.protocol.errors import (
    NOT_FOUND,
    RESOURCE_NOT_FOUND,
    TAG_LIMIT_EXCEEDED,
    invalid_parameter,
    missing_parameter,
)
from frontend.sns.topics.view import TopicUpdate, TopicView
from frontend.sqs.protocol import limits
from frontend.sqs.protocol.errors import SqsError
from metadata_service.topics import Topic
from telemetry.texts import shown

Tags = dict[str, str]


def tags_of(given: Sequence[Mapping[str, str]]) -> Tags:
    """Tags of a list of keys and values.  Raises InvalidParameter."""
    tags: Tags = {}
    for tag in given:
        for name in ("Key", "Value"):
            if name not in tag:
                raise missing_parameter(f"Tags.{name}")
        if tag["Key"] in tags:
            raise invalid_parameter(f"Tags Reason: the key {shown(tag['Key'])} was given more than once")
        tags[tag["Key"]] = tag["Value"]
    return tags


def check_tags(tags: Tags) -> None:
    """Check that a topic may have all these tags.  Raises InvalidParameter and TagLimitExceeded."""
    if len(tags) > limits.TAGS_MAX:
        raise SqsError(TAG_LIMIT_EXCEEDED)
    for key, value in tags.items():
        if not 1 <= len(key) <= limits.TAG_KEY_LENGTH_MAX:
            raise invalid_parameter(f"Tags Reason: a key has 1 to {limits.TAG_KEY_LENGTH_MAX} characters")
        if key.lower().startswith("aws:"):
            raise invalid_parameter("Tags Reason: keys that begin with aws: are reserved")
        if len(value) > limits.TAG_VALUE_LENGTH_MAX:
            raise invalid_parameter(f"Tags Reason: a value has at most {limits.TAG_VALUE_LENGTH_MAX} characters")
        for text in (key, value):
            if not all(letter.isalnum() or letter in " _.:/=+-@" for letter in text):
                raise invalid_parameter(
                    "Tags Reason: tags have only letters, digits, spaces, and the characters _.:/=+-@"
                )


async def tag_resource(context: SnsContext, call: Call, members: Members) -> Members:
    given = tags_of(members.get("Tags") or ())
    if not given:
        raise missing_parameter("Tags")
    view = await _tagged(context, call, "TagResource", members)

    def tagged(tags: Tags) -> Tags:
        result = tags | given
        check_tags(result)
        return result

    await _change(context, view, tagged)
    return {}


async def untag_resource(context: SnsContext, call: Call, members: Members) -> Members:
    keys = members.get("TagKeys")
    if not keys:
        raise missing_parameter("TagKeys")
    view = await _tagged(context, call, "UntagResource", members)
    await _change(context, view, lambda tags: {key: value for key, value in tags.items() if key not in keys})
    return {}


async def list_tags_for_resource(context: SnsContext, call: Call, members: Members) -> Members:
    view = await _tagged(context, call, "ListTagsForResource", members)
    fresh = await context.topics.change(view, lambda topic: None)
    return {"Tags": [{"Key": key, "Value": value} for key, value in fresh.topic.tags.items()]}


async def _tagged(context: SnsContext, call: Call, action: str, members: Members) -> TopicView:
    """The topic to be tagged.  Raises ResourceNotFound."""
    text = members.get("ResourceArn")
    if not text:
        raise missing_parameter("ResourceArn")
    try:
        return await context.access.topic(call, action, text, "ResourceArn")
    except SqsError as error:
        if error.kind is NOT_FOUND:
            raise SqsError(RESOURCE_NOT_FOUND, "Resource does not exist") from None
        raise


async def _change(context: SnsContext, view: TopicView, change: Callable[[Tags], Tags]) -> None:
    def update(topic: Topic) -> TopicUpdate | None:
        tags = change(topic.tags)
        return None if tags == topic.tags else TopicUpdate(tags=tags)

    await context.topics.change(view, update)

"""TagQueue, UntagQueue, ListQueueTags."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from frontend.queues.queues import Update
from frontend.queues.view import QueueView
from frontend.request.context import Context
from frontend.request.request import Call, Members
from frontend.sqs.protocol import limits
from frontend.sqs.protocol.errors import INVALID_PARAMETER_VALUE, SqsError, invalid_value, missing_parameter
from metadata_service.models import Queue

Tags = dict[str, str]


def check(tags: Mapping[str, str], queue_name: str) -> None:
    """Check that a queue may have all these tags."""
    if len(tags) > limits.TAGS_MAX:
        raise SqsError(
            INVALID_PARAMETER_VALUE, f"Too many tags added for queue {queue_name}. Maximum {limits.TAGS_MAX}."
        )
    for key, value in tags.items():
        if not 1 <= len(key) <= limits.TAG_KEY_LENGTH_MAX:
            raise invalid_value(
                key, "Tag.Key", f"Tag keys must be between 1 and {limits.TAG_KEY_LENGTH_MAX} characters."
            )
        if key.lower().startswith("aws:"):
            raise invalid_value(key, "Tag.Key", "Tag keys must not begin with aws:, which is reserved.")
        if len(value) > limits.TAG_VALUE_LENGTH_MAX:
            raise invalid_value(
                value, "Tag.Value", f"Tag values must be between 0 and {limits.TAG_VALUE_LENGTH_MAX} characters."
            )
        for text in (key, value):
            if not all(letter.isalnum() or letter in " _.:/=+-@" for letter in text):
                raise invalid_value(
                    text, "Tag", "Tags can only include letters, digits, spaces, and the characters _.:/=+-@."
                )


async def tag_queue(context: Context, call: Call, view: QueueView, members: Members) -> None:
    given: Tags | None = members.get("Tags")
    if not given:
        raise missing_parameter("Tags")

    def tagged(tags: Tags) -> Tags:
        result = tags | given
        check(result, view.queue.name)
        return result

    await _change(context, view, tagged)


async def untag_queue(context: Context, call: Call, view: QueueView, members: Members) -> None:
    keys = members.get("TagKeys")
    if not keys:
        raise missing_parameter("TagKeys")
    await _change(context, view, lambda tags: {key: value for key, value in tags.items() if key not in keys})


async def list_queue_tags(context: Context, call: Call, view: QueueView, members: Members) -> Members | None:
    fresh = await context.queues.refresh(view)
    return {"Tags": fresh.queue.tags} if fresh.queue.tags else None


async def _change(context: Context, view: QueueView, change: Callable[[Tags], Tags]) -> None:
    def update(queue: Queue) -> Update | None:
        tags = change(queue.tags)
        return None if tags == queue.tags else Update(tags=tags)

    await context.queues.change(view, update)

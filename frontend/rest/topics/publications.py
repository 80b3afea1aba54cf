"""Publications over REST: messages for a topic, with any HTTP client."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from frontend.request.request import Members
from frontend.rest.caller import CurrentCaller, MessageRoute, rest_router
from frontend.rest.message_forms import attribute_members, read_message, request_body
from frontend.rest.topics.access import RestTopics
from frontend.rest.topics.models import PublicationGiven, PublicationStored
from frontend.rest.topics.topics import TopicName


def create_router(topics: RestTopics) -> APIRouter:
    """Create the route of publications."""
    router = rest_router("topics", MessageRoute)

    @router.post(
        "/topics/{name}/messages",
        name="topic.publish",
        status_code=201,
        openapi_extra=request_body(PublicationGiven),
    )
    async def publish(
        caller: CurrentCaller,
        request: Request,
        name: TopicName,
        account: Annotated[str | None, Query(description="account of the topic, if its policy allows it")] = None,
        subject: Annotated[str | None, Query(description="subject in SNS's envelope")] = None,
        group: Annotated[str | None, Query(description="message group")] = None,
        deduplication_id: Annotated[
            str | None, Query(description="FIFO: messages with the same id are delivered once")
        ] = None,
    ) -> PublicationStored:
        """Publish a message: each subscription that it matches gets it."""
        arn = topics.arn(caller, caller.owner(account), name)
        content_type, body = request.headers.get("content-type", ""), await request.body()

        def members() -> Members:
            given = read_message("Publish", PublicationGiven, content_type, body)
            values: Members = {
                "TopicArn": str(arn),
                "Message": given.body,
                "Subject": given.subject if subject is None else subject,
                "MessageStructure": given.structure,
                "MessageGroupId": given.group if group is None else group,
                "MessageDeduplicationId": given.deduplication_id if deduplication_id is None else deduplication_id,
                "MessageAttributes": attribute_members(given.attributes),
            }
            return {one: value for one, value in values.items() if value is not None}

        published = await topics.publish(caller, members)
        return PublicationStored(id=published["MessageId"], sequence_number=published.get("SequenceNumber"))

    return router

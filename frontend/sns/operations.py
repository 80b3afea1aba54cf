"""The actions of SNS that are served, and the functions that carry them out."""

from __future__ import annotations

from typing import Final

from frontend.sns.actions import publish, subscriptions, tags, topics
from frontend.sns.actions.context import SnsAction

SNS_OPERATIONS: Final[dict[str, SnsAction]] = {
    action.name: action
    for action in (
        SnsAction(name="AddPermission", run=topics.add_permission, audited=True),
        SnsAction(name="ConfirmSubscription", run=subscriptions.confirm_subscription, audited=True, unsigned=True),
        SnsAction(name="CreateTopic", run=topics.create_topic, audited=True),
        SnsAction(name="DeleteTopic", run=topics.delete_topic, audited=True),
        SnsAction(name="GetSubscriptionAttributes", run=subscriptions.get_subscription_attributes),
        SnsAction(name="GetTopicAttributes", run=topics.get_topic_attributes),
        SnsAction(name="ListSubscriptions", run=subscriptions.list_subscriptions),
        SnsAction(name="ListSubscriptionsByTopic", run=subscriptions.list_subscriptions_by_topic),
        SnsAction(name="ListTagsForResource", run=tags.list_tags_for_resource),
        SnsAction(name="ListTopics", run=topics.list_topics),
        SnsAction(name="Publish", run=publish.publish, limit="send"),
        SnsAction(name="PublishBatch", run=publish.publish_batch, limit="send"),
        SnsAction(name="RemovePermission", run=topics.remove_permission, audited=True),
        SnsAction(name="SetSubscriptionAttributes", run=subscriptions.set_subscription_attributes, audited=True),
        SnsAction(name="SetTopicAttributes", run=topics.set_topic_attributes, audited=True),
        SnsAction(name="Subscribe", run=subscriptions.subscribe, audited=True),
        SnsAction(name="TagResource", run=tags.tag_resource, audited=True),
        SnsAction(name="Unsubscribe", run=subscriptions.unsubscribe, audited=True, unsigned=True),
        SnsAction(name="UntagResource", run=tags.untag_resource, audited=True),
    )
}
"""All actions by name."""

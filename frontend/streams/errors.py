"""Kafka's error codes, with the service's own texts.

Codes of features that the service does not have (delegation tokens, share groups, brokers among themselves) are left
out.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Self


class ErrorCode(IntEnum):
    """An error of the protocol: a number that responses hold, named as clients name it."""

    retriable: bool
    """True if clients repeat the request by themselves."""
    text: str
    """The default text, for responses that have one."""

    def __new__(cls, code: int, retriable: bool, text: str) -> Self:
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable = retriable
        member.text = text
        return member

    @classmethod
    def of_number(cls, code: int) -> ErrorCode:
        """Return the error with this number.  Raises ``KeyError``."""
        return _BY_NUMBER[code]

    UNKNOWN_SERVER_ERROR = -1, False, "The service failed; its log has the reason."
    NONE = 0, False, ""
    OFFSET_OUT_OF_RANGE = 1, False, "The offset is before the first or after the last one of the partition."
    CORRUPT_MESSAGE = 2, True, "The batch is damaged: its checksum or its length is wrong."
    UNKNOWN_TOPIC_OR_PARTITION = 3, True, "There is no such topic or partition."
    INVALID_FETCH_SIZE = 4, False, "The fetch size is invalid."
    LEADER_NOT_AVAILABLE = 5, True, "The partition has no owner at the moment."
    NOT_LEADER_OR_FOLLOWER = 6, True, "The partition is served by another broker."
    REQUEST_TIMED_OUT = 7, True, "The request was not completed in time."
    BROKER_NOT_AVAILABLE = 8, False, "The broker is not available."
    REPLICA_NOT_AVAILABLE = 9, True, "The replica is not available."
    MESSAGE_TOO_LARGE = 10, False, "The batch is larger than max.message.bytes."
    OFFSET_METADATA_TOO_LARGE = 12, False, "The metadata of the committed offset is too long."
    NETWORK_EXCEPTION = 13, True, "The connection was lost before the response."
    COORDINATOR_LOAD_IN_PROGRESS = 14, True, "The group is being loaded."
    COORDINATOR_NOT_AVAILABLE = 15, True, "The group has no coordinator at the moment."
    NOT_COORDINATOR = 16, True, "The group is coordinated by another broker."
    INVALID_TOPIC_EXCEPTION = 17, False, "The name or the use of the topic is invalid."
    RECORD_LIST_TOO_LARGE = 18, False, "The batch is larger than a segment."
    NOT_ENOUGH_REPLICAS = 19, True, "Too few replicas can store the batch; it was not stored."
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, True, "The batch was stored on too few replicas."
    INVALID_REQUIRED_ACKS = 21, False, "acks has to be -1, 0 or 1."
    ILLEGAL_GENERATION = 22, False, "The generation is not the group's current one."
    INCONSISTENT_GROUP_PROTOCOL = 23, False, "The member and the group have no protocol in common."
    INVALID_GROUP_ID = 24, False, "The group id is invalid."
    UNKNOWN_MEMBER_ID = 25, False, "The group has no such member."
    INVALID_SESSION_TIMEOUT = 26, False, "The session timeout is out of the permitted range."
    REBALANCE_IN_PROGRESS = 27, False, "The group is rebalancing: join again."
    INVALID_COMMIT_OFFSET_SIZE = 28, False, "The commit is too large."
    TOPIC_AUTHORIZATION_FAILED = 29, False, "Access to the topic is denied."
    GROUP_AUTHORIZATION_FAILED = 30, False, "Access to the group is denied."
    CLUSTER_AUTHORIZATION_FAILED = 31, False, "The operation on the cluster is denied."
    INVALID_TIMESTAMP = 32, False, "The timestamp is out of range, or of a type that producers may not set."
    UNSUPPORTED_SASL_MECHANISM = 33, False, "The SASL mechanism is not offered."
    ILLEGAL_SASL_STATE = 34, False, "The request is not possible in this state of the sign-in."
    UNSUPPORTED_VERSION = 35, False, "The version of the API is not served."
    TOPIC_ALREADY_EXISTS = 36, False, "There is a topic of this name."
    INVALID_PARTITIONS = 37, False, "The number of partitions is invalid."
    INVALID_REPLICATION_FACTOR = 38, False, "The replication factor is invalid."
    INVALID_REPLICA_ASSIGNMENT = 39, False, "A partition has one replica, on broker 1."
    INVALID_CONFIG = 40, False, "The configuration is invalid."
    NOT_CONTROLLER = 41, True, "This is not the controller."
    INVALID_REQUEST = 42, False, "The request is invalid."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, False, "The format of the records does not permit the request."
    POLICY_VIOLATION = 44, False, "A limit of the tenant does not permit the request."
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, False, "The batch does not follow the producer's last one."
    DUPLICATE_SEQUENCE_NUMBER = 46, False, "The batch was stored before."
    INVALID_PRODUCER_EPOCH = 47, False, "The producer has a newer epoch."
    INVALID_TXN_STATE = 48, False, "The request is not possible in this state of the transaction."
    INVALID_PRODUCER_ID_MAPPING = 49, False, "The producer id does not belong to the transactional id."
    INVALID_TRANSACTION_TIMEOUT = 50, False, "The transaction timeout is too long."
    CONCURRENT_TRANSACTIONS = 51, True, "Another operation on the transaction is in progress."
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, False, "Access to the transactional id is denied."
    SECURITY_DISABLED = 54, False, "The listener has no authentication."
    OPERATION_NOT_ATTEMPTED = 55, False, "The operation was not tried because another one of the request failed."
    KAFKA_STORAGE_ERROR = 56, True, "The storage failed."
    SASL_AUTHENTICATION_FAILED = 58, False, "Authentication failed."
    UNKNOWN_PRODUCER_ID = 59, False, "The producer is unknown, or was forgotten."
    NON_EMPTY_GROUP = 68, False, "The group has members."
    GROUP_ID_NOT_FOUND = 69, False, "There is no such group."
    FETCH_SESSION_ID_NOT_FOUND = 70, True, "There is no such fetch session."
    INVALID_FETCH_SESSION_EPOCH = 71, True, "The epoch of the fetch session is wrong."
    LISTENER_NOT_FOUND = 72, True, "The broker has no such listener."
    TOPIC_DELETION_DISABLED = 73, False, "Topics cannot be deleted."
    FENCED_LEADER_EPOCH = 74, True, "The client's leader epoch is older than the partition's."
    UNKNOWN_LEADER_EPOCH = 75, True, "The client's leader epoch is newer than the partition's."
    UNSUPPORTED_COMPRESSION_TYPE = 76, False, "The version of the request does not permit the compression."
    OFFSET_NOT_AVAILABLE = 78, True, "The offset is not known yet."
    MEMBER_ID_REQUIRED = 79, False, "Join again with the member id of this response."
    GROUP_MAX_SIZE_REACHED = 81, False, "The group has as many members as it may have."
    FENCED_INSTANCE_ID = 82, False, "Another member has taken over the instance id."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, False, "The group is subscribed to the topic."
    INVALID_RECORD = 87, False, "The batch or one of its records is invalid."
    UNSTABLE_OFFSET_COMMIT = 88, True, "Offsets of a transaction are not decided yet."
    THROTTLING_QUOTA_EXCEEDED = 89, True, "A rate limit is exceeded."
    PRODUCER_FENCED = 90, False, "A newer producer has the transactional id."
    RESOURCE_NOT_FOUND = 91, False, "There is no such resource."
    DUPLICATE_RESOURCE = 92, False, "The request names a resource twice."
    UNACCEPTABLE_CREDENTIAL = 93, False, "The credential is not acceptable."
    UNKNOWN_TOPIC_ID = 100, True, "There is no topic with this id."
    INCONSISTENT_TOPIC_ID = 103, True, "The topic has another id."
    INCONSISTENT_CLUSTER_ID = 104, False, "This is another cluster."
    TRANSACTIONAL_ID_NOT_FOUND = 105, False, "There is no such transactional id."
    FETCH_SESSION_TOPIC_ID_ERROR = 106, True, "The fetch session names topics in two ways."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, False, "The offset is in another storage."
    FENCED_MEMBER_EPOCH = 110, False, "The member's epoch is over: join again."
    UNRELEASED_INSTANCE_ID = 111, False, "Another member still has the instance id."
    UNSUPPORTED_ASSIGNOR = 112, False, "The group does not support the assignor."
    STALE_MEMBER_EPOCH = 113, False, "The member's epoch is old."
    MISMATCHED_ENDPOINT_TYPE = 114, False, "The endpoint is of another type."
    UNSUPPORTED_ENDPOINT_TYPE = 115, False, "There are no endpoints of this type."


_BY_NUMBER: dict[int, ErrorCode] = {code.value: code for code in ErrorCode}
